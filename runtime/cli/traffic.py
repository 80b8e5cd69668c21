"""Traffic of users, in files: traces, or prompts whose tokens a model's tokenizer counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...bucketing.traces.csv_traces import trace_csv
from ...bucketing.traces.kinds import MAX_LEN
from ...bucketing.traces.oddities import with_oddities
from ...bucketing.traces.readers import holds_batch, holds_prompts, is_trace
from ...bucketing.traces.trace import Trace
from ..errors import RequestError
from ..sampling_params import SamplingParams
from ..text_files import text_suffix
from ..trace_files import read_trace_file
from .batch_file import read_batch
from .failures import UserMistake
from .prompt_file import Prompt, PromptLine, numbered_lines, read_prompts

TokenIds = Callable[[Prompt], Sequence[int]]
"""Tokenizes a prompt; raises RequestError."""
TEXT_SUFFIX = ".txt"


def read_traffic(
    path: Path, tokenizer: Callable[[], TokenIds], params: SamplingParams, *, chat: bool = False
) -> Trace:
    """Read a trace, or a file of prompts or of OpenAI batch requests; all compressed or not.

    Args:
        path: the file; what it holds tells its first line, or ``.txt`` for texts.
        tokenizer: loads what counts tokens, called for prompts only.
        params: settings that a prompt's own replace.
        chat: whether a text is the only message of a conversation.

    Raises:
        UserMistake: there is nothing in it that can run.
        NoriaError: it is no trace.
    """
    _, first = next(numbered_lines(path), (0, b""))
    first = first.strip()
    if holds_prompts(first):
        is_batch = holds_batch(first)
        lines = read_batch(path, params) if is_batch else read_prompts(path, params, chat=chat)
        return prompt_trace(path, lines, tokenizer())
    if first and text_suffix(path) == TEXT_SUFFIX and not is_trace(first):
        return prompt_trace(path, read_prompts(path, params, chat=chat), tokenizer())
    return read_trace_file(path)


def prompt_trace(path: Path, lines: Sequence[PromptLine], token_ids: TokenIds) -> Trace:
    """Count the tokens of prompts; those that cannot run are left out with a warning.

    An output is as long as its request's ``max_tokens``, where all have one.

    Raises:
        UserMistake: no prompt can run.
    """
    counted = [(line, *_count(line, token_ids)) for line in lines]
    good = [(line, num) for line, num, _ in counted if num]
    failed = [(line.number, error) for line, num, error in counted if not num]
    if not good:
        raise UserMistake(f"{path}, line {failed[0][0]}: {failed[0][1]}; no other prompt can run")
    limits = [line.params.max_tokens for line, _ in good]
    outputs = [min(limit, MAX_LEN) for limit in limits if limit is not None]
    has_outputs = len(outputs) == len(good)
    trace = Trace(
        prompt_lens=np.array([num for _, num in good], np.int64),
        output_lens=np.array(outputs, np.int64) if has_outputs else None,
        warnings=tuple(_warnings(failed, [line for line, _ in good], len(outputs))),
    )
    digest = hashlib.sha256(trace_csv(trace).encode()).hexdigest()
    return with_oddities(replace(trace, sha256=digest))


def _count(line: PromptLine, token_ids: TokenIds) -> tuple[int, str]:
    """Return the tokens of a prompt, or 0 and why it cannot run."""
    if line.request is None:
        return 0, line.error or ""
    try:
        return len(token_ids(line.request)), "the prompt has no tokens"
    except RequestError as error:
        return 0, str(error)


def _warnings(
    failed: Sequence[tuple[int, str]], good: Sequence[PromptLine], num_outputs: int
) -> Iterator[str]:
    if failed:
        number, error = failed[0]
        total = len(failed) + len(good)
        yield (
            f"{len(failed):,} of {total:,} prompts cannot run and are left out, the first "
            f"on line {number}: {error}"
        )
    if num_outputs == len(good):
        yield "outputs are taken to be as long as max_tokens allows"
    elif num_outputs:
        num = len(good) - num_outputs
        yield f"{num:,} of {len(good):,} prompts have no max_tokens, so no output length is known"
    num_several = sum(line.params.n > 1 for line in good)
    if num_several:
        yield f"{num_several:,} prompts ask for several outputs; one of each is counted"
