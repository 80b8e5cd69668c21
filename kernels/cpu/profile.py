"""What the commands of a program are, how much work they have, and how long they took."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from torch import Tensor

from .native import Call

_DTYPE_SUFFIXES = re.compile(r"(_(f32|bf16|fp8))+$")


@dataclass(frozen=True, slots=True)
class CommandTime:
    """One command of one run.

    Attributes:
        operator: its name; a linear layer's has its inputs and outputs.
        flop: operations of matrix products, two per multiplication; 0 where there is none. Of
            experts, that and the bytes are the most that its rows can need.
        num_bytes: bytes that it must read and write at least once.
        seconds: from the end of the command before to its own.
    """

    operator: str
    flop: int
    num_bytes: int
    seconds: float


def timed(call: Call, seconds: float) -> CommandTime:
    """Describe a call that took so long, with the step that its buffers hold now."""
    name = _DTYPE_SUFFIXES.sub("", call.kernel)
    if name.startswith("linear"):
        rows, inputs, outputs = (_size(call, index) for index in (4, 5, 6))
        flop = 2 * rows * inputs * outputs
        return CommandTime(f"linear {inputs}x{outputs}", flop, _tensor_bytes(call), seconds)
    if name == "attend":
        return CommandTime(name, *_attention(call), seconds)
    if name in _EXPERT_ARGS:
        return _expert_time(call, name, seconds)
    if name in ("take_rows", "take_scaled_rows"):
        return CommandTime(name, 0, 2 * _bytes(call.args[2]), seconds)
    if name == "rope":
        return CommandTime(
            name, 0, sum(_bytes(call.args[index]) for index in (0, 1, 2, 5)), seconds
        )
    if name == "copy_blocks":
        copied = int((_tensor(call, 1) >= 0).sum()) * _size(call, 5)
        return CommandTime(name, 0, 2 * copied, seconds)
    if name == "write_kv":
        itemsizes = _tensor(call, 0).itemsize + _tensor(call, 2).itemsize
        return CommandTime(name, 0, 2 * _size(call, 5) * _size(call, 8) * itemsizes, seconds)
    return CommandTime(name, 0, _tensor_bytes(call), seconds)


_EXPERT_ARGS = {"expert_gate_up": (3, 4, 2), "expert_down": (2, 3, 1)}
"""Where the weights and the result are (two sizes follow), and matrices per expert."""


def _expert_time(call: Call, name: str, seconds: float) -> CommandTime:
    """Count every row at all of its experts, as if none were padding and no two shared one."""
    weights_at, out_at, matrices = _EXPERT_ARGS[name]
    starts, packed, out = _tensor(call, 1), _tensor(call, weights_at), _tensor(call, out_at)
    inputs, outputs = _size(call, out_at + 1), _size(call, out_at + 2) * matrices
    num_rows, num_experts = out.shape[0], starts.numel() - 1
    read = packed.nbytes // num_experts * min(num_rows, num_experts) + _bytes(call.args[0])
    flop = 2 * num_rows * inputs * outputs
    return CommandTime(f"{name} {inputs}x{outputs}", flop, read + out.nbytes, seconds)


def _attention(call: Call) -> tuple[int, int]:
    """Return operations and bytes of the tokens that are there; padding has none."""
    q, out = _tensor(call, 0), _tensor(call, 7)
    heads, kv_heads, dim = (_size(call, index) for index in (15, 16, 17))
    lens = zip(_tensor(call, 5).tolist(), _tensor(call, 6).tolist(), strict=True)
    window = _size(call, 23) or sys.maxsize
    seen = stored = 0
    for context, queries in lens:
        seen += sum(min(context + token + 1, window) for token in range(queries))
        stored += min(context + queries, window + queries - 1) if queries else 0
    itemsize = _tensor(call, 1).itemsize
    num_bytes = 2 * stored * kv_heads * dim * itemsize + _bytes(q) + _bytes(out)
    return 4 * heads * dim * seen, num_bytes


def _size(call: Call, index: int) -> int:
    value = call.args[index]
    assert isinstance(value, int)
    return value


def _tensor(call: Call, index: int) -> Tensor:
    value = call.args[index]
    assert isinstance(value, Tensor)
    return value


def _bytes(value: object) -> int:
    return value.numel() * value.itemsize if isinstance(value, Tensor) else 0


def _tensor_bytes(call: Call) -> int:
    return sum(map(_bytes, call.args))
