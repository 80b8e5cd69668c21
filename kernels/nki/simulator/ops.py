"""Operator tokens of ``nki.language``: what each computes in fp32, and where it may be used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import Array
from .errors import fail

Binary = Callable[[Any, Any], Any]
Unary = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Op:
    """One operator.

    Attributes:
        name: as in ``nl.<name>``.
        binary: two-operand form of the Vector Engine, None if there is none.
        unary: one-operand form of the Vector Engine.
        activation: form of the Scalar Engine.
        lowest, highest: magnitudes between which the Scalar Engine's form is valid.
        reduces: whether a reduction may use it.
        bitvec: whether it takes bit patterns of integers.
        identity: initial value of accumulators.
    """

    name: str
    binary: Binary | None = None
    unary: Unary | None = None
    activation: Unary | None = None
    lowest: float = 0.0
    highest: float = math.inf
    reduces: bool = False
    bitvec: bool = False
    identity: float | None = None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Refuse: the token is simulated as an operator of ``nki.isa`` instructions only."""
        fail(f"nl.{self.name} is simulated as an op of nki.isa only; call an instruction")

    def __repr__(self) -> str:
        """Name the token as kernels write it."""
        return f"nl.{self.name}"


def _truth(compare: Binary) -> Binary:
    return lambda x, y: compare(x, y).astype(np.result_type(x))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float32])(x))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + _erf(x / np.float32(math.sqrt(2)))))


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


add = Op("add", np.add, reduces=True, identity=0.0)
subtract = Op("subtract", np.subtract, reduces=True)
multiply = Op("multiply", np.multiply, reduces=True, identity=1.0)
maximum = Op("maximum", np.maximum, reduces=True, identity=-math.inf)
minimum = Op("minimum", np.minimum, reduces=True, identity=math.inf)
power = Op("power", np.power)
abs_max = Op("abs_max", lambda x, y: np.maximum(np.abs(x), np.abs(y)))
abs_min = Op("abs_min", lambda x, y: np.minimum(np.abs(x), np.abs(y)))
equal = Op("equal", _truth(np.equal))
not_equal = Op("not_equal", _truth(np.not_equal))
less = Op("less", _truth(np.less))
less_equal = Op("less_equal", _truth(np.less_equal))
greater = Op("greater", _truth(np.greater))
greater_equal = Op("greater_equal", _truth(np.greater_equal))
logical_and = Op("logical_and", _truth(np.logical_and), reduces=True)
logical_or = Op("logical_or", _truth(np.logical_or), reduces=True)
logical_xor = Op("logical_xor", _truth(np.logical_xor), reduces=True)
bitwise_and = Op("bitwise_and", np.bitwise_and, reduces=True, bitvec=True)
bitwise_or = Op("bitwise_or", np.bitwise_or, reduces=True, bitvec=True)
bitwise_xor = Op("bitwise_xor", np.bitwise_xor, reduces=True, bitvec=True)
left_shift = Op("left_shift", np.left_shift, bitvec=True)
right_shift = Op("right_shift", np.right_shift, bitvec=True)
invert = Op("invert", unary=np.invert, bitvec=True)
bypass = Op("bypass", unary=lambda x: x)
abs_ = Op("abs", unary=np.abs, activation=np.abs)
square = Op("square", unary=np.square, activation=np.square)
relu = Op("relu", unary=lambda x: np.maximum(x, 0), activation=lambda x: np.maximum(x, 0))
rsqrt = Op("rsqrt", None, lambda x: 1 / np.sqrt(x), lambda x: 1 / np.sqrt(x), 2.0**-87, 2.0**97)
reciprocal = Op("reciprocal", None, lambda x: 1 / x, lambda x: 1 / x, 2.0**-42, 2.0**42)
copy = Op("copy", activation=lambda x: x)
exp = Op("exp", activation=np.exp)
log = Op("log", activation=np.log, lowest=2.0**-64, highest=2.0**64)
sqrt = Op("sqrt", activation=np.sqrt, lowest=2.0**-116, highest=2.0**118)
sin = Op("sin", activation=np.sin, highest=math.pi)
arctan = Op("arctan", activation=np.arctan, highest=math.pi / 2)
sign = Op("sign", activation=np.sign)
tanh = Op("tanh", activation=np.tanh)
sigmoid = Op("sigmoid", activation=_sigmoid)
silu = Op("silu", activation=lambda x: x * _sigmoid(x))
softplus = Op("softplus", activation=lambda x: np.logaddexp(x, np.float32(0)))
erf = Op("erf", activation=_erf)
gelu = Op("gelu", activation=_gelu)
gelu_apprx_tanh = Op("gelu_apprx_tanh", activation=_gelu_tanh)
gelu_apprx_sigmoid = Op(
    "gelu_apprx_sigmoid", activation=lambda x: x * _sigmoid(np.float32(1.702) * x)
)

TOKENS = {value.name: value for value in list(globals().values()) if isinstance(value, Op)}


def checked_op(op: object, role: str = "op") -> Op:
    """Return an operator.

    Raises:
        SimulationError: it is no token of ``nki.language``.
    """
    if not isinstance(op, Op):
        fail(f"{role} must be an operator such as nl.add, got {op!r}")
    return op
