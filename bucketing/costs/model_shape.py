"""What a model asks of a device in one step: operations and bytes, from its sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from .cost import Floats
from .numbers import finite_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder, as far as they decide what a step costs.

    Norms, biases, rope and activations are left out: they are small beside products of matrices.

    Attributes:
        intermediate_size: of layers without experts.
        weight_bytes: of one weight; a fraction where formats have scales.
        kv_bytes: of one cached value.
        num_expert_layers: layers whose MLP is ``num_experts`` experts of
            ``expert_intermediate_size``, of which each row uses ``num_experts_per_row``.
        windows: of the layers that see only so many tokens, one entry per layer.
        reads_embedding: count the table of embeddings as read besides the head, as figures do
            that take the bytes of a whole checkpoint. A step really reads one row per token.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    num_expert_layers: int = 0
    num_experts: int = 0
    num_experts_per_row: int = 0
    expert_intermediate_size: int = 0
    windows: tuple[int, ...] = ()
    reads_embedding: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that no model has."""
        for field in fields(self):
            if field.name not in ("windows", "reads_embedding"):
                _check_size(field.name, getattr(self, field.name), _may_be_zero(field.name))
        for window in self.windows:
            _check_size("windows", window)
        for name in ("num_expert_layers", "windows"):
            value = getattr(self, name)
            count = len(value) if isinstance(value, tuple) else value
            if count > self.num_layers:
                raise ValueError(f"{name}: {count} layers of {self.num_layers}")
        if self.num_experts_per_row > self.num_experts:
            raise ValueError(
                f"num_experts_per_row: {self.num_experts_per_row} of {self.num_experts} experts"
            )
        if self.num_expert_layers and not self.num_experts_per_row:
            raise ValueError("num_experts_per_row: is 0 in a model with experts")

    @property
    def num_row_params(self) -> int:
        """Weights that every row is multiplied with, the head and experts left out."""
        q_dim, kv_dim = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.num_layers * self.hidden_size * (2 * q_dim + 2 * kv_dim)
        num_dense = self.num_layers - self.num_expert_layers
        mlps = num_dense * 3 * self.hidden_size * self.intermediate_size
        routers = self.num_expert_layers * self.hidden_size * self.num_experts
        return attention + mlps + routers

    @property
    def num_expert_params(self) -> int:
        """Weights of one expert, of all layers together."""
        return self.num_expert_layers * 3 * self.hidden_size * self.expert_intermediate_size

    @property
    def num_head_params(self) -> int:
        """Weights that turn a row into logits."""
        return self.hidden_size * self.vocab_size

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token's keys and values in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.kv_bytes

    def read_bytes(self, num_rows: ArrayLike) -> Floats:
        """Return the bytes of weights that a step of so many rows reads.

        Of E experts, n rows that choose k each at random touch E (1 - (1 - k / E)^n).
        """
        rows = np.asarray(num_rows, dtype=np.float64)
        touched = np.zeros_like(rows)
        if self.num_expert_layers:
            missed = 1 - self.num_experts_per_row / self.num_experts
            touched = self.num_experts * (1 - missed**rows)
        tables = self.num_head_params * (2 if self.reads_embedding else 1)
        read: Floats = self.num_row_params + tables + touched * self.num_expert_params
        return read * self.weight_bytes

    def linear_flop(self, num_rows: ArrayLike, num_logits_rows: ArrayLike) -> Floats:
        """Return the operations of all products with weights."""
        rows = np.asarray(num_rows, dtype=np.float64)
        logits_rows = np.asarray(num_logits_rows, dtype=np.float64)
        used = self.num_row_params + self.num_experts_per_row * self.num_expert_params
        flop: Floats = 2 * (used * rows + self.num_head_params * logits_rows)
        return flop

    def attention_flop(self, num_rows: ArrayLike, prefix_lens: ArrayLike) -> Floats:
        """Return the operations of causal attention: 4 per head value and pair of tokens.

        Rows attend to the prefix and to half of each other: 2 L d n^2 + 4 L d n p.
        """
        rows, prefix = _pair(num_rows, prefix_lens)
        pairs = (self.num_layers - len(self.windows)) * (rows * prefix + rows**2 / 2)
        for window, count in self._windows.items():
            growing = np.clip(window - prefix, 0, rows)
            full = (rows - growing) * window
            pairs = pairs + count * (growing * prefix + growing**2 / 2 + full)
        flop: Floats = 4 * self.num_heads * self.head_dim * pairs
        return flop

    def row_attention_flop(self, context_lens: ArrayLike) -> Floats:
        """Return the operations of one row that attends to so many tokens, its own included."""
        flop: Floats = 4 * self.num_heads * self.head_dim * self._seen_tokens(context_lens)
        return flop

    def kv_read_bytes(self, context_lens: ArrayLike) -> Floats:
        """Return the bytes of keys and values of one request with so many cached tokens."""
        token_bytes = self.kv_token_bytes / self.num_layers
        read: Floats = token_bytes * self._seen_tokens(context_lens)
        return read

    def _seen_tokens(self, context_lens: ArrayLike) -> Floats:
        """Return the tokens that a row sees, summed over layers."""
        context = np.asarray(context_lens, dtype=np.float64)
        tokens: Floats = (self.num_layers - len(self.windows)) * context
        for window, count in self._windows.items():
            tokens = tokens + count * np.minimum(context, window)
        return tokens

    @property
    def _windows(self) -> Mapping[int, int]:
        return {window: self.windows.count(window) for window in sorted(set(self.windows))}


def _pair(one: ArrayLike, other: ArrayLike) -> tuple[Floats, Floats]:
    return np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)


def _may_be_zero(name: str) -> bool:
    return "expert" in name


def _check_size(name: str, value: object, may_be_zero: bool = False) -> None:
    number = finite_number(value)
    is_whole = name in ("weight_bytes", "kv_bytes") or isinstance(value, int)
    if number is None or not is_whole or number < 0 or (number == 0 and not may_be_zero):
        raise ValueError(f"{name}: {value!r:.60} is not a positive number")
