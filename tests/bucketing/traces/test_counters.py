"""Counters of a run become the demand that it had."""

from __future__ import annotations

import io
import json

from noria.bucketing.traces.counters import Counters, GraphCounts, read_counters
from noria.bucketing.traces.text import TraceText


def read(**parts: object) -> Counters:
    data = json.dumps({"noria_counters": 1, **parts}, indent=2).encode()
    return read_counters(TraceText.read(io.BytesIO(data), "run.json"))


def test_steps_become_demands() -> None:
    counters = read(
        prefill=[[300, 0, 2, 5], [20, 512, 1, 1], [300, 64, 1, 1]],
        decode=[[4, 900, 7], [1, 33, 2]],
        prompts=[[300, 9, 2]],
    )

    assert counters.prefill is not None
    assert counters.prefill.sizes.tolist() == [20, 300]
    assert counters.prefill.weights.tolist() == [1, 3]
    assert counters.prefill_steps.tolist() == [[300, 0, 2, 5], [20, 512, 1, 1], [300, 64, 1, 1]]
    assert counters.decode is not None
    assert counters.decode.num_seqs.tolist() == [1, 4]
    assert counters.decode.context_lens.tolist() == [33, 900]
    assert counters.decode.weights.tolist() == [2, 7]
    assert counters.requests is not None
    assert counters.requests.num_requests == 2


def test_graphs_keep_their_counts() -> None:
    counts = {"num_steps": 3, "real_tokens": 40, "padded_tokens": 64, "seconds": 0.25}

    assert read(graphs={"decode 4 x 64": counts}).graphs == {
        "decode 4 x 64": GraphCounts(3, 40, 64, 0.25)
    }


def test_a_run_that_did_nothing_has_no_demand() -> None:
    counters = read()

    assert (counters.requests, counters.prefill, counters.decode) == (None, None, None)
    assert len(counters.prefill_steps) == 0
    assert counters.graphs == {}
