"""What a prefix is charged as."""

from __future__ import annotations

from typing import Any

import pytest

from noria.bucketing.costs.reads import DecodeReads, charged_prefix

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


@pytest.mark.parametrize("num_bytes", ["live", "bucket"])
@pytest.mark.parametrize("flop", ["live", "bucket"])
def test_reads_survive_being_written_and_read(num_bytes: Any, flop: Any) -> None:
    reads = DecodeReads(num_bytes, flop)

    assert DecodeReads.read(reads.to_mapping()) == reads


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "costs.reads: is None; it must hold num_bytes and flop"),
        ({"flop": "live"}, "costs.reads: is {'flop': 'live'}; it must hold"),
        ({"flop": "live", "num_bytes": 3}, "costs.reads.num_bytes: is 3; it must be live or"),
        ({"flop": ["live"], "num_bytes": "live"}, "costs.reads.flop: is .'live'.; it must be"),
    ],
)
def test_reads_that_are_none_are_refused(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeReads.read(given)
