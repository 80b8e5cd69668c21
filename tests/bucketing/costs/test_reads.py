"""What a prefix is charged as."""

from __future__ import annotations

import pytest

from noria.bucketing.costs.reads import charged_prefix

LENS = [0, 1, 512, 513, 1024]


def test_an_exact_prefix_is_charged_as_it_is() -> None:
    assert charged_prefix(LENS, "exact", []).tolist() == LENS


def test_a_bucketed_prefix_is_charged_its_bucket_and_none_nothing() -> None:
    assert charged_prefix(LENS, "bucketed", [512, 1024]).tolist() == [0, 512, 512, 1024, 1024]


def test_where_all_is_read_every_chunk_is_charged_the_largest() -> None:
    assert charged_prefix(LENS, "max", [512, 1024]).tolist() == [1024] * 5


@pytest.mark.parametrize("prefix", ["bucketed", "max"])
def test_a_prefix_beyond_the_buckets_is_an_error(prefix: str) -> None:
    with pytest.raises(ValueError, match="a prefix of 1025 tokens is above the largest, 1024"):
        charged_prefix([3, 1025], prefix, [512, 1024])  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["exact", "bucketed", "max"])
def test_a_negative_prefix_is_an_error(prefix: str) -> None:
    with pytest.raises(ValueError, match="a prefix of -1 tokens is negative"):
        charged_prefix([3, -1], prefix, [512])  # type: ignore[arg-type]
