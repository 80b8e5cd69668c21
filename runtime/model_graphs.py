"""The two modules that are compiled per bucket: a model with the attention of its phase.

Inputs are those of ``graph_spec``; caches are lists of one tensor per layer, changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..kernels.kernel_set import KernelSet
from .graph_spec import TOKEN_MASK, block_offset_name, block_table_name, slot_mapping_name
from .models.decoder import Decoder
from .scheduler_output import Phase

Inputs = dict[str, Tensor]


class ModelStep:
    """What the layers of a model ask of one step; attention has one subclass per phase."""

    def __init__(
        self,
        model: Decoder,
        inputs: Inputs,
        caches: Sequence[tuple[Tensor, Tensor]],
        group_of: Sequence[int],
    ) -> None:
        """Bind one step's inputs: ``caches`` per layer, ``group_of`` a layer its KV group."""
        self.kernels: KernelSet = model.kernels
        self.specs = model.attention_specs
        self.inputs = inputs
        self.caches = caches
        self.group_of = group_of

    @property
    def token_mask(self) -> Tensor:
        """Int32 ``[R]``: 1 for a token, 0 for padding; an input of models with experts."""
        return self.inputs[TOKEN_MASK]


class PrefillStep(ModelStep):
    """Several requests' tokens, packed."""

    def attend(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Write and attend; ``[T, H*D]``."""
        inputs, group = self.inputs, self.group_of[layer]
        return self.kernels.attend_prefill(
            q_RHD,
            k_RKD,
            v_RKD,
            *self.caches[layer],
            slot_mapping_T=inputs[slot_mapping_name(group)],
            block_table_PW=inputs[block_table_name(group)],
            query_start_loc=inputs["query_start_loc"],
            tile_request=inputs["tile_request"],
            context_lens_P=inputs["context_lens"],
            query_lens_P=inputs["query_lens"],
            spec=self.specs[layer],
            block_offset=inputs.get(block_offset_name(group)),
        )


class DecodeStep(ModelStep):
    """The same number of rows per request."""

    def attend(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Write and attend; ``[S*Q, H*D]``."""
        inputs, group = self.inputs, self.group_of[layer]
        return self.kernels.attend_decode(
            q_RHD,
            k_RKD,
            v_RKD,
            *self.caches[layer],
            slot_mapping_R=inputs[slot_mapping_name(group)],
            block_table_SW=inputs[block_table_name(group)],
            context_lens_S=inputs["context_lens"],
            query_lens_S=inputs["query_lens"],
            spec=self.specs[layer],
            block_offset=inputs.get(block_offset_name(group)),
        )


STEPS = {Phase.PREFILL: PrefillStep, Phase.SCORE: PrefillStep, Phase.DECODE: DecodeStep}


class ModelGraph(nn.Module):
    """A model with the attention of one phase: what is compiled for each bucket."""

    def __init__(self, model: Decoder, phase: Phase, group_of: Sequence[int]) -> None:
        """Wrap a model; its packed weights are shared, not copied."""
        super().__init__()
        self.model = model
        self.step = STEPS[phase]
        self.group_of = group_of

    def forward(
        self, inputs: Inputs, k_caches: Sequence[Tensor], v_caches: Sequence[Tensor]
    ) -> Tensor:
        """Return the logits of ``logits_positions``."""
        caches = list(zip(k_caches, v_caches, strict=True))
        step = self.step(self.model, inputs, caches, self.group_of)
        logits: Tensor = self.model(
            inputs["input_ids"], inputs["positions"], inputs["logits_positions"], step
        )
        return logits
