"""Rules about dtypes: what devices lack, and what their compiler refuses on integers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, fx

from .capture import operator_name
from .dataflow import is_view, operands, tensors_of
from .rules import Rule, each_call, each_value

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOAT8_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
MATMULS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot", "addmv", "_int_mm", "matmul")
SCATTERS_THAT_COMPUTE = ("scatter_add", "scatter_reduce", "index_add", "index_reduce")
SCATTERS = ("scatter", "index_put", "index_copy", "masked_scatter", *SCATTERS_THAT_COMPUTE)
SORTS = ("sort", "argsort", "msort")
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
RIGHT_SHIFTS = ("__rshift__", "bitwise_right_shift")
INDEX_OPERATORS = (
    *("argmax", "argmin", "sort", "argsort", "topk", "max", "min"),
    *("gather", "scatter", "index", "index_select", "index_put", "embedding"),
    *("_to_copy", "clone", "alias", "detach", "lift_fresh_copy"),
)
"""Make, move or use indices, which torch wants to be int64; none computes with them."""
HAVE_RULES = (*MATMULS, *SCATTERS_THAT_COMPUTE, "pow")
"""Compute with int64, which other rules say of them."""
CONVERSIONS_PAGE = "compiler pages, SDK 2.32, of the defaults of 2.33"
UNKNOWN = "assumed: no list of operators that could be read vouches for it"


def base_name(node: fx.Node) -> str:
    """Return an operator's name without namespace and overload."""
    return operator_name(node).split(".")[1]


def _has_dtype(dtypes: Collection[torch.dtype], text: str) -> Callable[[object], str | None]:
    def problem(value: object) -> str | None:
        found = [one.dtype for one in tensors_of(value) if one.dtype in dtypes]
        return text.format(str(found[0]).removeprefix("torch.")) if found else None

    return problem


def _is_complex(value: object) -> str | None:
    return "gives complex numbers" if any(one.is_complex() for one in tensors_of(value)) else None


def _takes(
    names: Sequence[str], dtypes: Collection[torch.dtype], text: str
) -> Callable[[fx.Node], str | None]:
    """Return a problem of operators of these names that work on data of these dtypes."""

    def problem(node: fx.Node) -> str | None:
        if base_name(node) not in names:
            return None
        data = _data(node)
        return text if data is not None and data.dtype in dtypes else None

    return problem


def _data(node: fx.Node) -> Tensor | None:
    """Return the first tensor of a call, which is what it works on; lists of indices are not."""
    found = operands(node)
    return found[0] if found else None


def _computes_with_int64(node: fx.Node) -> str | None:
    values = [*operands(node), *tensors_of(node.meta.get("val"))]
    if base_name(node) in (*INDEX_OPERATORS, *HAVE_RULES) or is_view(node):
        return None
    return "computes with int64" if any(one.dtype == torch.int64 for one in values) else None


def _scatters_integers(node: fx.Node) -> str | None:
    accumulates = base_name(node) == "index_put" and True in node.args[3:4]
    reduces = operator_name(node) in ("aten.scatter.reduce", "aten.scatter.value_reduce")
    if base_name(node) not in SCATTERS_THAT_COMPUTE and not accumulates and not reduces:
        return None
    data = _data(node)
    is_whole = data is not None and data.dtype in (*INTEGERS, torch.bool)
    return "adds up or reduces integers" if is_whole else None


def _shifts(node: fx.Node) -> str | None:
    data = _data(node)
    if base_name(node) not in RIGHT_SHIFTS or data is None or data.dtype == torch.int32:
        return None
    return f"shifts {str(data.dtype).removeprefix('torch.')}"


def _wide_constant(node: fx.Node) -> str | None:
    """Find a number that does not fit 32 bits, other than an end of a slice."""
    numbers = [one for one in node.args if type(one) is int]
    wide = [one for one in numbers if not -(2**31) <= one < 2**32]
    is_whole = any(one.dtype in INTEGERS for one in tensors_of(node.meta.get("val")))
    if not wide or not is_whole or base_name(node) == "slice":
        return None
    return f"the number {wide[0]} takes more than 32 bits"


def fp8_rule(target: str) -> Rule:
    """Return the rule about FP8 formats of a device generation."""
    refused = FLOAT8_FNUZ if target == "trn3" else (*FLOAT8_FNUZ, torch.float8_e4m3fn)
    return Rule(
        "fp8-format",
        f"No FP8 format that {target} lacks",
        "compiler errors NCC_EVRF051 (float8_e4m3fn on trn1 and trn2) and NCC_EVRF005, SDK 2.32",
        each_value(_has_dtype(refused, "{}, which " + target + " does not have")),
    )


DTYPE_RULES = (
    Rule(
        "no-float64",
        "No float64",
        "assumed, from TorchNeuron's source of April 2026: float64 becomes float32 unasked",
        each_value(_has_dtype((torch.float64,), "{}")),
    ),
    Rule(
        "no-complex",
        "No complex numbers",
        "compiler error NCC_EVRF004, SDK 2.32",
        each_value(_is_complex),
    ),
    Rule(
        "int64-indices-only",
        "int64 serves as indices and for nothing that computes",
        f"{CONVERSIONS_PAGE}: int64 is no longer made int32 unasked",
        each_call(_computes_with_int64),
    ),
    Rule(
        "no-integer-matmul",
        "No matrix product of integers",
        f"compiler error NCC_EVRF035; {CONVERSIONS_PAGE}",
        each_call(_takes(MATMULS, INTEGERS, "multiplies matrices of integers")),
    ),
    Rule(
        "no-integer-topk",
        "No topk of integers",
        "compiler error NCC_EVRF013, SDK 2.32",
        each_call(_takes(("topk",), INTEGERS, "ranks integers")),
    ),
    Rule(
        "no-integer-scatter-reduce",
        "No scatter that adds up or reduces integers or bools",
        "compiler errors NCC_EVRF060 and NCC_EVRF016, SDK 2.32",
        each_call(_scatters_integers),
    ),
    Rule(
        "no-int64-pow",
        "No power of int64",
        "compiler error NCC_EVRF062, SDK 2.32",
        each_call(_takes(("pow",), (torch.int64,), "is a power of int64")),
    ),
    Rule(
        "shift-32-bits",
        "Only 32-bit integers are shifted right",
        "compiler error NCC_EVRF022, SDK 2.32",
        each_call(_shifts),
    ),
    Rule(
        "constants-32-bits",
        "No constant takes more than 32 bits",
        "compiler error NCC_ESFH002, SDK 2.32",
        each_call(_wide_constant),
    ),
    Rule(
        "no-bool-scatter",
        "No scatter of bools",
        UNKNOWN,
        each_call(_takes(SCATTERS, (torch.bool,), "scatters bools")),
    ),
    Rule(
        "no-bool-scan",
        "No running sum of bools",
        UNKNOWN,
        each_call(_takes(SCANS, (torch.bool,), "runs over bools")),
    ),
    Rule(
        "no-bool-sort",
        "No sort of bools",
        UNKNOWN,
        each_call(_takes((*SORTS, "topk"), (torch.bool,), "sorts bools")),
    ),
)
