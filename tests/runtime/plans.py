"""Plans for tests: as plain data that a file would hold, and any that there may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st

from noria.bucketing import PlanFile, PlanLimits

LIMITS = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "max_model_len": 64,
    "max_num_prefill_seqs": 4,
    "block_size": 8,
}
"""Of an engine that is small enough to compile in a test."""
RAGGED = ((1, 32), (2, 16), (2, 64), (3, 40), (4, 64))


def plan_data(
    tokens: Sequence[int] = (16, 40, 64),
    decode: Sequence[tuple[int, int]] = RAGGED,
    *,
    chunks: Sequence[tuple[int, int]] = (),
    **limits: int,
) -> dict[str, Any]:
    """Return a plan for these limits, with seconds that grow with the sizes.

    Args:
        tokens: of prefill graphs.
        decode: requests and context of decode graphs.
        chunks: of the policy cover; none: fill.
        limits: other ones than ``LIMITS``.
    """
    given = {**LIMITS, **limits}
    context = given["max_model_len"]
    return {
        "noria_plan": 1,
        "limits": given,
        "prefill": {
            "policy": "cover" if chunks else "fill",
            "graphs": [[size, context, size / 1000] for size in tokens],
            "chunks": [list(pair) for pair in chunks],
        },
        "decode": {"graphs": [[s, c, s * (c + 100) / 1e6] for s, c in decode]},
    }


@st.composite
def any_plan(draw: st.DrawFn, limits: PlanLimits) -> PlanFile:
    """Any plan for these limits: ragged, ties, graphs that nothing needs, any table of chunks."""
    most, context = limits.max_prefill_tokens, limits.max_model_len
    tokens = draw(st.sets(st.integers(1, most), min_size=1, max_size=3))
    covers = draw(st.booleans())
    tokens |= set() if covers else {most}
    starts = draw(st.sets(st.integers(2, 2 * most), max_size=4)) if covers else set()
    sizes = st.sampled_from(sorted(tokens))
    chunks = [(start, draw(sizes)) for start in sorted({1, *starts})] if covers else []
    shorter = st.tuples(sizes, st.integers(1, context))
    prefill = {(size, context) for size in tokens} | draw(st.sets(shorter, max_size=1))
    pairs = st.tuples(st.integers(1, limits.max_num_seqs), st.integers(1, context))
    decode = draw(st.sets(pairs, max_size=4)) | {(limits.max_num_seqs, context)}
    return PlanFile.from_mapping(
        {
            "noria_plan": 1,
            "limits": asdict(limits),
            "prefill": {
                "policy": "cover" if covers else "fill",
                "graphs": _timed(draw, prefill),
                "chunks": chunks,
            },
            "decode": {"graphs": _timed(draw, decode)},
        }
    )


def _timed(draw: st.DrawFn, shapes: set[tuple[int, int]]) -> list[list[float]]:
    """Give every graph its seconds; the limit graph, which is the largest, takes most."""
    *others, limit = sorted(shapes)
    seconds = [draw(st.sampled_from([0.25, 0.5, 1.0])) for _ in others]
    return [[*shape, time] for shape, time in zip([*others, limit], [*seconds, 1.0], strict=True)]
