"""What a decoder is made of: sizes, kinds of layers, norms, caps and the names of its tensors.

One definition for every family; ``families`` reads it from ``config.json``. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import ModelError
from .rope_scaling import PLAIN_ROPE, Rope
from .tensor_names import LLAMA_NAMES, TensorNames

Activation = Literal["silu", "gelu_tanh"]
MAX_EXPERTS = 2**17
"""Of all layers, far beyond any trained model: tensors are listed before weights are read."""


@dataclass(frozen=True, slots=True)
class Experts:
    """An MLP of which each token uses a few of many: the ``num_per_token`` most probable."""

    num: int
    num_per_token: int
    intermediate_size: int
    normalize: bool
    """Whether the weights of a token's experts are scaled to sum to 1."""

    def __post_init__(self) -> None:
        """Refuse tokens that ask for more experts than there are."""
        if self.num_per_token > self.num:
            raise ModelError(
                f"num_experts_per_tok {self.num_per_token} must be at most the number of "
                f"experts {self.num}"
            )


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How one layer differs from the others.

    Attributes:
        window: how many tokens a query sees, its own included; None is all before it.
        rope: None where keys and queries carry no position.
        experts: None for one MLP that every token uses.
    """

    window: int | None = None
    rope: Rope | None = PLAIN_ROPE
    experts: Experts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and switches of one decoder; enough to name and shape every tensor.

    Attributes:
        intermediate_size: of layers without experts.
        layers: the kind of each layer, in order.
        qkv_bias: query, key and value projections add a bias; ``out_bias``, ``mlp_bias`` alike.
        qk_norm: every query and key head is normed before the rope.
        sandwich_norms: attention and MLP outputs are normed before they join the residual.
        norm_offset: what is added to every norm weight of a checkpoint (1 for Gemma).
        embedding_scale: factor of embeddings, rounded to the dtype first.
        attention_scale: factor of attention scores; None is ``head_dim ** -0.5``.
        attention_softcap: bound of scores, by tanh; ``logits_softcap`` that of logits.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerKind, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    activation: Activation = "silu"
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    names: TensorNames = LLAMA_NAMES

    def __post_init__(self) -> None:
        """Refuse head counts that do not divide and rotary dims that rope cannot halve."""
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_attention_heads {self.num_heads} is not a multiple of "
                f"num_key_value_heads {self.num_kv_heads}"
            )
        for rope in self.ropes:
            self._check_rope(rope)
        num_experts = sum(kind.experts.num for kind in self.layers if kind.experts is not None)
        if num_experts > MAX_EXPERTS:
            raise ModelError(
                f"num_experts of all {self.num_layers} layers are {num_experts}; "
                f"must be at most {MAX_EXPERTS}"
            )
        if num_experts and self.activation != "silu":
            raise ModelError(f"experts with {self.activation} are not supported (supported: silu)")

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The distinct ropes, in order of the first layer that has each."""
        return tuple(dict.fromkeys(kind.rope for kind in self.layers if kind.rope is not None))

    @property
    def has_experts(self) -> bool:
        """Whether some layer routes tokens, and so must know which rows are padding."""
        return any(kind.experts is not None for kind in self.layers)

    @property
    def max_len(self) -> int:
        """Most tokens of a request that every rope reaches."""
        positions = self.max_position_embeddings
        return min((rope.reach(positions) for rope in self.ropes), default=positions)

    def _check_rope(self, rope: Rope) -> None:
        dim = rope.rotary_dim(self.head_dim)
        if self.head_dim % 2 or dim % 2 or not dim:
            part = f" * partial_rotary_factor {rope.partial_rotary_factor}" if dim else ""
            part = part if dim != self.head_dim else ""
            raise ModelError(f"head_dim {self.head_dim}{part} must be even: rope rotates halves")
        rope.check(self.head_dim, self.max_position_embeddings)


def expected_tensors(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that the model needs, under its checkpoint's names.

    A tied model has no ``lm_head.weight`` here.
    """
    arch, names = architecture, architecture.names
    shapes: dict[str, tuple[int, ...]] = {
        f"{names.embedding}.weight": (arch.vocab_size, arch.hidden_size)
    }
    for index, kind in enumerate(arch.layers):
        shapes |= {
            f"{names.layer(index)}.{name}": shape for name, shape in _layer_tensors(arch, kind)
        }
    shapes[f"{names.final_norm}.weight"] = (arch.hidden_size,)
    if not arch.tie_word_embeddings:
        shapes[f"{names.head}.weight"] = (arch.vocab_size, arch.hidden_size)
    return shapes


Tensors = Iterator[tuple[str, tuple[int, ...]]]


def _layer_tensors(arch: Architecture, kind: LayerKind) -> Tensors:
    names, hidden, dim = arch.names, arch.hidden_size, arch.head_dim
    norms = [names.attention_norm, names.mlp_norm]
    if arch.sandwich_norms:
        norms += [names.attention_output_norm, names.mlp_output_norm]
    yield from ((f"{norm}.weight", (hidden,)) for norm in norms)
    if arch.qk_norm:
        yield from ((f"{norm}.weight", (dim,)) for norm in (names.q_norm, names.k_norm))
    q_size, kv_size = arch.num_heads * dim, arch.num_kv_heads * dim
    qkv = _joined(names.qkv, (q_size, kv_size, kv_size))
    yield from _linears(qkv, hidden, arch.qkv_bias)
    yield from _linears({names.out: hidden}, q_size, arch.out_bias)
    if kind.experts is not None:
        yield from _expert_tensors(names, hidden, kind.experts)
        return
    inner = arch.intermediate_size
    yield from _linears(_joined(names.gate_up, (inner, inner)), hidden, arch.mlp_bias)
    yield from _linears({names.down: hidden}, inner, arch.mlp_bias)


def _expert_tensors(names: TensorNames, hidden: int, experts: Experts) -> Tensors:
    inner = experts.intermediate_size
    yield f"{names.router}.weight", (experts.num, hidden)
    for index in range(experts.num):
        gate, up, down = names.expert(index)
        yield from _linears({gate: inner, up: inner}, hidden, False)
        yield from _linears({down: hidden}, inner, False)


def _joined(names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, int]:
    """Give each name its rows; one name alone holds the rows of all, one after the other."""
    return dict(zip(names, sizes, strict=True)) if len(names) > 1 else {names[0]: sum(sizes)}


def _linears(outputs: dict[str, int], inputs: int, is_biased: bool) -> Tensors:
    for name, size in outputs.items():
        yield f"{name}.weight", (size, inputs)
        if is_biased:
            yield f"{name}.bias", (size,)
