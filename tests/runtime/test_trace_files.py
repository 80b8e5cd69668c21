"""Files of traces, compressed or not, whatever they are called."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noria.bucketing.traces.csv_traces import trace_csv
from noria.bucketing.traces.families import draw_trace
from noria.runtime.errors import NoriaError
from noria.runtime.trace_files import read_counters_file, read_trace_file

TEXT = trace_csv(draw_trace("chat", num_requests=2_000)).encode()


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.csv.gz", tmp_path / "packed.csv"
    plain.write_bytes(TEXT)
    packed.write_bytes(gzip.compress(TEXT))

    first, second = read_trace_file(plain), read_trace_file(packed)

    assert trace_csv(first) == trace_csv(second) == TEXT.decode()
    assert first.sha256 == second.sha256


def test_several_gzip_members_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(TEXT[:999]) + gzip.compress(TEXT[999:]))

    assert trace_csv(read_trace_file(path)) == TEXT.decode()


@pytest.mark.parametrize("num_cut", [1, 8, 9, 1000, len(gzip.compress(TEXT)) - 2])
def test_a_gzip_file_that_is_cut_short_is_named(tmp_path: Path, num_cut: int) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(TEXT)[:-num_cut])

    with pytest.raises(NoriaError, match=r"t\.csv\.gz: the gzip file is cut short$"):
        read_trace_file(path)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1
    path.write_bytes(data)

    with pytest.raises(NoriaError, match=r"t\.csv\.gz: the gzip file is damaged: CRC"):
        read_trace_file(path)


def test_a_bad_line_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"size,count\n5,1\n0,1\n")

    with pytest.raises(NoriaError, match=rf"^{path}, line 3: size is '0'; "):
        read_trace_file(path)


@pytest.mark.parametrize("read", [read_trace_file, read_counters_file])
def test_what_cannot_be_opened_is_named(tmp_path: Path, read) -> None:
    with pytest.raises(NoriaError, match=rf"^{tmp_path / 'none'}: No such file or directory$"):
        read(tmp_path / "none")
    with pytest.raises(NoriaError, match=rf"^{tmp_path}: Is a directory$"):
        read(tmp_path)


def test_counters_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "counters.json"
    path.write_bytes(gzip.compress(b'{"noria_counters": 1, "decode": [[4, 90, 7]]}'))

    counters = read_counters_file(path)

    assert counters.decode is not None
    assert counters.decode.weights.tolist() == [7]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=200,
)
@given(rest=st.binary(), at=st.integers(0, 60), byte=st.integers(0, 255))
def test_any_gzip_file_gives_a_trace_or_an_error_of_ours(
    tmp_path: Path, rest: bytes, at: int, byte: int
) -> None:
    data = bytearray(gzip.compress(b"size,count\n5,1\n7,2\n", mtime=0))
    data[at % len(data)] = byte
    path = tmp_path / "t"
    for changed in (bytes(data), b"\x1f\x8b" + rest, bytes(data) + rest):
        path.write_bytes(changed)

        assert outcome(path)


def outcome(path: Path) -> str:
    try:
        return f"{read_trace_file(path).num_requests} requests"
    except NoriaError as error:
        return str(error)
