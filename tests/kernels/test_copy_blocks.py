"""Copying blocks: only what is named changes, in every target, eager and compiled."""

import pytest
import torch
from attention_cases import same_bits
from torch import Tensor, nn

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.fallback import TorchKernels
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.reference import ReferenceKernels

REFERENCE = ReferenceKernels()
TARGETS = {
    "reference": REFERENCE,
    "cpu": CpuKernels(),
    "torch": TorchKernels(),
    "neuron": NeuronKernels(device="cpu"),
}
KERNELS = pytest.mark.parametrize("kernels", TARGETS.values(), ids=TARGETS.keys())
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=["f32", "bf16", "fp8"]
)
NUM_BLOCKS = 12


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def make_caches(dtype: torch.dtype, *, seed: int = 0, k_dim: int = 8, v_dim: int = 24):
    """Return keys and values of different widths; odd blocks but 1 hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    caches = []
    for dim in (k_dim, v_dim):
        cache = torch.randn(NUM_BLOCKS, 4, 3, dim, generator=generator)
        cache[3::2] = float("nan")
        caches.append(cache.to(dtype))
    return caches


def as_bytes(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8)


@KERNELS
@DTYPES
def test_blocks_are_copied_and_nothing_else_changes(kernels, dtype: torch.dtype):
    caches, before = make_caches(dtype), make_caches(dtype)

    assert kernels.copy_blocks(*caches, int32(2, -1, 3, 2, 0), int32(7, 6, 4, 5, 11)) is None

    source = torch.arange(NUM_BLOCKS)
    source[[7, 4, 5, 11]] = torch.tensor([2, 3, 2, 0])
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(as_bytes(cache), as_bytes(old)[source])


@KERNELS
@pytest.mark.parametrize("num_copies", [0, 1, 5])
def test_skipped_copies_change_nothing(kernels, num_copies: int):
    caches, before = make_caches(torch.float32), make_caches(torch.float32)
    skipped = torch.full((num_copies,), -1, dtype=torch.int32)

    kernels.copy_blocks(*caches, skipped, skipped)
    kernels.copy_blocks(*caches, skipped, torch.full_like(skipped, 4))

    assert all(same_bits(*pair) for pair in zip(caches, before, strict=True))


class CopyGraph(nn.Module):
    """Copies in all layers; returns nothing."""

    def __init__(self, kernels) -> None:
        super().__init__()
        self.kernels = kernels

    def forward(self, caches: list[tuple[Tensor, Tensor]], src_M: Tensor, dst_M: Tensor) -> None:
        for k_cache, v_cache in caches:
            self.kernels.copy_blocks(k_cache, v_cache, src_M, dst_M)


@KERNELS
def test_a_compiled_graph_of_several_layers_has_no_outputs(kernels):
    layers = [tuple(make_caches(torch.float32, seed=seed)) for seed in range(3)]
    expected = [tuple(cache.clone() for cache in layer) for layer in layers]
    src, dst = int32(-1, -1, -1), int32(-1, -1, -1)
    run = kernels.compile(CopyGraph(kernels), [layers, src, dst], [])

    for sources, destinations in (((2, 4, -1), (6, 8, -1)), ((-1, -1, 6), (-1, 2, 10))):
        src.copy_(int32(*sources))
        dst.copy_(int32(*destinations))
        run()
        for layer in expected:
            REFERENCE.copy_blocks(*layer, src, dst)

    for layer, wanted in zip(layers, expected, strict=True):
        assert all(same_bits(*pair) for pair in zip(layer, wanted, strict=True))


def test_a_block_larger_than_a_task_is_copied_whole():
    k_cache, v_cache = torch.zeros(3, 64, 4, 130), torch.zeros(3, 64, 4, 8)
    k_cache[1] = torch.randn(64, 4, 130)

    CpuKernels().copy_blocks(k_cache, v_cache, int32(1), int32(2))

    assert k_cache[1].nbytes % 2**16
    assert same_bits(k_cache[2], k_cache[1])


def test_copies_whose_order_would_matter_are_refused_by_the_reference():
    caches = make_caches(torch.float32)

    with pytest.raises(ValueError, match=r"blocks \[5, 5\] are copied to twice, or from as well"):
        REFERENCE.copy_blocks(*caches, int32(2, 4), int32(5, 5))
    with pytest.raises(ValueError, match=r"blocks \[5, 6\] are copied to twice, or from as well"):
        REFERENCE.copy_blocks(*caches, int32(2, 5), int32(5, 6))
    with pytest.raises(ValueError, match=r"blocks \[2\] are copied to twice, or from as well"):
        REFERENCE.copy_blocks(*caches, int32(2), int32(2))
    with pytest.raises(ValueError, match="block 0 is the null block, and is never written"):
        REFERENCE.copy_blocks(*caches, int32(2), int32(0))


@pytest.mark.parametrize(("src", "dst"), [(12, 5), (-2, 5), (2, 12), (2, -1)])
def test_blocks_outside_the_cache_are_refused_or_left_alone(src: int, dst: int):
    caches, before = make_caches(torch.float32), make_caches(torch.float32)

    with pytest.raises(ValueError, match=r"block (12|-2|-1) is not one of 12"):
        REFERENCE.copy_blocks(*caches, int32(src), int32(dst))
    CpuKernels().copy_blocks(*caches, int32(src), int32(dst))

    assert all(same_bits(*pair) for pair in zip(caches, before, strict=True))


def test_copies_run_in_order_on_the_cpu():
    caches, before = make_caches(torch.float32), make_caches(torch.float32)

    CpuKernels().copy_blocks(*caches, int32(2, 5, 8, 8), int32(5, 6, 8, 5))

    for cache, old in zip(caches, before, strict=True):
        assert same_bits(cache[6], old[2])
        assert same_bits(cache[5], old[8])
        assert same_bits(cache[8], old[8])


def test_inputs_that_do_not_fit_are_refused():
    k_cache, v_cache = make_caches(torch.float32)
    kernels = CpuKernels()

    with pytest.raises(ValueError, match=r"dst has shape \(2,\), expected \(1,\)"):
        kernels.copy_blocks(k_cache, v_cache, int32(1), int32(1, 2))
    with pytest.raises(ValueError, match=r"src has dtype torch.int64"):
        kernels.copy_blocks(k_cache, v_cache, torch.tensor([1]), int32(1))
    with pytest.raises(ValueError, match=r"v_cache has dtype torch.bfloat16"):
        kernels.copy_blocks(k_cache, v_cache.bfloat16(), int32(1), int32(2))
    with pytest.raises(ValueError, match="expected dense rows"):
        kernels.copy_blocks(k_cache[:, ::2], v_cache[:, ::2], int32(1), int32(2))
    with pytest.raises(ValueError, match=r"dst has shape \(2,\), expected \(1,\)"):
        REFERENCE.copy_blocks(k_cache, v_cache, int32(1), int32(1, 2))
