"""Tables of measured steps as plain data: what a JSON file holds, checked when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from .devices import read_sheet, sheet_mapping
from .model_shape import ModelShape
from .numbers import finite_number
from .table import CostTable, Device, GraphCost, StepTime

FORMAT = 1
FORMAT_KEY = "noria_costs"
MODEL_KEYS = tuple(field.name for field in fields(ModelShape))


def table_mapping(table: CostTable) -> dict[str, object]:
    """Return a table as plain data, which ``read_table`` reads back."""
    return {
        FORMAT_KEY: FORMAT,
        "device": _mapping(table.device),
        "software": dict(table.software),
        "model_name": table.model_name,
        "dtype": table.dtype,
        "num_logits_rows": table.num_logits_rows,
        "others_share": table.others_share,
        "sheet": None if table.sheet is None else sheet_mapping(table.sheet),
        "model": model_mapping(table.model),
        "prefill": [_mapping(step) for step in table.prefill],
        "decode": [_mapping(step) for step in table.decode],
        "graphs": [_mapping(graph) for graph in table.graphs],
    }


def read_table(given: object) -> CostTable:
    """Return a table from plain data, as a JSON file holds it.

    Raises:
        ValueError: one line with the key, its value and what would fit.
    """
    values = _object("costs", given)
    if FORMAT_KEY not in values:
        raise ValueError(f"costs.{FORMAT_KEY}: is missing; noria bench shapes writes such files")
    if values[FORMAT_KEY] != FORMAT:
        raise ValueError(f"costs.{FORMAT_KEY}: {values[FORMAT_KEY]!r} is not {FORMAT}")
    device = _object("costs.device", _get("costs", values, "device"))
    return CostTable(
        device=Device(
            name=_text("costs.device", device, "name"),
            backend=_text("costs.device", device, "backend"),
            num_threads=read_count("costs.device", device, "num_threads", 1),
        ),
        software={
            str(key): str(value)
            for key, value in _object("costs.software", values.get("software", {})).items()
        },
        model_name=_text("costs", values, "model_name"),
        dtype=_text("costs", values, "dtype"),
        model=read_model(_get("costs", values, "model")),
        num_logits_rows=read_count("costs", values, "num_logits_rows", 1),
        prefill=tuple(_steps(values, "prefill", 0)),
        decode=tuple(_steps(values, "decode", 1)),
        graphs=tuple(_graphs(values.get("graphs", []))),
        sheet=None if values.get("sheet") is None else read_sheet(values["sheet"]),
        others_share=_share(values.get("others_share")),
    )


def model_mapping(model: ModelShape) -> dict[str, object]:
    """Return a model's sizes as plain data, which ``read_model`` reads back."""
    return _mapping(model) | {"windows": list(model.windows)}


def read_model(given: object) -> ModelShape:
    """Return a model's sizes from plain data.

    Raises:
        ValueError: one line with the key, its value and what would fit.
    """
    values = _object("costs.model", given)
    if unknown := sorted(set(values) - set(MODEL_KEYS)):
        raise ValueError(f"costs.model.{unknown[0]}: is not known")
    windows = values.get("windows", [])
    if not isinstance(windows, list):
        raise ValueError(f"costs.model.windows: {windows!r} is not a list")
    needed = [one.name for one in fields(ModelShape) if one.default is MISSING]
    if missing := [key for key in needed if key not in values]:
        raise ValueError(f"costs.model.{missing[0]}: is missing")
    try:
        return ModelShape(**(values | {"windows": tuple(windows)}))
    except ValueError as error:
        raise ValueError(f"costs.model.{error}") from None


def _steps(values: Mapping[str, object], phase: str, least_context: int) -> Iterable[StepTime]:
    for at, step in _list(f"costs.{phase}", _get("costs", values, phase)):
        yield StepTime(
            graph=_text(at, step, "graph"),
            num_rows=read_count(at, step, "num_rows", 1),
            context=read_count(at, step, "context", least_context),
            seconds=_number(at, step, "seconds", is_above_zero=True),
            spread=_number(at, step, "spread"),
            num_rounds=read_count(at, step, "num_rounds", 1),
            graph_context=_room(at, step),
        )


def _room(at: str, step: Mapping[str, object]) -> int | None:
    """Return the context of a step's graph; older files do not say."""
    if step.get("graph_context") is None:
        return None
    return read_count(at, step, "graph_context", read_count(at, step, "context", 0))


def _graphs(given: object) -> Iterable[GraphCost]:
    for at, graph in _list("costs.graphs", given):
        yield GraphCost(
            graph=_text(at, graph, "graph"),
            num_rows=read_count(at, graph, "num_rows", 1),
            compile_s=_number(at, graph, "compile_s"),
            num_bytes=read_count(at, graph, "num_bytes", 0),
        )


def _list(at: str, given: object) -> Iterable[tuple[str, Mapping[str, object]]]:
    if not isinstance(given, list):
        raise ValueError(f"{at}: must be a list")
    for index, entry in enumerate(given):
        yield f"{at}[{index}]", _object(f"{at}[{index}]", entry)


def _object(at: str, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{at}: must be an object, not {given!r:.60}")
    return dict(given)


def _get(at: str, values: Mapping[str, object], key: str) -> object:
    if key not in values:
        raise ValueError(f"{at}.{key}: is missing")
    return values[key]


def _text(at: str, values: Mapping[str, object], key: str) -> str:
    value = _get(at, values, key)
    if not isinstance(value, str):
        raise ValueError(f"{at}.{key}: {value!r} is not a text")
    return value


def read_count(at: str, values: Mapping[str, object], key: str, least: int) -> int:
    """Return a whole number from plain data.

    Raises:
        ValueError: it is missing, none, or below ``least``; names its place.
    """
    value = _get(at, values, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{at}.{key}: {value!r} is not a whole number of at least {least}")
    return value


def _number(
    at: str, values: Mapping[str, object], key: str, *, is_above_zero: bool = False
) -> float:
    value = _get(at, values, key)
    number = finite_number(value)
    if number is None or number < 0 or (is_above_zero and not number):
        fits = "above 0" if is_above_zero else "of at least 0"
        raise ValueError(f"{at}.{key}: {value!r:.60} is not a finite number {fits}")
    return number


def _share(value: object) -> float | None:
    return None if value is None else _number("costs", {"others_share": value}, "others_share")


def _mapping(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
