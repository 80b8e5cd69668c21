"""Which shapes are measured."""

from __future__ import annotations

import pytest

from noria.runtime.bench.shape_sizes import (
    Shape,
    ShapeSizes,
    auto_sizes,
    merged,
    read_sizes,
    shapes_of,
)
from noria.runtime.errors import ConfigError

SIZES = ShapeSizes((16, 32, 64), (1, 4))


def all_fit(num_seqs: int, num_computed: int, num_new: int) -> bool:
    return True


def test_halves_of_the_limits_join_the_sizes_of_the_plan() -> None:
    sizes = auto_sizes(ShapeSizes((100, 2048), (5, 32)), prefill_tile=1)

    assert sizes.num_tokens == (16, 32, 64, 100, 128, 256, 512, 1024, 2048)
    assert sizes.num_seqs == (1, 2, 4, 5, 8, 16, 32)


def test_large_limits_are_halved_a_few_times_only() -> None:
    sizes = auto_sizes(ShapeSizes((131_072,), (1024,)), prefill_tile=1)

    assert sizes.num_tokens == tuple(131_072 >> k for k in range(7, -1, -1))
    assert sizes.num_seqs == tuple(1024 >> k for k in range(7, -1, -1))


def test_prefill_sizes_are_whole_tiles() -> None:
    sizes = auto_sizes(ShapeSizes((128, 896), (1,)), prefill_tile=128)

    assert sizes.num_tokens == (128, 256, 512, 896)


def test_a_limit_below_the_smallest_size_is_measured_alone() -> None:
    assert auto_sizes(ShapeSizes((8,), (1,)), prefill_tile=1) == ShapeSizes((8,), (1,))


def test_every_size_runs_without_a_prefix_and_every_second_with_two() -> None:
    shapes = shapes_of(SIZES, max_model_len=256, fits=all_fit)

    prefill = [(s.size, s.num_computed) for s in shapes if not s.is_decode]
    assert prefill == [(16, 0), (16, 60), (16, 240), (32, 0), (64, 0), (64, 48), (64, 192)]


def test_decode_runs_with_contexts_from_short_to_the_longest() -> None:
    shapes = shapes_of(SIZES, max_model_len=256, fits=all_fit)

    decode = [(s.size, s.context) for s in shapes if s.is_decode]
    assert decode == [(s, c) for s in (1, 4) for c in (16, 64, 256)]


def test_no_step_is_longer_than_a_request_may_be() -> None:
    for max_model_len in (64, 65, 100, 256):
        shapes = shapes_of(SIZES, max_model_len=max_model_len, fits=all_fit)

        assert max(s.num_computed + s.num_new for s in shapes) == max_model_len
        assert len(set(shapes)) == len(shapes)
        assert min(s.num_computed for s in shapes) == 0


def test_steps_that_do_not_fit_the_cache_are_left_out() -> None:
    shapes = shapes_of(SIZES, max_model_len=256, fits=lambda s, p, n: s * (p + n) <= 256)

    assert Shape(True, 4, 63) in shapes
    assert Shape(True, 4, 255) not in shapes
    assert Shape(True, 1, 255) in shapes


def test_sizes_are_merged_without_doubles() -> None:
    assert merged(SIZES, ShapeSizes((8, 32), (2,))) == ShapeSizes((8, 16, 32, 64), (1, 2, 4))


def test_a_list_of_sizes_is_read_in_any_order() -> None:
    assert read_sizes("--sizes", "64, 16,64", 64) == (16, 64)


@pytest.mark.parametrize("text", ["", "16,", "0", "65", "-4", "1.5", "all"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--sizes: '.*' is not a whole number from 1 to 64"):
        read_sizes("--sizes", text, 64)
