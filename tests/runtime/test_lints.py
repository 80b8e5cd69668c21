"""Every lint: a configuration that has the fault, and a neighbouring one that has not."""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from noria.bucketing import Bucket, BucketPlan, DecodeBucket, PrefillBucket
from noria.runtime.cli.plan import plan_config
from noria.runtime.config import load_config, parse_config
from noria.runtime.lints import LINTS, OF_PLANS, Finding, lint

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
SHIPPED = sorted(
    resource.name for resource in files("noria.configs").iterdir() if resource.name[-5:] == ".yaml"
)
NEURON = {"backend": "neuron", "max_num_seqs": 4, "max_model_len": 8192, "block_size": 32}
NEURON |= {"max_num_batched_tokens": 8192}
SHORT = {"max_model_len": 512, "max_num_seqs": 32}
DENSE = [*range(64, 2048, 64)]

CASES: list[tuple[str, dict[str, object], dict[str, object], str]] = [
    (
        "limit-without-effect",
        {"max_model_len": 1024, "max_num_batched_tokens": 1025},
        {"max_model_len": 1024, "max_num_batched_tokens": 1024},
        "max_num_batched_tokens: is 1025, but no step has more tokens than max_model_len 1024",
    ),
    (  # 16 requests of 64 tokens each are 32 blocks, and the null block
        "small-pool",
        {"num_blocks": 32, "max_model_len": 512, "max_num_seqs": 16},
        {"num_blocks": 33, "max_model_len": 512, "max_num_seqs": 16},
        "62 for each of max_num_seqs 16 requests, so that these wait or are computed again; 33 "
        "hold 64 for each, or set max_num_seqs to 15",
    ),
    (
        "wide-gap",
        {"num_batched_tokens_buckets": [511, 2048]},
        {"num_batched_tokens_buckets": [512, 2048]},
        "511 and 2048 are 4.0 times apart, so that up to 75 % of a step is padding; 1024 in "
        "between makes that 50 %",
    ),
    (
        "wide-gap",
        {"max_num_seqs": 9, "num_seqs_buckets": [2, 9]},
        {"max_num_seqs": 8, "num_seqs_buckets": [1, 8]},
        "num_seqs_buckets: 2 and 9 are 4.5 times apart",
    ),
    (
        "twin-sizes",
        {"max_model_len": 2049, "max_num_batched_tokens": 2049},
        {"max_model_len": 2048, "max_num_batched_tokens": 2048},
        "2048 saves at most 0.0 % of the rows beside 2049; leave such sizes out, or lower the "
        "limit to 2048",
    ),
    (
        "twin-sizes",
        {"max_num_seqs": 33},
        {"max_num_seqs": 33, "num_seqs_buckets": [1, 2, 4, 8, 16, 33]},
        "num_seqs_buckets: 32 saves at most 3.0 %",
    ),
    (
        "twin-sizes",
        {"num_batched_tokens_buckets": [480, 495, 510, 1024, 2048]},
        {"num_batched_tokens_buckets": [496, 512, 1024, 2048]},
        "495 saves at most 2.9 % of the rows beside 510, and so does 1 other size; leave such "
        "sizes out",
    ),
    (
        "twin-sizes",
        {"decode_context_length_buckets": [1536, 1568]},
        {"decode_context_length_buckets": [1567, 1568]},  # one table, for same-table
        "decode_context_length_buckets: 1536 saves at most 2.0 % of the context beside 1568; leave "
        "such sizes out",
    ),
    (
        "wide-gap",
        {"max_num_seqs": 32, "num_seqs_buckets": [1, 32]},
        {"max_num_seqs": 32, "num_seqs_buckets": [1, 4, 16, 32]},
        "up to 94 % of a step is padding; 8 in between makes that 75 %",
    ),
    (
        "large-start",
        {"num_batched_tokens_buckets": [513, 2048]},
        {"num_batched_tokens_buckets": [512, 2048]},
        "begins with 513, so that a prompt of 1 token takes as long as 513; 32 beside it",
    ),
    (
        "large-start",
        {"max_num_seqs": 32, "num_seqs_buckets": [16, 32]},
        {"max_num_seqs": 32, "num_seqs_buckets": [8, 32]},
        "begins with 16, so that 1 request takes as long as 16; 4 beside it",
    ),
    (
        "just-below",
        {"num_batched_tokens_buckets": [128, 500, 1024, 2048]},
        {"num_batched_tokens_buckets": [128, 500, 512, 1024, 2048]},
        "500 is just below 512, a length to which prompts are often cut: these run in 1024, of "
        "which 50 % is padding; 512 holds them",
    ),
    (
        "just-below",
        {"num_batched_tokens_buckets": [497, 1024, 2048]},
        {"num_batched_tokens_buckets": [496, 1024, 2048]},
        "497 is just below 512",
    ),
    (
        "large-start",
        {"max_model_len": 1024, "num_batched_tokens_buckets": [1024]},
        {"max_model_len": 512, "num_batched_tokens_buckets": [512]},
        "has 1024 only, so that a prompt of 1 token takes as long as 1024; 32 beside it",
    ),
    (
        "large-start",
        {"max_num_seqs": 16, "num_seqs_buckets": [16]},
        {"max_num_seqs": 16, "num_seqs_buckets": [4, 16]},
        "has 16 only, so that 1 request takes as long as 16; 4 beside it",
    ),
    (
        "many-graphs",
        {"max_num_seqs": 4, "decode_context_length_buckets": DENSE[:21]},
        {"max_num_seqs": 4, "decode_context_length_buckets": DENSE[:20]},
        "decode_context_length_buckets: 3 sizes of num_seqs_buckets and 22 of "
        "decode_context_length_buckets make 66 graphs, about 20 seconds of compiling",
    ),
    (
        "many-graphs",
        {"buckets": "linear", "max_model_len": 16384, "max_num_batched_tokens": 16384},
        {"buckets": "linear", "max_model_len": 16128, "max_num_batched_tokens": 16128},
        "num_batched_tokens_buckets: 65 sizes",
    ),
    (  # a fold is 128 blocks of 32 tokens
        "same-table",
        {**NEURON, "decode_context_length_buckets": [1024, 4096]},
        {**NEURON, "decode_context_length_buckets": [4096]},
        "1024 and 4096 have block tables of the same 128 columns, so the graphs of 1024 save "
        "nothing; leave 1024 out",
    ),
    (
        "same-table",
        {**SHORT, "prefill_context_length_buckets": [480, 500]},
        {**SHORT, "prefill_context_length_buckets": [480]},
        "prefill_context_length_buckets: 500 and 512",
    ),
    (
        "room-in-table",
        {**NEURON, "decode_context_length_buckets": [2048]},
        {**NEURON, "decode_context_length_buckets": [4096]},
        "2048 has a block table with room for 4096 tokens, so that longer requests take the graphs "
        "of 8192 for nothing; 4096 costs the same",
    ),
    (
        "room-in-table",
        {"decode_context_length_buckets": [1000]},
        {"decode_context_length_buckets": [992]},
        "room for 1024 tokens",
    ),
    (
        "unreachable",
        {**SHORT, "num_blocks": 17},
        {**SHORT, "num_blocks": 18},
        "32 can never be filled: num_blocks 17 have a block each for 16 requests; set max_num_seqs "
        "to 16, or raise num_blocks",
    ),
]
PREFILL = (PrefillBucket(128, 512), PrefillBucket(512, 512))
DECODE = (DecodeBucket(4, 256), DecodeBucket(8, 256), DecodeBucket(8, 512))
SECONDS = dict(zip((*PREFILL, *DECODE), (0.5, 2.0, 1.0, 1.5, 2.0), strict=True))
PLAN_CASES: list[tuple[str, dict[Bucket, float], dict[Bucket, float], str]] = [
    (
        "replaced",
        {DECODE[0]: 1.6},
        {DECODE[0]: 1.4},
        "buckets: decode_s4_c256 never run: a larger graph takes less; drop them",
    ),
    (
        "no-saving",
        {PREFILL[0]: 1.95},
        {PREFILL[0]: 1.93},
        "buckets: prefill_t128_c512 takes 1950.00 ms and prefill_t512_c512 2000.00 ms: it saves "
        "nothing that is worth compiling; drop it",
    ),
]


def findings(settings: dict[str, object]) -> tuple[Finding, ...]:
    config = parse_config({"model": "any", **settings})
    plan, limits = plan_config(config)
    return lint(config, limits, plan)


def plan_findings(changed: dict[Bucket, float]) -> tuple[Finding, ...]:
    config = parse_config({"model": "any", "max_model_len": 512})
    _, limits = plan_config(config)
    return lint(config, limits, BucketPlan(PREFILL, DECODE, seconds=SECONDS | changed))


def texts(found: tuple[Finding, ...], name: str) -> str:
    return "\n".join(finding.text for finding in found if finding.lint == name)


@pytest.mark.parametrize(
    ("name", "faulty", "fine", "text"), CASES, ids=[f"{c[0]}-{at}" for at, c in enumerate(CASES)]
)
def test_a_fault_is_found_and_its_neighbour_is_not(
    name: str, faulty: dict[str, object], fine: dict[str, object], text: str
) -> None:
    assert text in texts(findings(faulty), name)
    assert texts(findings(fine), name) == ""


@pytest.mark.parametrize(
    ("name", "faulty", "fine", "text"), PLAN_CASES, ids=[case[0] for case in PLAN_CASES]
)
def test_a_fault_of_a_plan_is_found_and_its_neighbour_is_not(
    name: str, faulty: dict[Bucket, float], fine: dict[Bucket, float], text: str
) -> None:
    assert text in texts(plan_findings(faulty), name)
    assert plan_findings(fine) == ()


def test_every_lint_has_a_case() -> None:
    cases, plan_cases = ({case[0] for case in table} for table in (CASES, PLAN_CASES))

    assert cases | plan_cases == set(LINTS)
    assert plan_cases == set(OF_PLANS)


def test_a_text_is_one_line_that_starts_with_its_setting() -> None:
    for _, faulty, _, _ in CASES:
        for finding in findings(faulty):
            assert finding.text.startswith(f"{finding.setting}: ")
            assert finding.setting in {*parse_config({"model": "any"}).to_mapping()}
            assert "\n" not in finding.text


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_have_no_fault(name: str) -> None:
    with as_file(files("noria.configs") / name) as path:
        config = load_config(path)
    plan, limits = plan_config(config)

    assert lint(config, limits, plan) == ()


@pytest.mark.parametrize("buckets", ["powers_of_two", "exponential", "linear"])
def test_the_defaults_have_no_fault(buckets: str) -> None:
    for limit in (256, 512, 1024, 2048, 4096):
        found = findings({"buckets": buckets, "max_model_len": limit, "max_num_seqs": 32})
        assert found == (), limit


def test_sizes_of_a_plan_are_not_judged_as_lists_are() -> None:
    config = parse_config({"model": "any", "num_batched_tokens_buckets": [2048]})
    plan, limits = plan_config(config)
    planned = BucketPlan(plan.prefill, plan.decode, seconds=dict.fromkeys(plan.buckets, 1.0))

    assert texts(lint(config, limits, plan), "large-start")
    assert not texts(lint(config, limits, planned), "large-start")


@pytest.mark.parametrize("sizes", [[480, 495, 1024, 2048], [64, 512, 1024, 2000, 2048]])
def test_a_lower_limit_is_proposed_where_the_limit_is_the_twin(sizes: list[int]) -> None:
    text = texts(findings({"num_batched_tokens_buckets": sizes}), "twin-sizes")

    assert text.endswith("or lower the limit to 2000" if 2000 in sizes else "leave such sizes out")


def test_a_context_is_told_once_that_its_table_is_the_next_ones() -> None:
    found = findings({**SHORT, "decode_context_length_buckets": [500]})

    assert [finding.lint for finding in found] == ["same-table"]


def test_a_graph_for_one_number_of_requests_is_not_replaced() -> None:
    config = parse_config({"model": "any", "max_model_len": 512})
    _, limits = plan_config(config)
    decode = (DecodeBucket(7, 512), DecodeBucket(8, 512))
    seconds = dict(zip((PREFILL[1], *decode), (3.0, 1.0, 2.0), strict=True))

    assert lint(config, limits, BucketPlan(PREFILL[1:], decode, seconds=seconds)) == ()


def test_the_guide_lists_every_lint() -> None:
    table = GUIDE.read_text(encoding="utf-8").partition("## Warnings")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [*LINTS]
