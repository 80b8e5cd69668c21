"""The lints themselves: each yields (setting, what is wrong with it) of a valid configuration.

A lint looks at a configuration, the limits and the plan that it makes, and at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log2

from ..bucketing import BucketPlan, PlanLimits, describe, round_up, waste_share
from .schema import entries
from .settings import NEURON_BACKENDS, Config

MAX_RATIO = 4
"""Of neighbouring sizes: beyond it more than three quarters of a step may be padding."""
MIN_SAVED_SHARE = 1 / 32
"""Of a step's rows: a graph that saves less for every step is not worth being compiled."""
NEAR_SHARE = 1 / 32
"""A size that is less than this below a power of two misses prompts that are cut to that."""
SMALL_TOKENS, SMALL_SEQS = 256, 8
"""Steps of no more rows mostly wait for weights, so that their padding costs little time."""
MAX_FIRST_TOKENS = 512
"""A single prefill graph of no more tokens is a way to start fast."""
MAX_GRAPHS = 64
"""Of a phase: other systems' users complain of start-ups of an hour from about there on."""
POOL_SHARE = 8
"""Requests of ``max_model_len / POOL_SHARE`` tokens should fit the pool, all at once."""


@dataclass(frozen=True, slots=True)
class Linted:
    """A valid configuration, with the limits and the plan that it makes."""

    config: Config
    limits: PlanLimits
    plan: BucketPlan


Found = Iterator[tuple[str, str]]


def limit_without_effect(linted: Linted) -> Found:
    """Find a limit that a smaller one hides."""
    config, setting = linted.config, "max_num_batched_tokens"
    value, limit = config.max_num_batched_tokens, config.max_model_len
    if value > limit and value != entries(Config)[setting].setting.default:
        yield (
            setting,
            f"is {value}, but no step has more tokens than max_model_len {limit}, so prompts share "
            f"steps of {limit}; set it to {limit}, or raise max_model_len",
        )


def wide_gap(linted: Linted) -> Found:
    """Find neighbours of which the smaller is of no use to most steps between them."""
    for setting, sizes, small in _row_lists(linted.config):
        for size, larger in pairwise(sizes):
            if larger > MAX_RATIO * size and larger > small:
                between = _between(size, larger, linted.limits.prefill_tile)
                better = max(waste_share(size + 1, between), waste_share(between + 1, larger))
                yield (
                    setting,
                    f"{size} and {larger} are {larger / size:.1f} times apart, so that up to "
                    f"{100 * waste_share(size + 1, larger):.0f} % of a step is padding; {between} "
                    f"in between makes that {100 * better:.0f} %",
                )


def twin_sizes(linted: Linted) -> Found:
    """Find neighbours so near that the smaller saves nothing: a limit just above a size, too."""
    width = linted.limits.table_width
    lists = [(setting, "rows", sizes) for setting, sizes, _ in _row_lists(linted.config)]
    lists += [(setting, "context", sizes) for setting, sizes in _context_lists(linted.config)]
    for setting, what, sizes in lists:
        near = [(a, b) for a, b in pairwise(sizes) if b - a < MIN_SAVED_SHARE * b]
        if what == "context":  # those of one table are for same_table
            near = [(a, b) for a, b in near if width(a) < width(b)]
        if near:
            size, larger = near[-1]
            lower = f", or lower the limit to {size}" if larger == sizes[-1] else ""
            yield (
                setting,
                f"{size} saves at most {100 * waste_share(size, larger):.1f} % of the {what} "
                f"beside {larger}{_and_others(len(near) - 1)}; leave such sizes out{lower}",
            )


def just_below(linted: Linted) -> Found:
    """Find sizes that miss a common length of prompts by little."""
    setting, sizes, small = next(_row_lists(linted.config))
    for size, larger in pairwise(sizes):
        common = 1 << size.bit_length()
        is_near = common - size < NEAR_SHARE * common
        if is_near and common < larger and larger > small:
            yield (
                setting,
                f"{size} is just below {common}, a length to which prompts are often cut: these "
                f"run in {larger}, of which {100 * waste_share(common, larger):.0f} % is padding; "
                f"{common} holds them",
            )


def large_start(linted: Linted) -> Found:
    """Find axes whose smallest graph is a large one, or whose only graph is the largest."""
    wanted = {"num_batched_tokens_buckets": MAX_FIRST_TOKENS, "num_seqs_buckets": SMALL_SEQS}
    what = {"num_batched_tokens_buckets": "a prompt of 1 token", "num_seqs_buckets": "1 request"}
    for setting, sizes, _ in _row_lists(linted.config):
        first, is_only = sizes[0], len(sizes) == 1
        if first > wanted[setting]:
            between = _between(1, first, linted.limits.prefill_tile)
            yield (
                setting,
                f"{f'has {first} only' if is_only else f'begins with {first}'}, so that "
                f"{what[setting]} takes as long as {first}; {between} beside it, or no list, makes "
                "smaller steps",
            )


def many_graphs(linted: Linted) -> Found:
    """Find products of lists that take long to compile."""
    for phase, rows, contexts in (
        ("prefill", "num_batched_tokens_buckets", "prefill_context_length_buckets"),
        ("decode", "num_seqs_buckets", "decode_context_length_buckets"),
    ):
        num_rows, num_contexts = (len(getattr(linted.config, key)) for key in (rows, contexts))
        num_graphs = sum(bucket.phase == phase for bucket in linted.plan.buckets)
        if num_graphs > MAX_GRAPHS:
            yield (
                contexts if num_contexts > 1 else rows,
                f"{num_rows} sizes of {rows} and {num_contexts} of {contexts} make {num_graphs} "
                f"graphs, about {_duration(_compile_s(linted, num_graphs))} of compiling by one "
                f"worker; {MAX_GRAPHS} or fewer start sooner, and a plan of traffic needs less",
            )


def same_table(linted: Linted) -> Found:
    """Find contexts whose graphs are the same as the next, for whole folds of blocks."""
    for setting, size, larger in _neighbouring_contexts(linted.config):
        width = linted.limits.table_width(size)
        if width == linted.limits.table_width(larger):
            yield (
                setting,
                f"{size} and {larger} have block tables of the same {width} columns, so the graphs "
                f"of {size} save nothing; leave {size} out",
            )


def room_in_table(linted: Linted) -> Found:
    """Find contexts that do not fill the blocks of their table."""
    for setting, size, larger in _neighbouring_contexts(linted.config):
        room = linted.limits.table_width(size) * linted.limits.block_size
        if size < room < larger:
            yield (
                setting,
                f"{size} has a block table with room for {room} tokens, so that longer requests "
                f"take the graphs of {larger} for nothing; {room} costs the same",
            )


def small_pool(linted: Linted) -> Found:
    """Find pools in which few requests run at once."""
    config = linted.config
    if config.num_blocks == "auto":
        return
    num_tokens = (config.num_blocks - 1) * config.block_size
    typical = max(1, config.max_model_len // POOL_SHARE)
    wanted = config.max_num_seqs * -(-typical // config.block_size) + 1
    if num_tokens < config.max_num_seqs * typical:
        yield (
            "num_blocks",
            f"is {config.num_blocks}, which hold {num_tokens} tokens: "
            f"{num_tokens // config.max_num_seqs} for each of max_num_seqs {config.max_num_seqs} "
            f"requests, so that these wait or are computed again; {wanted} hold {typical} for "
            f"each, or set max_num_seqs to {max(1, num_tokens // typical)}",
        )


def unreachable(linted: Linted) -> Found:
    """Find sizes whose smallest step needs more blocks than there are: one for each request."""
    if linted.config.num_blocks == "auto":
        return
    num_blocks, sizes = linted.config.num_blocks - 1, linted.config.num_seqs_buckets
    beyond = [str(size) for before, size in pairwise(sizes) if before >= num_blocks]
    if beyond:
        yield (
            "num_seqs_buckets",
            f"{_some(beyond)} can never be filled: num_blocks {num_blocks + 1} have a block each "
            f"for {num_blocks} requests; set max_num_seqs to {num_blocks}, or raise num_blocks",
        )


def replaced(linted: Linted) -> Found:
    """Find graphs beside which another holds as much and takes less."""
    rows = describe(linted.plan, linted.limits).rows
    labels = [row.label for row in rows if row.smallest_need > row.bucket.size]
    if labels:
        yield "buckets", f"{_some(labels)} never run: a larger graph takes less; drop them"


def no_saving(linted: Linted) -> Found:
    """Find prefill graphs that take as long as the next size: below the ridge, mostly."""
    seconds = linted.plan.seconds
    ordered = sorted(linted.plan.prefill, key=lambda bucket: (bucket.size, bucket.context_len))
    for bucket, larger in pairwise(ordered):
        if seconds[bucket] > (1 - MIN_SAVED_SHARE) * seconds[larger]:
            yield (
                "buckets",
                f"{bucket.label} takes {1e3 * seconds[bucket]:.2f} ms and {larger.label} "
                f"{1e3 * seconds[larger]:.2f} ms: it saves nothing that is worth compiling; "
                "drop it",
            )


def _row_lists(config: Config) -> Iterator[tuple[str, Sequence[int], int]]:
    """Yield setting, sizes and the rows up to which steps are small: tokens, then requests."""
    yield "num_batched_tokens_buckets", config.num_batched_tokens_buckets, SMALL_TOKENS
    yield "num_seqs_buckets", config.num_seqs_buckets, SMALL_SEQS


def _context_lists(config: Config) -> Iterator[tuple[str, Sequence[int]]]:
    for setting in ("prefill_context_length_buckets", "decode_context_length_buckets"):
        yield setting, getattr(config, setting)


def _neighbouring_contexts(config: Config) -> Iterator[tuple[str, int, int]]:
    for setting, sizes in _context_lists(config):
        for size, larger in pairwise(sizes):
            yield setting, size, larger


def _between(size: int, larger: int, tile: int) -> int:
    """Return a power of two in the middle of two sizes, by ratio, as far as the tile allows.

    Of two that are as near the larger is: steps just above the smaller size are the worst.
    """
    middle = 1 << floor((log2(size) + log2(larger) + 1) / 2)
    return min(round_up(middle, min(tile, larger)), larger - 1)


def _compile_s(linted: Linted, num_graphs: int) -> float:
    from ..bucketing.costs.devices import CPU_FEES, NEURON_FEES

    fees = NEURON_FEES if linted.config.backend in NEURON_BACKENDS else CPU_FEES
    return num_graphs * fees.base_compile_s


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _and_others(num: int) -> str:
    if num == 0:
        return ""
    return f", and so do {num} other sizes" if num > 1 else ", and so does 1 other size"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
