"""Names and parameters of earlier NKI versions that the documentation says are gone.

Source: the vendor's migration guides and release notes, NKI 0.1 to 0.6.
"""

from __future__ import annotations

NAMES = {
    "nki.baremetal": "left with neuronxcc.nki; use nki.jit or nki.simulate",
    "nki.benchmark": "not available since NKI 0.2",
    "nki.profile": "not available since NKI 0.2",
    "nki.isa.tensor_copy_dynamic_src": "removed in NKI 0.4; tensor_copy of .ap(scalar_offset=...)",
    "nki.isa.tensor_copy_dynamic_dst": "removed in NKI 0.4; tensor_copy to .ap(scalar_offset=...)",
    "nki.language.arange": "removed in NKI 0.2; use slices or .ap()",
    "nki.language.mgrid": "removed in NKI 0.2; use slices or .ap()",
    "nki.language.par_dim": "block dimensions are gone; the partition is dimension 0",
    "nki.language.dynamic_range": "deprecated in NKI 0.6; use nl.fori_loop",
    "nki.language.tile_size.total_available_sbuf_size": (
        "deprecated in NKI 0.4; use sbuf_size_bytes or sbuf_fmax_bytes"
    ),
}
PARAMETERS = {
    "nki.jit": {
        "platform_target": "an error since NKI 0.3; set NEURON_PLATFORM_TARGET_OVERRIDE",
        "mode": "gone in NKI 0.3; the framework is known by the arguments",
    },
    "nki.isa.dma_copy": {
        "dst_rmw_op": "removed in NKI 0.3; use dma_compute",
        "unique_indices": "removed in NKI 0.3; use dma_compute",
    },
    "nki.isa.nc_matmul": {
        "psumAccumulateFlag": "removed; use accumulate",
        "is_moving_zero": "renamed is_moving_onezero",
    },
    "nki.isa.sendrecv": {"use_gpsimd_dma": "replaced by dma_engine in NKI 0.3"},
    "nki.isa.register_move": {"imm": "renamed src in NKI 0.3"},
    "nki.isa.memset": {"shape": "removed in NKI 0.2; dst has it"},
    "nki.isa.iota": {"expr": "replaced by pattern and offset in NKI 0.2"},
    "nki.isa.affine_select": {"pred": "replaced by pattern and cmp_op in NKI 0.2"},
}
ISA_PARAMETERS = {
    "mask": "removed in NKI 0.2; bound the slices with min()",
    "dtype": "removed in NKI 0.2; dst has it",
}
# Calls that only simulate: the release notes say that no hardware instruction does them.
CALLS = {
    "nki.language.divide": "not on the device; multiply by the reciprocal",
    "nki.language.fmod": "not on the device",
    "nki.language.mod": "not on the device",
}


def removed_parameter(function: str, name: str) -> str | None:
    """Return what became of a parameter of an earlier version, or None."""
    general = ISA_PARAMETERS if function.startswith("nki.isa.") else {}
    return PARAMETERS.get(function, {}).get(name) or general.get(name)
