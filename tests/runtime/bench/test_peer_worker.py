"""The worker's loop, without a process."""

from __future__ import annotations

import io
import json
from typing import Any

from noria.runtime.bench.peer_worker import Load, TokenIds, one_line, serve

LOAD = {
    "op": "load",
    "model": "m",
    "activations": "float32",
    "num_threads": 1,
    "max_num_seqs": 1,
    "max_model_len": 8,
    "settings": {},
}


class Echo:
    """Returns each prompt's first id."""

    version = "0"

    def __init__(self, load: Load) -> None:
        self.load = load

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        return [[prompt[0]] * new_tokens for prompt in prompts]


def replies_to(*commands: dict[str, Any]) -> list[dict[str, Any]]:
    replies = io.StringIO()
    serve(Echo, io.StringIO("".join(json.dumps(c) + "\n" for c in commands)), replies=replies)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def test_a_load_and_a_run_are_answered_in_order() -> None:
    loaded, run = replies_to(LOAD, {"op": "run", "prompts": [[4, 5], [6]], "new_tokens": 2})

    assert loaded == {"version": "0", "ok": True}
    assert run["token_ids"] == [[4, 4], [6, 6]]
    assert run["seconds"] >= 0
    assert run["ok"] is True


def test_a_failing_run_is_answered_and_the_next_one_runs() -> None:
    bad = {"op": "run", "prompts": [[]], "new_tokens": 1}

    _, failed, run = replies_to(LOAD, bad, {"op": "run", "prompts": [[1]], "new_tokens": 1})

    assert failed == {"ok": False, "error": "IndexError: list index out of range"}
    assert run["token_ids"] == [[1]]


def test_an_exception_without_text_is_its_name() -> None:
    assert one_line(MemoryError()) == "MemoryError"
    assert one_line(ValueError("two\n  lines")) == "ValueError: two lines"
