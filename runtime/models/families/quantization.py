"""Checkpoints that say they are quantized: which of them can be read."""

from __future__ import annotations

from ...value_text import value_text
from ..config_fields import ConfigFields

KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor"}
"""FP8 keys and values with one scale per layer."""
KV_DEFAULTS = {"dynamic": False, "symmetric": True}
"""Keys that a scheme may leave out: scales are in the checkpoint, and there is no offset."""


def require_unquantized(fields: ConfigFields) -> None:
    """Refuse quantized weights; scales of an FP8 KV cache alone are accepted.

    Raises:
        ModelError: the weights are quantized, or the KV cache in a way that is not built.
    """
    block = fields.block("quantization_config")
    if block is None:
        return
    method = block.get("quant_method")
    if method == "compressed-tensors" and not block.get("config_groups"):
        scheme = block.block("kv_cache_scheme")
        if scheme is not None:
            _require_scales_per_layer(scheme)
            return
    raise fields.error(
        f"quantization_config {value_text(method)} is not supported: use a checkpoint "
        "in float32, bfloat16 or float16, or a GGUF file"
    )


def _require_scales_per_layer(scheme: ConfigFields) -> None:
    given = KV_DEFAULTS | dict(scheme.values)
    for key, fitting in (KV_SCHEME | KV_DEFAULTS).items():
        if given.get(key) != fitting:
            shown = value_text(given.get(key))
            raise scheme.error(f"{key} {shown} is not supported (supported: {fitting!r})")
