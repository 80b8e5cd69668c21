"""What the simulator offers as ``nki.isa``: the documented names (SDK 2.32) that kernels need."""

from .access import NkiInstruction
from .enums import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from .errors import SimulationError as NkiValidationError
from .isa_activation import activation, activation_reduce
from .isa_compound import (
    nc_stream_shuffle,
    scalar_tensor_tensor,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from .isa_copy import affine_select, iota, memset, tensor_copy, tensor_copy_predicated
from .isa_dma import dma_copy
from .isa_dma_transpose import dma_transpose
from .isa_elementwise import reciprocal, tensor_reduce, tensor_scalar, tensor_tensor
from .isa_matmul import nc_matmul, nc_transpose
from .isa_registers import register_alloc, register_load, register_move, register_store
from .isa_select import range_select, select_reduce
from .machine import machine
from .registers import VirtualRegister

__all__ = [
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "activation",
    "activation_reduce",
    "affine_select",
    "dge_mode",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "engine",
    "get_nc_version",
    "iota",
    "matmul_perf_mode",
    "memset",
    "nc_matmul",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "scalar_tensor_tensor",
    "select_reduce",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
]

tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown


def get_nc_version() -> nc_version:
    """Return the generation of the NeuronCore that the kernel is built for."""
    return machine().generation.version
