"""Every field that may change a graph changes its key; each is changed here, by introspection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from typing import Any

import pytest
from key_cases import ARCHITECTURE, CASES, IDENTITY, LAYOUT, kernels, key, of_bucket, of_scaling

from noria.bucketing import DecodeBucket, PrefillBucket, ScoreBucket
from noria.kernels.contract import AttentionSpec
from noria.runtime.compiled_set import identity as identity_module
from noria.runtime.compiled_set.identity import (
    GRAPH_SOURCES,
    RUNTIME,
    copy_key,
    graph_key,
    sampler_key,
    scorer_key,
    set_key,
)
from noria.runtime.compiled_set.key import key_differences, key_digest
from noria.runtime.graph_spec import GraphInput
from noria.runtime.models import rope_scaling
from noria.runtime.models.architecture import LayerKind
from noria.runtime.models.decoder import attention_specs
from noria.runtime.models.kv_scales import KVScales
from noria.runtime.models.rope_scaling import LinearScaling
from noria.runtime.sampler_stages import SamplerShape

FIELDS = [(base, one) for base in CASES for one in fields(base)]


def field_id(value: Any) -> str:
    return value.name if isinstance(value, Field) else type(value).__name__


@pytest.mark.parametrize(("base", "field"), FIELDS, ids=field_id)
def test_a_change_of_any_field_changes_the_key(base: Any, field: Field[Any]) -> None:
    make_key, changes = CASES[base]
    assert field.name in changes, f"{type(base).__name__}.{field.name} has no case here"

    old, new = make_key(base), make_key(replace(base, **{field.name: changes[field.name]}))

    assert key_digest(old) != key_digest(new)
    assert any(field.name in line for line in key_differences(old, new))
    assert json.loads(json.dumps(old)) == old == make_key(replace(base))


def test_every_type_of_value_in_a_key_has_its_cases() -> None:
    scalings = {
        one for one in vars(rope_scaling).values() if isinstance(one, type) and is_dataclass(one)
    }
    found = {type(one) for base in CASES for one in parts_of(base)} | scalings

    assert found - {type(base) for base in CASES} == set()


def parts_of(value: object) -> Iterator[object]:
    """Yield all values of dataclasses in a value."""
    if is_dataclass(value):
        yield value
        for one in fields(value):
            yield from parts_of(getattr(value, one.name))
    elif isinstance(value, tuple):
        for entry in value:
            yield from parts_of(entry)


@dataclass(frozen=True)
class NewScaling(LinearScaling):
    """Another scaling of the same numbers."""


def test_scalings_of_equal_numbers_are_told_apart() -> None:
    (line,) = key_differences(of_scaling(LinearScaling(4.0)), of_scaling(NewScaling(4.0)))

    assert line == (
        'architecture.layers[1].rope.scaling.type: "LinearScaling" in the set, "NewScaling" here'
    )


@pytest.mark.parametrize("fixes", [True, False])
def test_a_number_of_blocks_counts_where_traces_depend_on_it(fixes: bool) -> None:
    given = kernels(fixes_num_blocks=fixes)
    more = replace(IDENTITY, groups=tuple(replace(g, num_blocks=77) for g in IDENTITY.groups))

    lines = key_differences(set_key(IDENTITY, given), set_key(more, given))

    assert lines == ["groups[0-1].num_blocks: 9 in the set, 77 here"] * fixes
    assert ("num_blocks" in json.dumps(set_key(IDENTITY, given))) is fixes


SPECS: Mapping[str, dict[str, Any]] = {
    "scale": {"architecture": replace(ARCHITECTURE, attention_scale=0.3)},
    "softcap": {"architecture": replace(ARCHITECTURE, attention_softcap=50.0)},
    "window": {"architecture": replace(ARCHITECTURE, layers=(LayerKind(), LayerKind(window=4)))},
    "k_scale": {"kv_scales": (KVScales(), KVScales(k=0.5))},
    "v_scale": {"kv_scales": (KVScales(), KVScales(v=0.5))},
}


@pytest.mark.parametrize("name", [one.name for one in fields(AttentionSpec)])
def test_whatever_changes_the_attention_of_a_layer_changes_the_key(name: str) -> None:
    changed = replace(IDENTITY, **SPECS[name])
    old, new = (attention_specs(one.architecture, one.kv_scales)[1] for one in (IDENTITY, changed))

    assert replace(old, **{name: getattr(new, name)}) == new != old
    assert key_digest(key()) != key_digest(set_key(changed, kernels()))


@pytest.mark.parametrize("one", fields(GraphInput), ids=lambda one: one.name)
def test_every_part_of_an_input_counts(one: Field[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, base = DecodeBucket(2, 16), GraphInput("ids", (2,))
    changed = {"name": "other", "shape": (3,), "pad": -1}[one.name]
    keys = []
    for given in (base, replace(base, **{one.name: changed})):
        monkeypatch.setattr(identity_module, "graph_spec", lambda *_, given=given: (given,))
        keys.append(graph_key(bucket, LAYOUT))

    assert key_digest(keys[0]) != key_digest(keys[1])


def test_graphs_of_one_set_have_keys_of_their_own() -> None:
    shape = SamplerShape(8, 61, 64, 20)
    keys = [
        *(
            of_bucket(one)
            for one in (PrefillBucket(8, 16), ScoreBucket(8, 16), DecodeBucket(8, 16))
        ),
        *(sampler_key(shape, features) for features in ({"greedy"}, {"greedy", "logprobs"})),
        scorer_key(shape),
        *(copy_key(group, size) for group, size in ((0, 8), (1, 8), (0, 9))),
    ]

    assert len({key_digest(one) for one in keys}) == len(keys)


def test_scales_of_1_and_the_order_of_features_change_nothing() -> None:
    features = ("top_k_top_p", "greedy", "logprobs")
    old, new = key(sampler_features=features), key(sampler_features=features[::-1])

    assert key() == key(kv_scales=(KVScales(), KVScales()))
    assert old == new
    assert sampler_key(SamplerShape(1, 2, 3, 4), set(features)) == sampler_key(
        SamplerShape(1, 2, 3, 4), features[::-1]
    )


@pytest.mark.parametrize(
    "value", [object(), float("nan"), {1}, b"x"], ids=["object", "nan", "set", "bytes"]
)
def test_a_value_without_a_stable_text_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="has no place in the key"):
        key(max_logprobs=value)


@pytest.mark.parametrize("name", GRAPH_SOURCES)
def test_a_changed_module_of_graphs_changes_the_key(name, tmp_path, monkeypatch) -> None:
    old = key()
    for source in GRAPH_SOURCES:
        path = tmp_path / source
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((RUNTIME / source).read_bytes() + (b"#" if source == name else b""))
    monkeypatch.setattr(identity_module, "RUNTIME", tmp_path)

    (line,) = key_differences(old, key())

    assert line.startswith("runtime_sources: ")
