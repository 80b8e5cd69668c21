"""The coverage proof counts what a loop over all shapes counts, and finds what is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import DecodeBucket, PlanFile, PlanLimits, PrefillBucket
from noria.bucketing.plan_file import PlannedGraph
from noria.bucketing.report.proven import count_shapes, coverage
from noria.bucketing.report.sentences import coverage_sentence

GRAPHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20)), min_size=1, unique=True)


@given(GRAPHS, st.integers(1, 8), st.integers(1, 18))
def test_cells_count_as_single_shapes_do(
    graphs: list[tuple[int, int]], max_size: int, context_len: int
) -> None:
    buckets = [DecodeBucket(*graph) for graph in graphs]

    found = count_shapes("decode", buckets, max_size, context_len)

    shapes = [(s, c) for s in range(1, max_size + 1) for c in range(1, context_len + 1)]
    chosen = {
        (s, c): next((b.label for b in buckets if s <= b.num_seqs and c <= b.context_len), None)
        for s, c in shapes
    }
    covered = [label for label in chosen.values() if label is not None]
    assert (found.num_shapes, found.num_covered) == (len(shapes), len(covered))
    assert found.is_proven == (len(covered) == len(shapes))
    assert found.missing == next((s for s in shapes if chosen[s] is None), None)
    assert set(found.idle) == {bucket.label for bucket in buckets} - set(covered)


def test_a_hole_is_said_aloud() -> None:
    found = count_shapes("decode", [DecodeBucket(2, 64), DecodeBucket(4, 32)], 4, 64)

    assert coverage_sentence(found) == (
        "Decode: 1 to 4 requests with contexts of 1 to 64 tokens are 256 shapes; 64 have NO graph, "
        "the first is 3 requests with 33 tokens."
    )


def test_covered_prompts_need_graphs_up_to_the_largest_chunk() -> None:
    limits = PlanLimits(256, 2, 512, 2, 16)
    plan = PlanFile(
        limits,
        tuple(PlannedGraph(PrefillBucket(size, 512), size / 1e3) for size in (32, 64)),
        (PlannedGraph(DecodeBucket(2, 512), 1.0),),
        "cover",
        ((1, 32), (33, 64)),
    )

    prefill, decode = coverage(plan)

    assert (prefill.max_size, prefill.num_shapes, prefill.is_proven) == (64, 64 * 512, True)
    assert (decode.max_size, decode.num_shapes, decode.is_proven) == (2, 2 * 512, True)
