"""Tables of measured costs: written, read, and refused with one clear error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing import DecodeBucket
from noria.bucketing.costs.devices import device_sheet
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.table import CostTable, Device, GraphCost, StepTime
from noria.bucketing.costs.table_data import read_table, table_mapping

Make = Callable[..., CostTable]


@pytest.fixture
def table(make_table: Make, llama: ModelShape) -> CostTable:
    return make_table(lambda n, p: 1.0, lambda s, c: 2.0, graphs=(GraphCost("g", 4, 0.5, 700),))


@pytest.fixture
def data(table: CostTable) -> dict[str, Any]:
    return json.loads(json.dumps(table_mapping(table)))


def test_a_table_survives_being_written_and_read(table: CostTable, llama: ModelShape) -> None:
    table = replace(
        table,
        sheet=device_sheet("trn2"),
        others_share=0.25,
        model=replace(llama, windows=(64, 128)),
    )

    assert read_table(json.loads(json.dumps(table_mapping(table)))) == table


def test_what_is_optional_may_be_missing(data: dict[str, Any], table: CostTable) -> None:
    for key in ("graphs", "sheet", "others_share", "software"):
        del data[key]

    assert read_table(data) == replace(table, graphs=(), software={})


BAD: list[tuple[str, Any, str]] = [
    ("prefill.3.seconds", float("nan"), r"costs.prefill\[3\].seconds: nan is not a finite number"),
    ("prefill.0.seconds", float("inf"), r"costs.prefill\[0\].seconds: inf is not"),
    ("decode.1.seconds", -0.5, r"costs.decode\[1\].seconds: -0.5 is not"),
    ("decode.1.seconds", 0, r"costs.decode\[1\].seconds: 0 is not a finite number above 0"),
    ("decode.1.seconds", 10**400, r"costs.decode\[1\].seconds: 1000"),
    ("decode.1.seconds", "1", r"costs.decode\[1\].seconds: '1' is not"),
    ("decode.1.seconds", True, r"costs.decode\[1\].seconds: True is not"),
    ("decode.1.spread", -1, r"costs.decode\[1\].spread: -1 is not"),
    ("decode.0.num_rows", 0, r"costs.decode\[0\].num_rows: 0 is not a whole number of at least 1"),
    ("decode.0.num_rows", 1.5, r"costs.decode\[0\].num_rows: 1.5 is not"),
    ("decode.0.context", 0, r"costs.decode\[0\].context: 0 is not"),
    ("prefill.0.context", -1, r"costs.prefill\[0\].context: -1 is not"),
    ("prefill.0.graph", 7, r"costs.prefill\[0\].graph: 7 is not a text"),
    ("prefill.0", [], r"costs.prefill\[0\]: must be an object, not \[\]"),
    ("prefill", [], "costs.prefill: no step was measured"),
    ("decode", [], "costs.decode: no step was measured"),
    ("decode", {}, "costs.decode: must be a list"),
    ("decode", None, "costs.decode: must be a list"),
    ("graphs.0.compile_s", float("nan"), r"costs.graphs\[0\].compile_s: nan is not"),
    ("graphs.0.num_bytes", -7, r"costs.graphs\[0\].num_bytes: -7 is not"),
    ("others_share", float("nan"), "costs.others_share: nan is not"),
    ("noria_costs", 2, "costs.noria_costs: 2 is not 1"),
    ("device.num_threads", 0, "costs.device.num_threads: 0 is not"),
    ("device", "cpu", "costs.device: must be an object"),
    ("model.num_layers", 0, "costs.model.num_layers: 0 is not"),
    ("model.kv_bytes", float("nan"), "costs.model.kv_bytes: nan is not"),
    ("model.depth", 3, "costs.model.depth: is not known"),
    ("model.windows", 3, "costs.model.windows: 3 is not a list"),
    ("sheet", {}, "device.bytes_s: is missing"),
    ("sheet", 3, "device: must be a mapping"),
]


@pytest.mark.parametrize(("path", "value", "error"), BAD)
def test_a_bad_table_is_one_clear_error(
    path: str, value: Any, error: str, data: dict[str, Any]
) -> None:
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    target: Any = deepcopy(data)
    changed = target
    for key in parents:
        target = target[key]
    target[last] = value

    with pytest.raises(ValueError, match=error) as caught:
        read_table(changed)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["device", "model_name", "dtype", "model", "prefill", "decode", "num_logits_rows"]
)
def test_what_is_missing_is_named(path: str, data: dict[str, Any]) -> None:
    del data[path]

    with pytest.raises(ValueError, match=rf"costs\.{path}: is missing"):
        read_table(data)


@pytest.mark.parametrize("key", ["graph", "num_rows", "context", "seconds", "spread", "num_rounds"])
def test_what_is_missing_of_a_step_is_named(key: str, data: dict[str, Any]) -> None:
    del data["decode"][2][key]

    with pytest.raises(ValueError, match=rf"costs\.decode\[2\]\.{key}: is missing"):
        read_table(data)


@pytest.mark.parametrize("other", [None, 3, [], "{}", {"rows": []}])
def test_another_kind_of_file_is_told(other: object) -> None:
    with pytest.raises(ValueError, match=r"must be an object|noria bench shapes writes such files"):
        read_table(other)


def test_a_step_that_is_there_twice_is_refused(make_table: Make) -> None:
    with pytest.raises(ValueError, match="4 rows with context 9 are in it twice"):
        make_table(lambda n, p: 1.0, lambda s, c: 1.0, decode_shapes=[(4, 9), (2, 9), (4, 9)])


def test_a_table_is_of_one_device_and_one_model(table: CostTable, llama: ModelShape) -> None:
    table.check_same(table.device, model=llama, dtype="bfloat16")

    with pytest.raises(ValueError, match=r"on a processor, backend cpu, 2 threads, not on other"):
        table.check_same(Device("other", "cpu", 2), model=llama, dtype="bfloat16")
    with pytest.raises(ValueError, match="in bfloat16, not in float32"):
        table.check_same(table.device, model=llama, dtype="float32")
    with pytest.raises(ValueError, match="another model: its num_layers is 32, not 16"):
        table.check_same(table.device, model=replace(llama, num_layers=16), dtype="bfloat16")


def test_fees_are_lines_over_rows(table: CostTable) -> None:
    graphs = tuple(GraphCost("g", n, 0.2 + 0.01 * n, 1000 + 3 * n) for n in (1, 8, 64))

    fees = replace(table, graphs=graphs).fees

    assert fees is not None
    assert fees.compile_s(DecodeBucket(100, 1)) == pytest.approx(1.2)
    assert fees.num_bytes(DecodeBucket(100, 1)) == pytest.approx(1300)


@pytest.mark.parametrize("seconds", [(0.3, 0.2, 0.1), (0.0, 0.1, 5.0)], ids=["falls", "from 0"])
def test_fees_are_never_negative(seconds: tuple[float, ...], table: CostTable) -> None:
    graphs = tuple(GraphCost("g", n, s, 5) for n, s in zip((8, 16, 64), seconds, strict=True))

    fees = replace(table, graphs=graphs).fees

    assert fees is not None
    assert min(fees.base_compile_s, fees.row_compile_s, fees.base_bytes, fees.row_bytes) >= 0
    assert fees.num_bytes(DecodeBucket(9, 1)) == pytest.approx(5)


def test_fees_of_one_graph_are_its_own_and_of_none_unknown(table: CostTable) -> None:
    assert table.fees is not None
    assert table.fees.compile_s(DecodeBucket(1, 1)) == 0.5
    assert replace(table, graphs=()).fees is None


def places(given: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of plain data."""
    items = given.items() if isinstance(given, dict) else enumerate(given)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


SHAPE = ModelShape(
    num_layers=1,
    hidden_size=8,
    intermediate_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=9,
    windows=(4,),
)
STEP = StepTime("g", 4, 2, 0.5, 0.1, 3, 8)
WHOLE = CostTable(
    device=Device("a processor", "cpu", 2),
    model_name="a model",
    dtype="bfloat16",
    model=SHAPE,
    num_logits_rows=1,
    software={"noria": "0"},
    prefill=(STEP, replace(STEP, num_rows=8)),
    decode=(STEP,),
    graphs=(GraphCost("g", 4, 0.5, 700),),
    sheet=device_sheet("cpu"),
    others_share=0.5,
)
ODD = [None, "", "x\ny", "1", -1, 0, 1.5, 10**400, float("nan"), True, [], {}, [[]], {"a": 1}]


@settings(max_examples=400, deadline=None)
@given(drawn=st.data(), odd=st.sampled_from(ODD), is_gone=st.booleans())
def test_any_damage_is_one_line_that_names_its_place(
    drawn: st.DataObject, odd: object, is_gone: bool
) -> None:
    given_data = json.loads(json.dumps(table_mapping(WHOLE)))
    *path, key = drawn.draw(st.sampled_from(list(places(given_data))))
    at = given_data
    for one in path:
        at = at[one]
    if is_gone:
        del at[key]
    else:
        at[key] = odd

    problem = "costs: none"
    try:
        read_table(given_data)
    except ValueError as error:
        problem = str(error)
    assert re.match(r"(costs|device)(\.|: ).*$", problem), problem
    assert not re.search("\n|argument|object is not|__init__", problem), problem
