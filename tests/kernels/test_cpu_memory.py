"""Memory on large pages: alignment, zeros, and tensors that do not know of each other."""

import errno
import gc
import resource

import pytest
import torch

from noria.kernels.cpu import memory
from noria.kernels.cpu.memory import HUGE_PAGE, Arena


def test_the_first_tensor_of_a_piece_starts_at_a_large_page():
    assert Arena().zeros((3, 5), torch.float32).data_ptr() % HUGE_PAGE == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
def test_tensors_are_zero_and_start_at_a_cache_line(dtype):
    arena = Arena()
    for shape in [(7,), (2, 3), (1, 1, 65), (0, 4), ()]:
        tensor = arena.zeros(shape, dtype)
        assert tensor.shape == shape
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert not tensor.any()
        assert tensor.data_ptr() % 64 == 0


def test_tensors_lie_side_by_side_and_do_not_overlap():
    arena = Arena()
    first, second = arena.zeros((17,), torch.uint8), arena.zeros((1000,), torch.uint8)
    first.fill_(1)
    second.fill_(2)

    assert second.data_ptr() - first.data_ptr() == 64
    assert first.eq(1).all()
    assert second.eq(2).all()


def test_every_tensor_has_a_storage_of_its_own():
    """Lowering tells by the storage which tensors share memory."""
    arena = Arena()
    first, second = arena.zeros((4,), torch.float32), arena.zeros((4,), torch.float32)

    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert first.untyped_storage().nbytes() == 16


def test_a_tensor_larger_than_a_piece_gets_one_of_its_own():
    arena = Arena()
    small, large = arena.zeros((1,), torch.uint8), arena.zeros((40 * HUGE_PAGE,), torch.uint8)
    large[-1] = 1

    assert large.data_ptr() % HUGE_PAGE == 0
    assert not small.any()


@pytest.mark.parametrize("count", [2**46 + 3, 2**70], ids=["too much", "not a size"])
def test_memory_that_the_system_does_not_give_is_a_memory_error_with_its_bytes(count):
    """2**46 elements of 4 bytes are more than an address space of 47 bits."""
    with pytest.raises(MemoryError, match=f"no memory for {4 * count:,} bytes: "):
        Arena().zeros((count,), torch.float32)


def test_memory_stays_while_a_tensor_lives():
    tensor = Arena().zeros((1000,), torch.float32)
    gc.collect()
    tensor.fill_(3)

    assert tensor.eq(3).all()


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


@pytest.mark.parametrize("can_populate", [True, False], ids=["populated", "touched"])
def test_settled_memory_takes_no_page_faults(can_populate, monkeypatch):
    """64 MiB are 32 large pages or 16,384 small ones; whoever fetches them must be done."""
    if not can_populate:
        monkeypatch.setattr(memory, "_can_populate", lambda: False)
    arena = Arena()
    tensors = [arena.zeros((8 * 2**20,), torch.uint8) for _ in range(8)]
    arena.settle()
    torch.zeros(2 * 4096, dtype=torch.uint8)[::4096] = 1  # the first write of all loads its code

    before = page_faults()
    for tensor in tensors:
        tensor[::4096] = 1

    assert page_faults() - before < 16


def test_memory_that_is_written_at_once_comes_with_the_first_write():
    tensor = Arena().unfetched_zeros((64 * 2**20,), torch.uint8)

    before = page_faults()
    tensor[::4096] = 1

    assert page_faults() - before >= 32


def test_fetching_changes_nothing_that_was_written_meanwhile():
    arena = Arena()
    for _ in range(20):
        tensor = arena.zeros((2**20 + 3,), torch.uint8)
        tensor.fill_(7)
        arena.settle()

        assert tensor.eq(7).all()


def test_pages_that_the_system_does_not_give_are_a_memory_error(monkeypatch):
    arena = Arena()
    monkeypatch.setattr(memory, "_populate", lambda start, num_bytes: errno.ENOMEM)
    arena.zeros((1000,), torch.float32)

    with pytest.raises(MemoryError, match="no memory for 4,000 bytes: "):
        arena.settle()
    arena.settle()
