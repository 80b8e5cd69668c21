"""Wherever an interrupt comes, the engine stays whole and the next requests run as ever."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from noria.runtime.interrupts import held_interrupts
from noria.runtime.llm import LLM
from noria.runtime.sampling_params import SamplingParams

CONFIG = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "eos_token_id": 0,
    },
    "backend": "reference",
    "max_model_len": 32,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "block_size": 4,
    "num_blocks": 12,
    "num_batched_tokens_buckets": [16],
    "num_seqs_buckets": [4],
    "sampling": {"temperature": 0, "max_tokens": 8},
}
PROMPTS = [[5, 6, 7], [8] * 20, [9] * 5]
PARTS = ("engine.py", "scheduler.py", "kv_cache_manager.py", "block_pool.py", "request.py")


@contextmanager
def interrupt_at(index: int) -> Iterator[list[int]]:
    """Interrupt before the line of the engine's parts that is executed as number ``index``.

    Yields a list of one: how many lines were executed.
    """
    count = [0]

    def local(frame: FrameType, event: str, argument: object) -> object:
        if event == "line":
            count[0] += 1
            if count[0] == index:
                signal.raise_signal(signal.SIGINT)
        return local

    def trace(frame: FrameType, event: str, argument: object) -> object:
        return local if Path(frame.f_code.co_filename).name in PARTS else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("share", range(25))
def test_an_interrupt_anywhere_in_the_engine_leaves_it_whole(llm: LLM, share: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, n=2)
    expected = [output.token_ids for output in llm.generate(PROMPTS)]
    with interrupt_at(0) as num_lines:
        llm.generate(PROMPTS, params)

    with pytest.raises(KeyboardInterrupt), interrupt_at(1 + num_lines[0] * share // 25):
        llm.generate(PROMPTS, params)

    llm.loaded.engine.check_invariants()
    assert not llm.loaded.engine.has_unfinished
    assert [output.token_ids for output in llm.generate(PROMPTS)] == expected


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(CONFIG)


def test_an_interrupt_waits_for_the_end_of_the_outermost_block() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with held_interrupts() as outer:
            with held_interrupts() as inner:
                signal.raise_signal(signal.SIGINT)
                done.append(len(inner))
            done.append(len(outer))

    with pytest.raises(KeyboardInterrupt):
        work()

    assert done == [1, 1]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_is_not_lost_where_the_block_fails() -> None:
    def work() -> None:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        work()


def test_other_threads_hold_nothing_and_change_no_handler() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with held_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [before]
