"""Published traces have the sizes that are known of them; the folder NORIA_TRACES holds them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from noria.bucketing.traces.trace import Trace
from noria.runtime.trace_files import read_trace_file

FOLDER = os.environ.get("NORIA_TRACES")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="NORIA_TRACES names no folder of traces")

# Rows, then mean, median, 99th percentile and largest prompt.
REQUESTS = {
    "azure_llm_2023_conv.csv.gz": (19_366, 1_155, 1_020, 4_142, 14_050),
    "azure_llm_2023_code.csv.gz": (8_819, 2_048, 1_469, 7_436, 7_437),
    "mooncake_fast25_conversation.jsonl.gz": (12_031, 12_035, 6_909, 85_401, 126_195),
    "mooncake_fast25_synthetic.jsonl.gz": (3_993, 15_325, 11_587, 66_458, 191_378),
    "vidur_arxiv_summarization_lengths.csv.gz": (28_257, 2_588, 2_730, 3_934, 4_054),
}
# Windows, then as above.
WINDOWS = {
    "servegen_deepseek-r1_hist.csv.gz": (4, 1_268, 208, 23_423, 57_284),
    "servegen_m-small_hist.csv.gz": (56, 120, 40, 1_478, 145_912),
}


def read(name: str) -> Trace:
    assert FOLDER is not None
    return read_trace_file(Path(FOLDER) / name)


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_those_that_were_published(name: str) -> None:
    lens = read(name).prompt_lens

    found = (len(lens), lens.mean(), *np.percentile(lens, [50, 99], method="higher"), lens.max())
    assert found == pytest.approx(REQUESTS[name], abs=1)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_those_that_were_published(name: str) -> None:
    trace = read(name)

    assert trace.weights is not None
    order = np.argsort(trace.prompt_lens)
    lens, below = trace.prompt_lens[order], np.cumsum(trace.weights[order])
    percentiles = lens[np.searchsorted(below, below[-1] * np.array([0.5, 0.99]))]
    mean = np.average(trace.prompt_lens, weights=trace.weights)
    num = len(np.unique(trace.arrivals_s))
    assert (num, mean, *percentiles, lens.max()) == pytest.approx(WINDOWS[name], abs=1)


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_known_of_requests_is_kept(name: str) -> None:
    trace = read(name)

    is_mooncake = name.startswith("mooncake")
    assert trace.output_lens is not None
    assert (trace.prefix_lens is not None) == is_mooncake
    assert (trace.arrivals_s is None) == name.startswith("vidur")


def test_a_good_third_of_the_conversations_tokens_were_seen_before() -> None:
    trace = read("mooncake_fast25_conversation.jsonl.gz")

    assert trace.prefix_lens is not None
    assert trace.prefix_lens.sum() / trace.prompt_lens.sum() == pytest.approx(0.373, abs=0.001)
