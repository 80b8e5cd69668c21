"""The parts of a sampler graph: each has its static inputs, what it computes, and how it is filled.

A stage writes every row of every input in every step, so that nothing of an earlier step remains:
rows that do not ask for it, and rows of no request, hold what changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kernels.kernel_set import KernelSet
from .constraint import num_words
from .random_draws import uniforms
from .sampler_features import GREEDY, LOGIT_BIAS, PENALTIES, STRUCTURED_OUTPUT, TOP_K_TOP_P
from .sampling_state import MAX_BIAS_ENTRIES, SamplerRow, TokenBias, TokenCounts

MAX_TOP_K = 2**31 - 1
"""Larger than any vocabulary: the same as keeping all."""

_EMPTY = TokenCounts(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))

Rows = Mapping[int, SamplerRow]
"""What to do with each row of the logits that is drawn from."""
Inputs = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """Sizes of a sampler's inputs: its rows, and the most that a row may hold."""

    rows: int
    vocab_size: int
    max_model_len: int
    max_logprobs: int


class Stage(ABC):
    """One part of a sampler; the last one of a sampler chooses, those before change logits.

    ``inputs`` are the static tensors by name, as padding until something is written.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Take tensors that change nothing: all values of one are the same."""
        self.inputs = inputs
        self.arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        self._padding = {name: array.flat[0] for name, array in self.arrays.items()}

    @abstractmethod
    def apply(self, kernels: KernelSet, logits_RV: Tensor, inputs: Inputs) -> Tensor:
        """Return logits ``[R, V]``, or the ids ``[R]`` that were chosen."""

    @abstractmethod
    def write(self, rows: Rows) -> None:
        """Write these rows, and padding into all others."""

    def clear(self) -> None:
        """Write padding into every row."""
        for name, array in self.arrays.items():
            array.fill(self._padding[name])


class Mask(Stage):
    """Bans what a grammar does not allow."""

    def __init__(self, shape: SamplerShape) -> None:
        """Allow everything."""
        words = num_words(shape.vocab_size)
        super().__init__({"bitmask": torch.full((shape.rows, words), -1, dtype=torch.int32)})

    def apply(self, kernels: KernelSet, logits_RV: Tensor, inputs: Inputs) -> Tensor:
        """Return masked logits."""
        return kernels.mask_logits(logits_RV, inputs["bitmask"])

    def write(self, rows: Rows) -> None:
        """Write the bitmasks of rows that have one."""
        self.clear()
        for row, asked in rows.items():
            if asked.bitmask is not None:
                self.arrays["bitmask"][row] = asked.bitmask


class Bias(Stage):
    """Adds to logits, or bans tokens."""

    def __init__(self, shape: SamplerShape) -> None:
        """Bias nothing."""
        self._lists = _Lists("bias_ids", "bias", (shape.rows, MAX_BIAS_ENTRIES), torch.float32)
        super().__init__(self._lists.inputs)

    def apply(self, kernels: KernelSet, logits_RV: Tensor, inputs: Inputs) -> Tensor:
        """Return biased logits."""
        return kernels.add_bias(logits_RV, inputs["bias_ids"], inputs["bias"])

    def write(self, rows: Rows) -> None:
        """Write the lists of rows that have one."""
        biases = {row: asked.bias for row, asked in rows.items()}
        self._lists.write({row: bias for row, bias in biases.items() if bias is not None})


class Penalties(Stage):
    """Repetition, frequency and presence penalties."""

    def __init__(self, shape: SamplerShape) -> None:
        """Penalise nothing."""
        width = min(shape.max_model_len, shape.vocab_size)
        self._lists = _Lists("history_ids", "output_counts", (shape.rows, width), torch.int32)
        super().__init__(
            {
                **self._lists.inputs,
                "repetition": torch.ones(shape.rows),
                "presence": torch.zeros(shape.rows),
                "frequency": torch.zeros(shape.rows),
            }
        )

    def apply(self, kernels: KernelSet, logits_RV: Tensor, inputs: Inputs) -> Tensor:
        """Return penalised logits."""
        lists = inputs["history_ids"], inputs["output_counts"]
        penalties = inputs["repetition"], inputs["presence"], inputs["frequency"]
        return kernels.penalize(logits_RV, *lists, *penalties)

    def write(self, rows: Rows) -> None:
        """Write the histories and penalties of rows that have some."""
        histories = {row: asked.history for row, asked in rows.items()}
        self._lists.write({row: one for row, one in histories.items() if one is not None})
        arrays = self.arrays
        for name, off in (("repetition", 1), ("presence", 0), ("frequency", 0)):
            arrays[name].fill(off)
        for row, asked in rows.items():
            arrays["repetition"][row] = asked.params.repetition_penalty
            arrays["presence"][row] = asked.params.presence_penalty
            arrays["frequency"][row] = asked.params.frequency_penalty


class TakeLargest(Stage):
    """Chooses the largest logit."""

    def __init__(self, shape: SamplerShape) -> None:
        """Need no inputs."""
        super().__init__({})

    def apply(self, kernels: KernelSet, logits_RV: Tensor, inputs: Inputs) -> Tensor:
        """Return ids."""
        return kernels.greedy(logits_RV)

    def write(self, rows: Rows) -> None:
        """Write nothing."""


class Draw(Stage):
    """Draws after temperature, min-p, top-k and top-p; rows that are greedy take the largest."""

    def __init__(self, shape: SamplerShape) -> None:
        """Let every row be greedy: cheap, and ids of padded rows are never read."""
        super().__init__(
            {
                "temperature": torch.zeros(shape.rows),
                "top_k": torch.zeros(shape.rows, dtype=torch.int32),
                "top_p": torch.ones(shape.rows),
                "min_p": torch.zeros(shape.rows),
                "uniform": torch.zeros(shape.rows),
            }
        )

    def apply(self, kernels: KernelSet, logits_RV: Tensor, inputs: Inputs) -> Tensor:
        """Return ids."""
        names = ("temperature", "top_k", "top_p", "min_p", "uniform")
        return kernels.sample(logits_RV, *(inputs[name] for name in names))

    def write(self, rows: Rows) -> None:
        """Write settings and random draws."""
        self.clear()
        index = np.fromiter(rows, dtype=np.intp, count=len(rows))
        params = [asked.params for asked in rows.values()]
        seeds = [asked.seed for asked in rows.values()]
        arrays = self.arrays
        arrays["temperature"][index] = [0 if p.is_greedy else p.temperature for p in params]
        arrays["top_k"][index] = [min(max(p.top_k or 0, 0), MAX_TOP_K) for p in params]
        arrays["top_p"][index] = [p.top_p for p in params]
        arrays["min_p"][index] = [p.min_p for p in params]
        arrays["uniform"][index] = uniforms(seeds, [asked.position for asked in rows.values()])


STAGES: Mapping[str, Callable[[SamplerShape], Stage]] = {
    STRUCTURED_OUTPUT: Mask,
    LOGIT_BIAS: Bias,
    PENALTIES: Penalties,
    TOP_K_TOP_P: Draw,
    GREEDY: TakeLargest,
}
"""By feature, in the order in which they are applied; the last two choose, and one is enough."""


class _Lists:
    """A list of (token id, value) per row, in two inputs of a fixed width; id -1 is padding."""

    def __init__(self, ids: str, values: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
        ids_RL, values_RL = (
            torch.full(shape, -1, dtype=torch.int32),
            torch.zeros(shape, dtype=dtype),
        )
        self.inputs = {ids: ids_RL, values: values_RL}
        self._ids = ids_RL.numpy()
        self._values = values_RL.numpy()
        self._sizes = np.zeros(shape[0], dtype=np.intp)

    def write(self, lists: Mapping[int, TokenCounts | TokenBias]) -> None:
        """Write these rows and empty all others; costs what the lists hold, not the width."""
        for row in {*np.flatnonzero(self._sizes).tolist(), *lists}:
            ids, values = lists.get(row, _EMPTY)
            size = len(ids)
            self._ids[row, :size] = ids
            self._values[row, :size] = values
            self._ids[row, size : self._sizes[row]] = -1
            self._values[row, size : self._sizes[row]] = 0
            self._sizes[row] = size
