"""What is held: initialised bits, capacity with liveness, and tensors that a kernel places."""

from __future__ import annotations

import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

KIB = 1024


def test_unwritten_sbuf_is_not_read() -> None:
    def kernel() -> None:
        nisa.tensor_copy(dst=tile(2, 4), src=tile(2, 4))

    refused("tensor_copy", "src reads uninitialised memory: 8 of 8 elements", kernel)


def test_one_unwritten_element_is_named() -> None:
    def kernel() -> None:
        source = tile(2, 4)
        nisa.memset(dst=source[:, 0:3], value=0)
        nisa.memset(dst=source[0:1, 3:4], value=0)
        nisa.tensor_copy(dst=tile(2, 4), src=source)

    refused("tensor_copy", r"1 of 8 elements .* the first at \(1, 3\)", kernel)


def test_unwritten_psum_is_not_read() -> None:
    def kernel() -> None:
        nisa.tensor_copy(dst=tile(2, 4), src=tile(2, 4, buffer=nl.psum))

    refused("tensor_copy", "uninitialised", kernel)


def test_unwritten_hbm_is_not_read() -> None:
    def kernel() -> None:
        loaded(tile(2, 4, buffer=nl.hbm))

    refused("dma_copy", "uninitialised", kernel)


def test_half_a_word_is_not_a_written_word() -> None:
    def kernel() -> None:
        halves = tile(2, 4, dtype=nl.bfloat16)
        nisa.memset(dst=halves[:, 0:3], value=0)
        nisa.tensor_copy(dst=tile(2, 2), src=halves.view(nl.float32))

    refused("tensor_copy", "2 of 4 elements", kernel)


def test_elements_written_by_parts_are_read_as_a_whole() -> None:
    def kernel(x):
        whole = tile(4, 8)
        nisa.dma_copy(dst=whole[:, 0:5], src=x[:, 0:5])
        nisa.dma_copy(dst=whole[:, 5:8], src=x[:, 5:8])
        return copied_out(whole)

    x = draw(4, 8)
    np.testing.assert_array_equal(run(kernel, x), x)


def test_at_most_128_partitions() -> None:
    refused("ndarray", "needs 129 partitions", lambda: tile(129, 1))


def test_a_tile_has_two_dimensions() -> None:
    refused("ndarray", "at least 2 dimensions", lambda: tile(128))


@pytest.mark.parametrize(("target", "kib"), [("trn1", 192), ("trn2", 224), ("trn3", 256)])
def test_one_tensor_fits_into_a_partition(target: str, kib: int) -> None:
    def largest() -> None:
        filled(1, kib * KIB, dtype=nl.uint8)

    def larger() -> None:
        filled(1, kib * KIB + 1, dtype=nl.uint8)

    run(largest, target=target)
    refused("ndarray", f"exceed the {kib * KIB} bytes", larger, target=target)


def test_tensors_that_live_at_once_fit_into_sbuf() -> None:
    def kernel() -> None:
        kept = [filled(128, 100 * KIB, dtype=nl.uint8) for _ in range(3)]
        for each in kept:
            nisa.tensor_copy(dst=each, src=each)

    refused("memset", "sbuf is full: 307200 bytes .* live in 3 tensors, trn2 has 229376", kernel)
    refused("memset", "sbuf is full", kernel, target="trn3")


def test_tensors_that_live_one_after_another_share_sbuf() -> None:
    def kernel() -> None:
        kept = [filled(128, 100 * KIB, dtype=nl.uint8) for _ in range(3)]
        assert len(kept) == 3

    run(kernel)


def test_a_loop_on_the_device_keeps_what_it_uses() -> None:
    def kernel() -> None:
        before = filled(128, 150 * KIB, dtype=nl.uint8)

        def body(i) -> None:
            nisa.tensor_copy(dst=before, src=before)
            filled(128, 150 * KIB, dtype=nl.uint8)

        nl.fori_loop(0, 1, body)

    refused("memset", "sbuf is full", kernel)


def test_psum_has_eight_banks() -> None:
    def kernel(count: int, width: int) -> None:
        banks = [filled(128, width, buffer=nl.psum) for _ in range(count)]
        for bank in banks:
            nisa.tensor_copy(dst=bank, src=bank)

    run(kernel, 8, 512)
    run(kernel, 16, 256)
    refused("memset", "psum is full", kernel, 9, 512)
    # Eight tiles of 300 fp32 leave no bank with room for a ninth, though the bytes would do.
    refused("memset", "psum is full", kernel, 9, 300)


def test_a_large_tile_of_psum_takes_whole_banks() -> None:
    def kernel(count: int) -> None:
        wide = filled(128, 513, buffer=nl.psum)
        others = [filled(128, 512, buffer=nl.psum) for _ in range(count)]
        for kept in (wide, *others):
            nisa.tensor_copy(dst=kept, src=kept)

    run(kernel, 6)
    refused("memset", "psum is full", kernel, 7)


def test_one_tile_of_psum_has_at_most_eight_banks() -> None:
    def kernel() -> None:
        tile(128, 8 * 512 + 1, buffer=nl.psum)

    refused("ndarray", "exceed the 16384 bytes", kernel)


def placed(address: tuple[int, int], buffer=nl.sbuf, shape=(32, 64)):
    found = nl.ndarray(shape, dtype=nl.float32, buffer=buffer, address=address)
    nisa.memset(dst=found, value=0)
    return found


def test_placed_tensors_do_not_overlap_while_they_live() -> None:
    def kernel(second: tuple[int, int]) -> None:
        tiles = (placed((0, 0)), placed(second))
        for each in tiles:
            nisa.tensor_copy(dst=each, src=each)

    run(kernel, (0, 256))
    run(kernel, (32, 0))
    refused("memset", "overwrites a tensor .* while it is live", kernel, (0, 252))


def test_placed_tensors_follow_each_other_in_one_place() -> None:
    def kernel() -> None:
        for _ in range(2):
            each = placed((0, 0))
            nisa.tensor_copy(dst=each, src=each)

    run(kernel)


def test_places_are_inside_sbuf() -> None:
    refused("ndarray", "outside sbuf", lambda: placed((112, 0)))
    refused("ndarray", "outside sbuf", lambda: placed((0, 224 * KIB - 255)))


def test_places_in_psum_start_a_bank() -> None:

    def kernel() -> None:
        placed((0, 2048), nl.psum)

    run(kernel)
    refused("ndarray", "not the start of a bank", lambda: placed((0, 1024), nl.psum))


def test_tensors_of_hbm_have_no_place() -> None:
    refused("ndarray", "for tensors on chip", lambda: placed((0, 0), nl.shared_hbm))


def test_the_start_partition_counts_from_the_place() -> None:
    refused("memset", "starts at partition 16", lambda: placed((16, 0), shape=(32, 4)))


@pytest.mark.parametrize("shape", [(), (4, 0), (4, -1), (4, 2.0)])
def test_shapes_are_positive_integers(shape: tuple[int, ...]) -> None:
    refused("ndarray", "positive integers", lambda: tile(*shape))


def test_dtypes_are_documented_ones() -> None:
    refused("ndarray", "not an NKI dtype", lambda: tile(1, 1, dtype="float64"))
    refused("ndarray", "not an NKI dtype", lambda: tile(1, 1, dtype=np.float32))
    refused("ndarray", "'tfloat32' is not simulated", lambda: tile(1, 1, dtype=nl.tfloat32))
    refused("ndarray", "buffer must be", lambda: tile(1, 1, buffer="sbuf"))
