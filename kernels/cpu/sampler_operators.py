"""The sampler operators of the KernelSet `cpu`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .native import Library
from .registry import OPERATORS


class CpuSamplerOperators:
    """Token choice in C++, for fp32 logits. An id outside the vocabulary is skipped."""

    _library: Library

    def _apply(self, name: str, *args: object) -> Any:
        return OPERATORS[name].apply(self._library, *args)

    def greedy(self, logits_RV: Tensor) -> Tensor:
        """Return the lowest id of the largest logit per row, or -1: int32 ``[R]``."""
        result: Tensor = self._apply("greedy", logits_RV)
        return result

    def sample(
        self,
        logits_RV: Tensor,
        temperature_R: Tensor,
        top_k_R: Tensor,
        top_p_R: Tensor,
        min_p_R: Tensor,
        uniform_R: Tensor,
    ) -> Tensor:
        """Draw one id per row, or -1: int32 ``[R]``. Uniforms may be fp64."""
        result: Tensor = self._apply(
            "sample", logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, uniform_R
        )
        return result

    def penalize(
        self,
        logits_RV: Tensor,
        token_ids_RL: Tensor,
        output_counts_RL: Tensor,
        repetition_R: Tensor,
        presence_R: Tensor,
        frequency_R: Tensor,
    ) -> Tensor:
        """Return logits less penalties ``[R, V]``; computed in fp64, rounded once."""
        lists = (token_ids_RL, output_counts_RL)
        result: Tensor = self._apply(
            "penalize", logits_RV, *lists, repetition_R, presence_R, frequency_R
        )
        return result

    def add_bias(self, logits_RV: Tensor, bias_ids_RB: Tensor, bias_RB: Tensor) -> Tensor:
        """Return logits plus the bias of the listed ids: ``[R, V]``."""
        result: Tensor = self._apply("add_bias", logits_RV, bias_ids_RB, bias_RB)
        return result

    def mask_logits(self, logits_RV: Tensor, bitmask_RM: Tensor) -> Tensor:
        """Return logits, -inf where the bit is 0: ``[R, V]``."""
        result: Tensor = self._apply("mask_logits", logits_RV, bitmask_RM)
        return result

    def top_logprobs(
        self, logits_RV: Tensor, ids_R: Tensor, num: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logprobs ``[R, 1+num]``, top ids ``[R, num]`` and the ranks of the given ids."""
        logprobs, top_ids, ranks = self._apply("top_logprobs", logits_RV, ids_R, num)
        return logprobs, top_ids, ranks
