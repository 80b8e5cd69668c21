"""``buckets`` may be a plan: where it is read from, what it means, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from plans import LIMITS, plan_data

from noria.bucketing import CoverPolicy, FillPolicy, PlanFile
from noria.runtime.config import Config, load_config, parse_config
from noria.runtime.errors import ConfigError
from noria.runtime.planning import bucket_plan, plan_limits, step_policy

SETTINGS: dict[str, Any] = {"model": "x", **LIMITS}
CHUNKS = ((1, 16), (17, 40), (41, 64))
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a configuration that names a plan file, which lies in a folder beside it."""

    def written(plan: object, **changes: object) -> Path:
        (tmp_path / "plans").mkdir()
        text = plan if isinstance(plan, str) else yaml.safe_dump(plan)
        (tmp_path / "plans" / "chat.yaml").write_text(text)
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump({**SETTINGS, "buckets": "plans/chat.yaml", **changes}))
        return config

    return written


def limits_of(config: Config):
    return plan_limits(config)


def test_a_path_starts_from_the_folder_of_the_configuration(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(plan_data())
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    config = load_config(path)

    assert config.buckets == PlanFile.from_mapping(plan_data())
    assert config == parse_config({**SETTINGS, "buckets": plan_data()})


def test_a_path_in_a_mapping_starts_from_the_working_directory(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(plan_data())
    monkeypatch.chdir(path.parent)

    config = parse_config({**SETTINGS, "buckets": "plans/chat.yaml"})

    assert config == load_config(path)


def test_a_resolved_configuration_holds_its_plan(write: Write) -> None:
    plan = plan_data(chunks=CHUNKS) | {"about": {"trace": {"name": "chat.csv"}, "shares": [0.5]}}
    config = load_config(write(plan))

    mapping = config.to_mapping()

    assert parse_config(yaml.safe_load(yaml.safe_dump(mapping))) == config
    assert mapping["buckets"]["about"] == plan["about"]


def test_the_graphs_are_those_of_the_plan() -> None:
    plan = plan_data() | {"order": ["decode_s4_c64", "prefill_t64_c64", "decode_s1_c32"]}
    plan["order"] += ["prefill_t16_c64", "prefill_t40_c64"]
    plan["order"] += ["decode_s2_c16", "decode_s3_c40", "decode_s2_c64"]
    config = parse_config({**SETTINGS, "buckets": plan})

    buckets = bucket_plan(config, limits_of(config))

    assert [one.label for one in buckets.buckets[2:]] == plan["order"][2:]
    assert buckets.pick_decode(2, 17).label == "decode_s2_c64"
    assert config.num_batched_tokens_buckets == (16, 40, 64)
    assert config.num_seqs_buckets == (1, 2, 3, 4)
    assert config.decode_context_length_buckets == (16, 32, 40, 64)
    assert config.prefill_context_length_buckets == (64,)


def test_a_plan_has_a_score_graph_where_prompts_are_scored() -> None:
    settings = {**SETTINGS, "sampler_features": ["greedy", "top_k_top_p", "prompt_logprobs"]}
    config = parse_config({**settings, "buckets": plan_data()})

    assert [one.label for one in bucket_plan(config, limits_of(config)).score] == ["score_t16_c64"]


@pytest.mark.parametrize("chunks", [(), CHUNKS], ids=["fill", "cover"])
def test_prompts_fill_steps_as_the_plan_says(chunks: tuple[tuple[int, int], ...]) -> None:
    config = parse_config({**SETTINGS, "buckets": plan_data(chunks=chunks)})

    policy = step_policy(config, limits_of(config))

    assert isinstance(policy, CoverPolicy if chunks else FillPolicy)
    assert policy.pack([17, 3, 20]) == (17, 3, 20)
    assert policy.pack([70]) == (64,)
    assert policy.pack([9, 1, 1, 1, 1]) == (9, 1, 1, 1)


def test_without_a_plan_prompts_fill_the_largest_graph() -> None:
    config = parse_config({"model": "x", "max_model_len": 256, "max_num_seqs": 2})

    assert step_policy(config, limits_of(config)) == FillPolicy(256, 2)


REFUSED = {
    "limits.max_num_seqs: is 4 in the plan; 8 in the configuration: make them equal": {
        "max_num_seqs": 8
    },
    "limits.max_model_len: is 64 in the plan; 128 in the configuration": {"max_model_len": 128},
    "limits.max_num_prefill_seqs: is 4 in the plan; 2 in": {"max_num_prefill_seqs": 2},
    "limits.max_num_batched_tokens: is 64 in the plan; 96 in": {"max_num_batched_tokens": 96},
    "limits.block_size: is 8 in the plan; 16 in": {"block_size": 16},
    "limits.prefill_tile: is 1 in the plan; 128 on backend neuron-sim: make a plan for this": {
        "backend": "neuron-sim",
        "max_num_batched_tokens": 128,
        "max_model_len": 128,
        "plan": {"max_num_batched_tokens": 128, "max_model_len": 128},
    },
    "limits.num_speculative_tokens: is 2 in the plan; must be 0, as nothing is speculated": {
        "plan": {"num_speculative_tokens": 2}
    },
}


@pytest.mark.parametrize(("message", "changes"), REFUSED.items(), ids=lambda one: str(one)[:40])
def test_a_plan_for_other_limits_is_refused(
    write: Write, message: str, changes: dict[str, Any]
) -> None:
    given = {**changes}
    limits = given.pop("plan", {})
    longest = limits.get("max_model_len", 64)
    plan = plan_data((16, longest), ((1, 32), (4, longest)), **limits)
    path = write(plan, **given)

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert str(caught.value).startswith(f"{path}: buckets: plans/chat.yaml: {message}")


@pytest.mark.parametrize(
    "key",
    [
        "num_batched_tokens_buckets",
        "num_seqs_buckets",
        "prefill_context_length_buckets",
        "decode_context_length_buckets",
    ],
)
def test_lists_beside_a_plan_are_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**SETTINGS, "buckets": plan_data(), key: [2, 4]})

    assert str(caught.value) == (
        f"config: {key}: is written, and buckets is a plan; set only one of them"
    )
    assert parse_config({**SETTINGS, "buckets": plan_data(), key: None}).buckets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1, column 5"),
        ("- 3", "plan: is [3]; it must be a mapping"),
        ("", "plan: is None; it must be a mapping"),
        ("noria_plan: 1", "plan: lacks decode, limits, prefill"),
        ("a: 1\na: 2", "a: written twice, in lines 1 and 2; keep one"),
        ("x: 0x1" + "0" * 4000, "plan: lacks"),
        ("noria_plan: 0x1" + "0" * 5000, "plan: lacks"),
        ('"a\\nb": 1', "plan: lacks"),
    ],
)
def test_a_file_without_a_plan_is_refused(write: Write, text: str, message: str) -> None:
    path = write(text)

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert str(caught.value).startswith(f"{path}: buckets: plans/chat.yaml: {message}")
    assert "\n" not in str(caught.value)


def test_a_plan_that_no_engine_can_run_is_refused_by_its_place(write: Write) -> None:
    path = write(plan_data((16, 32)))

    with pytest.raises(ConfigError, match=r"buckets: plans/chat\.yaml: prefill\.graphs: the larg"):
        load_config(path)
    with pytest.raises(ConfigError, match=r"^config: buckets: prefill\.graphs: the largest"):
        parse_config({**SETTINGS, "buckets": plan_data((16, 32))})


@pytest.mark.parametrize("path", ["missing.yaml", "", "a\0b", "9" * 5000, "~nobody-here/plan.yaml"])
def test_a_path_without_a_file_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**SETTINGS, "buckets": path})

    assert str(caught.value).startswith("config: buckets: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "seconds", [10**400, 10**5000, "1", None, [1]], ids=["float", "text", "quoted", "null", "list"]
)
def test_numbers_that_are_none_are_refused(seconds: object) -> None:
    plan = plan_data()
    plan["decode"]["graphs"][0][2] = seconds

    with pytest.raises(ConfigError, match=r"^config: buckets: "):
        parse_config({**SETTINGS, "buckets": plan})


def test_contexts_are_whole_tiles_where_the_backend_has_tiles() -> None:
    sizes = {"max_num_batched_tokens": 128, "max_model_len": 256}
    limits = {**sizes, "prefill_tile": 128, "fold_blocks": 128}
    settings = {**SETTINGS, "backend": "neuron-sim", **sizes}
    good = plan_data((128,), ((4, 128), (4, 256)), **limits)
    bad = plan_data((128,), ((4, 130), (4, 256)), **limits)

    assert parse_config({**settings, "buckets": good}).target == "trn2"
    with pytest.raises(ConfigError, match=r"decode_s4_c130: has a context of 130; must be a mult"):
        parse_config({**settings, "buckets": bad})


def test_a_plan_of_too_many_graphs_is_refused() -> None:
    decode = [(num_seqs, context) for num_seqs in range(1, 65) for context in range(1, 65)]
    settings = {**SETTINGS, "max_num_seqs": 64}
    plan = plan_data(decode=decode, max_num_seqs=64)

    with pytest.raises(ConfigError, match=r"buckets: has 4099 graphs; a plan has at most 4096"):
        parse_config({**settings, "max_num_prefill_seqs": 4, "buckets": plan})
