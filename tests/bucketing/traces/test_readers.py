"""Every format is read, however its lines end, and odd but usable traces say so."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing.traces.csv_traces import trace_csv
from noria.bucketing.traces.mooncake import cached_prefixes
from noria.bucketing.traces.readers import holds_batch, holds_prompts, is_trace, read_trace
from noria.bucketing.traces.trace import Trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
LENS = st.integers(1, 2**31 - 1)
DRESSES: dict[str, Callable[[bytes], bytes]] = {
    "as written": lambda text: text,
    "carriage returns": lambda text: text.replace(b"\n", b"\r\n"),
    "byte-order mark": lambda text: b"\xef\xbb\xbf" + text,
    "no final newline": lambda text: text.rstrip(b"\n"),
    "blank lines at the end": lambda text: text + b"\n \r\n\t\n",
    "blank lines everywhere": lambda text: b"\n" + text.replace(b"\n", b"\n\n"),
    "blanks": lambda text: text.replace(b",", b" , "),
}


def read(text: str | bytes) -> Trace:
    data = text.encode() if isinstance(text, str) else text
    return read_trace(io.BytesIO(data), "trace")


def texts_of_requests(rows: Sequence[tuple[int, int, int]]) -> dict[str, str]:
    """Write requests of (milliseconds, prompt, output) in every format that holds them."""
    seconds = np.datetime64("2023-11-16T18:15:46.000", "ms")
    azure = [f"{str(seconds + t).replace('T', ' ')},{p},{o}" for t, p, o in rows]
    zoned = [f"{seconds + t}00+00:00,{p},{o}" for t, p, o in rows]
    own = [f"{p},{o},{t / 1000!r}" for t, p, o in rows]
    vidur = [f"{t / 1000},{p},{o},{p + o}" for t, p, o in rows]
    keys = ("timestamp", "input_length", "output_length")
    return {
        "azure": "\n".join([AZURE, *azure, ""]),
        "azure with a zone": "\n".join([AZURE, *zoned, ""]),
        "own": "\n".join(["prompt_len,output_len,arrival_s", *own, ""]),
        "vidur": "\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens,sum", *vidur, ""]),
        "mooncake": "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows),
    }


@pytest.mark.parametrize("dress", DRESSES)
@given(rows=st.lists(st.tuples(st.integers(0, 10**9), LENS, LENS), min_size=1, max_size=9))
def test_requests_come_back_from_every_format(dress: str, rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows)
    times, prompts, outputs = zip(*rows, strict=True)

    for name, text in texts_of_requests(rows).items():
        trace = read(DRESSES[dress](text.encode()))

        assert trace.prompt_lens.tolist() == list(prompts), name
        assert trace.output_lens is not None
        assert trace.output_lens.tolist() == list(outputs), name
        assert trace.arrivals_s is not None
        assert trace.arrivals_s == pytest.approx((np.array(times) - times[0]) / 1000), name
        assert (trace.prefix_lens, trace.weights) == (None, None)


@given(
    st.lists(
        st.tuples(
            *(st.integers(2, 10**6), LENS, st.floats(0, 1e6), st.just(1), st.floats(0.01, 1e6))
        ),
        min_size=1,
        max_size=9,
    )
)
def test_a_trace_that_is_written_reads_back_number_for_number(
    rows: list[tuple[int, int, float, int, float]],
) -> None:
    prompts, outputs, arrivals, prefixes, weights = (np.array(c) for c in zip(*rows, strict=True))
    arrivals = np.sort(arrivals) - arrivals.min()
    before = Trace(prompts, outputs, arrivals, prefixes, weights)

    after = read(trace_csv(before))

    for name in ("prompt_lens", "output_lens", "arrivals_s", "prefix_lens", "weights"):
        assert getattr(after, name).tolist() == getattr(before, name).tolist(), name


def test_the_digest_is_that_of_the_bytes() -> None:
    data = b"\xef\xbb\xbfsize,count\r\n5,2\r\n"

    assert read(data).sha256 == hashlib.sha256(data).hexdigest()


def test_seven_digits_of_a_second_are_kept() -> None:
    trace = read(f"{AZURE}\n2023-11-16 18:15:46.6805900,1,1\n2023-11-16 18:15:46.6805901,1,1")

    assert trace.arrivals_s is not None
    assert trace.arrivals_s.tolist() == [0, 1e-7]


def test_a_time_without_a_fraction_is_a_whole_second() -> None:
    trace = read(f"{AZURE}\n2024-02-28 23:59:59.5,1,1\n2024-02-29 00:00:00,1,1")

    assert trace.arrivals_s is not None
    assert trace.arrivals_s.tolist() == [0, 0.5]


@pytest.mark.parametrize("text", ["374.0", " 374", "+374", '"374"', "3.74e2"])
def test_a_number_may_be_written_in_its_other_ways(text: str) -> None:
    assert read(f"size,count\n{text},1").prompt_lens.tolist() == [374]


def test_a_histogram_counts_sizes_and_leaves_out_those_that_none_has() -> None:
    trace = read("size,count\n512,3\n128,0\n64,6.99e+04\n")

    assert trace.prompt_lens.tolist() == [512, 64]
    assert trace.weights is not None
    assert trace.weights.tolist() == [3, 69900]
    assert trace.num_requests == 69903


def test_windows_give_their_prompts_and_say_what_is_left_out() -> None:
    header = "window_start_s,field,tokens,expected_requests"
    rows = "0,input_tokens,5,80\n0,output_tokens,0,2\n21600,input_tokens,7,39.5"

    trace = read(f"{header}\n{rows}")

    assert trace.prompt_lens.tolist() == [5, 7]
    assert trace.weights is not None
    assert trace.weights.tolist() == [80, 39.5]
    assert trace.arrivals_s is not None
    assert trace.arrivals_s.tolist() == [0, 21600]
    assert trace.output_lens is None
    assert any("outputs" in warning for warning in trace.warnings)


def test_values_may_be_quoted_and_others_may_hold_commas() -> None:
    header = '"note",window_start_s,field,tokens,expected_requests'
    rows = '"a, b","0","input_tokens","5","2"\n,0,input_tokens,6,1'

    trace = read(f"{header}\n{rows}")

    assert trace.prompt_lens.tolist() == [5, 6]
    assert trace.num_requests == 3


def test_counters_give_the_requests_that_had_finished() -> None:
    trace = read('{"noria_counters": 1,\n "prompts": [[300, 20, 5], [40, 1, 2]]}')

    assert trace.prompt_lens.tolist() == [300, 40]
    assert trace.output_lens is not None
    assert trace.output_lens.tolist() == [20, 1]
    assert trace.weights is not None
    assert trace.weights.tolist() == [5, 2]


def mooncake(*rows: tuple[int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "hash_ids")
    records = (dict(zip(keys, row, strict=True)) for row in rows)
    return "".join(json.dumps({**record, "output_length": 1}) + "\n" for record in records)


def test_prefixes_are_what_earlier_prompts_left_in_an_unbounded_cache() -> None:
    trace = read(
        mooncake(
            *((0, 1100, [0, 1, 2]), (5, 1500, [0, 1, 3]), (6, 1024, [0, 1]), (7, 600, [9, 3])),
            *((8, 1025, [0, 1, 7]), (9, 1100, [0, 1, 2])),
        )
    )

    assert trace.prefix_lens is not None
    assert trace.prefix_lens.tolist() == [0, 1024, 512, 0, 1024, 1024]


def test_caches_fill_in_order_of_arrival_not_of_lines() -> None:
    trace = read(mooncake((9, 700, [0, 1]), (3, 600, [0, 2])))

    assert trace.prompt_lens.tolist() == [600, 700]
    assert trace.prefix_lens is not None
    assert trace.prefix_lens.tolist() == [0, 512]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6))
def test_prefixes_are_the_longest_that_any_earlier_prompt_begins_with(
    prompts: list[list[int]],
) -> None:
    # An id stands for the blocks up to it, so ids are numbered by those.
    ids = {}
    hashes = [[ids.setdefault(tuple(p[: n + 1]), len(ids)) for n in range(len(p))] for p in prompts]

    found = cached_prefixes(np.array([len(p) * 512 for p in prompts]), hashes)

    for index, prompt in enumerate(prompts):
        common = (
            next((n for n, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), None)
            or min(len(prompt), len(other)) * (prompt[:1] == other[:1])
            for other in prompts[:index]
        )
        longest = max(common, default=0)
        assert found[index] == min(longest, len(prompt) - 1) * 512


def test_times_that_fall_are_sorted_with_a_warning_that_names_the_line() -> None:
    trace = read("prompt_len,arrival_s\n1,10\n2,30\n3,20\n4,5\n")

    assert trace.prompt_lens.tolist() == [4, 1, 3, 2]
    assert trace.arrivals_s is not None
    assert trace.arrivals_s.tolist() == [0, 5, 15, 25]
    assert trace.warnings[0] == (
        "times are not in order: 2 of 4 rows are earlier than the row before, the first on line "
        "4; the rows were sorted by time"
    )


def test_requests_of_one_time_keep_their_order_without_a_warning() -> None:
    trace = read("prompt_len,arrival_s\n" + "".join(f"{n},7\n" for n in range(1, 2001)))

    assert trace.prompt_lens.tolist() == list(range(1, 2001))
    assert trace.warnings == ()


def test_requests_of_one_time_keep_their_order_where_rows_are_sorted() -> None:
    trace = read("prompt_len,arrival_s\n" + "".join(f"{n},{n % 2}\n" for n in range(1, 2001)))

    assert trace.prompt_lens.tolist() == [*range(2, 2001, 2), *range(1, 2001, 2)]


def test_few_requests_are_named() -> None:
    (warning,) = read("prompt_len\n" + "7\n" * 10).warnings

    assert warning.startswith("only 10 requests, ")
    assert read("prompt_len\n" + "7\n" * 1000).warnings == ()


@pytest.mark.parametrize("num", [20, 1_000, 5_000])
def test_one_huge_outlier_is_named(num: int) -> None:
    usual = "prompt_len,output_len\n" + "100,9\n" * num

    (warning,) = (w for w in read(usual + "1001,9\n").warnings if "outlier" in w)

    assert warning.startswith("the longest prompt has 1,001 tokens, more than 10 times")
    assert not [w for w in read(usual + "1000,9\n").warnings if "outlier" in w]
    assert any("longest output" in w for w in read(usual + "100,91\n").warnings)


def test_an_outlier_of_a_histogram_is_told_by_its_count() -> None:
    def named(count: int) -> bool:
        trace = read(f"size,count\n100,99999\n1001,{count}\n")
        return any("outlier" in warning for warning in trace.warnings)

    assert named(1)
    assert not named(1_000)


def test_what_a_file_holds_is_told_by_its_first_line() -> None:
    batch = b'{"custom_id": "a", "body": {"messages": []}}'

    assert holds_prompts(b'{"prompt": "a"}')
    assert holds_prompts(batch)
    assert holds_batch(batch)
    assert not holds_batch(b'{"prompt": "body"}')
    assert not holds_prompts(b'{"timestamp": 0}')
    assert is_trace(AZURE.encode())
    assert is_trace(b'{"timestamp": 0}')
    assert not is_trace(b"Name three fruits, and size,count")
    assert not is_trace(b"\xff")
