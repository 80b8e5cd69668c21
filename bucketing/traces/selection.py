"""Parts of a trace: the first requests, its halves, what an engine admits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .oddities import count_text, other_warnings, with_oddities
from .trace import Floats, Ints, Rows, Trace, TraceError, pick


def take(trace: Trace, rows: Rows, name: str) -> Trace:
    """Return some rows of a trace, in its order, with arrivals from the first of them on.

    Args:
        trace: where they are taken from.
        rows: which ones, ascending; at least one.
        name: what is taken, which makes the part's ``sha256`` another than the whole's.
    """
    arrivals = pick(trace.arrivals_s, rows)
    part = Trace(
        prompt_lens=trace.prompt_lens[rows],
        output_lens=pick(trace.output_lens, rows),
        arrivals_s=None if arrivals is None else arrivals - arrivals[0],
        prefix_lens=pick(trace.prefix_lens, rows),
        weights=pick(trace.weights, rows),
        sha256=derived_sha256(trace, name),
        warnings=other_warnings(trace),
    )
    return with_oddities(part)


def derived_sha256(trace: Trace, name: str) -> str:
    """Return the digest of what was made of a trace, by its name."""
    return hashlib.sha256(f"{trace.sha256} {name}".encode()).hexdigest()


def head(trace: Trace, num_rows: int) -> Trace:
    """Return the first rows of a trace, or all if it has no more.

    Raises:
        TraceError: ``num_rows`` is not positive.
    """
    if num_rows < 1:
        raise TraceError(f"the first {num_rows} requests of a trace; must be at least 1")
    return take(trace, slice(num_rows), f"head {num_rows}")


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Return the earlier and the later half of the requests.

    Rows with weights that arrive at one time, as those of one window do, stay together.

    Raises:
        TraceError: there is one row or one window.
    """
    at = len(trace.prompt_lens) // 2
    if trace.weights is not None:
        at = _middle(trace.weights, trace.arrivals_s)
    if not 0 < at < len(trace.prompt_lens):
        raise TraceError("a trace of one row or one window of time has no halves")
    return take(trace, slice(at), "first half"), take(trace, slice(at, None), "second half")


def _middle(weights: Floats, arrivals: Floats | None) -> int:
    """Return the row that begins the second half."""
    below = np.cumsum(weights)
    at = int(np.searchsorted(below, below[-1] / 2)) + 1
    if arrivals is None:
        return min(at, len(weights) - 1)
    starts = np.flatnonzero(np.diff(arrivals)) + 1
    distance = np.abs(below[starts - 1] - below[-1] / 2)
    return int(starts[np.argmin(distance)]) if len(starts) else 0


def fit_to_limits(trace: Trace, max_model_len: int) -> Trace:
    """Return what an engine runs of a trace, with warnings that count what it does not.

    Requests whose prompt leaves no room for one new token are left out, as the engine refuses
    them; outputs end where the engine ends them, at ``max_model_len`` tokens of prompt and output.

    Raises:
        TraceError: no request is left.
    """
    is_fit = trace.prompt_lens < max_model_len
    if not is_fit.any():
        raise TraceError(
            f"no prompt of the trace fits: the shortest has {trace.prompt_lens.min():,} tokens; "
            f"max_model_len {max_model_len:,} allows {max_model_len - 1:,} and one new token"
        )
    room = max_model_len - trace.prompt_lens
    outputs = trace.output_lens
    is_cut = np.zeros_like(is_fit) if outputs is None else is_fit & (outputs > room)
    if is_fit.all() and not is_cut.any():
        return trace
    warnings = (*other_warnings(trace), *_unfit(trace, is_fit, is_cut, max_model_len))
    cut = None if outputs is None else np.where(is_fit, np.minimum(outputs, room), outputs)
    fitted = replace(trace, output_lens=cut, warnings=warnings)
    return take(fitted, is_fit, f"max_model_len {max_model_len}")


def _unfit(
    trace: Trace, is_fit: NDArray[np.bool_], is_cut: NDArray[np.bool_], limit: int
) -> Iterator[str]:
    if not is_fit.all():
        longest = int(trace.prompt_lens.argmax())
        yield (
            f"{_share(trace, ~is_fit)} have prompts of more than the {limit - 1:,} tokens that "
            f"max_model_len {limit:,} allows and are left out; the longest is request "
            f"{longest + 1:,} with {trace.prompt_lens[longest]:,}"
        )
    if is_cut.any():
        first = int(is_cut.argmax())
        yield (
            f"{_share(trace, is_cut)} have more than max_model_len {limit:,} tokens of prompt and "
            f"output, the first is request {first + 1:,}; their outputs end at the limit"
        )


def _share(trace: Trace, rows: NDArray[np.bool_]) -> str:
    """Write how many requests some rows stand for."""
    num = float(rows.sum() if trace.weights is None else trace.weights[rows].sum())
    total = trace.num_requests
    return f"{count_text(num)} of {count_text(total)} requests ({num / total:.2%})"


def scale(trace: Trace, max_model_len: int) -> Trace:
    """Return a trace whose longest request fits a smaller model, the others in proportion.

    Lengths are multiplied by one number, rounded down, and at least 1; arrivals stay. A trace that
    fits already is returned as it is.

    Raises:
        TraceError: ``max_model_len`` has no room for one prompt token and one new one.
    """
    if max_model_len < 2:
        raise TraceError(f"max_model_len is {max_model_len}; a request needs at least 2 tokens")
    totals = trace.prompt_lens + (1 if trace.output_lens is None else trace.output_lens)
    longest = int(totals.max())
    if longest <= max_model_len:
        return trace
    prompts = _scaled(trace.prompt_lens, max_model_len, longest)
    prefixes = trace.prefix_lens
    if prefixes is not None:
        prefixes = np.minimum(prefixes * max_model_len // longest, prompts - 1)
    outputs = trace.output_lens
    if outputs is not None:
        outputs = _scaled(outputs, max_model_len, longest)
    note = f"lengths are scaled by {max_model_len} / {longest}, so that all requests fit"
    return with_oddities(
        replace(
            trace,
            prompt_lens=prompts,
            output_lens=outputs,
            prefix_lens=prefixes,
            sha256=derived_sha256(trace, f"scale {max_model_len}"),
            warnings=(*other_warnings(trace), note),
        )
    )


def _scaled(lens: Ints, numerator: int, denominator: int) -> Ints:
    scaled: Ints = np.maximum(lens * numerator // denominator, 1)
    return scaled
