"""Metrics in the text format of Prometheus: real, padded and waste tokens have their own names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from noria.bucketing import DecodeBucket, PrefillBucket
from noria.runtime.errors import NoriaError
from noria.runtime.metrics import metrics_text
from noria.runtime.step_counters import StepCounters


@pytest.fixture
def counters() -> StepCounters:
    found = StepCounters(max_num_rows=64, max_num_seqs=8, max_model_len=512, block_size=16)
    for tokens in (40, 64):
        found.add_step(
            PrefillBucket(64, 512), tokens, 64, num_tokens=tokens, num_requests=1, seconds=0.5
        )
    found.add_step(DecodeBucket(8, 128), 3, 65, num_tokens=3, num_requests=3, seconds=0.25)
    found.add_request(40, 2)
    return found


def test_every_metric_has_its_value_by_graph_and_phase(counters: StepCounters) -> None:
    families = text_string_to_metric_families(metrics_text(counters))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if family.type == "counter"
    }

    prefill, decode = ("prefill_t64_c512", "prefill"), ("decode_s8_c128", "decode")
    assert found == {
        ("noria_steps_total", *prefill): 2,
        ("noria_steps_total", *decode): 1,
        ("noria_step_seconds_total", *prefill): 1.0,
        ("noria_step_seconds_total", *decode): 0.25,
        ("noria_real_tokens_total", *prefill): 104,
        ("noria_real_tokens_total", *decode): 3,
        ("noria_padded_tokens_total", *prefill): 128,
        ("noria_padded_tokens_total", *decode): 8,
        ("noria_waste_tokens_total", *prefill): 24,
        ("noria_waste_tokens_total", *decode): 5,
        ("noria_finished_requests_total",): 1,
        ("noria_finished_prompt_tokens_total",): 40,
        ("noria_finished_output_tokens_total",): 2,
    }


def test_every_metric_is_explained(counters: StepCounters) -> None:
    families = list(text_string_to_metric_families(metrics_text(counters)))

    assert len(families) == 8
    assert all(family.documentation for family in families)


def test_every_metric_is_documented(counters: StepCounters) -> None:
    guide = Path(__file__).parents[2] / "docs" / "counters.md"
    documented = re.findall(r"^\| `(noria_\w+)` \|", guide.read_text(), re.MULTILINE)

    families = text_string_to_metric_families(metrics_text(counters))

    assert documented == [f"{family.name}_total" for family in families]


def test_without_the_library_one_line_says_what_to_install(
    counters: StepCounters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(NoriaError) as caught:
        metrics_text(counters)

    assert str(caught.value) == (
        "metrics need the package prometheus_client: pip install 'noria[metrics]'"
    )
