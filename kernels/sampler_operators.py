"""The operators of a KernelSet that choose tokens, and those that work on logits around that."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class SamplerOperators(Protocol):
    """From logits to token ids.

    Shape letters: R rows, V vocabulary, L listed tokens, B biased tokens, M words of a bitmask.
    Integer tensors are int32, the others fp32; logits may be fp64 where the target has it. Every
    row is treated alone, to the bit. Listed ids of a row are distinct; -1 skips.
    """

    def greedy(self, logits_RV: Tensor) -> Tensor:
        """Return the id of the largest logit per row, int32 ``[R]``; ties take the lowest id.

        A row has no such id, and gives -1, if one of its logits is not a number or none is
        above -inf: nobody should take what is drawn from it for a result.
        """

    def sample(
        self,
        logits_RV: Tensor,
        temperature_R: Tensor,
        top_k_R: Tensor,
        top_p_R: Tensor,
        min_p_R: Tensor,
        uniform_R: Tensor,
    ) -> Tensor:
        """Draw one id per row, int32 ``[R]``; -1 where ``greedy`` gives it.

        Divides by the temperature, drops tokens less probable than ``min_p`` times the most
        probable one (0: none), keeps the ``top_k`` largest logits (0: all), then the smallest
        set of largest probabilities whose share of what is left reaches ``top_p`` (at least one
        token), then walks the kept tokens in id order until their cumulated mass exceeds
        ``uniform`` (in [0, 1)) times the kept mass. Equal logits rank by id. Temperature 0 is
        greedy.
        """

    def penalize(
        self,
        logits_RV: Tensor,
        token_ids_RL: Tensor,
        output_counts_RL: Tensor,
        repetition_R: Tensor,
        presence_R: Tensor,
        frequency_R: Tensor,
    ) -> Tensor:
        """Return logits less the penalties of tokens that were there: ``[R, V]``.

        For each listed id: a logit above 0 is divided by ``repetition``, any other multiplied
        by it; then ``frequency * count`` and, if the count is not 0, ``presence`` are taken
        off. The count of a token that is in the prompt only is 0.
        """

    def add_bias(self, logits_RV: Tensor, bias_ids_RB: Tensor, bias_RB: Tensor) -> Tensor:
        """Return logits plus the bias, which may be -inf, of the listed ids: ``[R, V]``."""

    def mask_logits(self, logits_RV: Tensor, bitmask_RM: Tensor) -> Tensor:
        """Return logits, -inf where the bit is 0: ``[R, V]``.

        Token i has bit ``i % 32`` of word ``i // 32``; M is ``ceil(V / 32)``. A logit that is
        not a number stays, so that ``greedy`` and ``sample`` still find the row out.
        """

    def top_logprobs(
        self, logits_RV: Tensor, ids_R: Tensor, num: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-softmax values of given ids and of the most probable tokens.

        Returns:
            fp32 ``[R, 1 + num]`` logprobs, first that of the given id; int32 ``[R, num]`` the
            ids of the others, most probable first, ties by the lowest id; int32 ``[R]`` the
            rank of the given id, 1 for the most probable. Where there is no such token, and in
            a row for which ``greedy`` gives -1, the id is -1, the rank 0, the logprob -inf.
        """
