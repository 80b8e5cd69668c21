"""``noria generate``: run a file of prompts, offline, and keep every result that finished."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import Config, parse_config
from ..errors import NoriaError
from ..interrupts import held_interrupts
from ..plan_setting import plan_path
from ..yaml_reader import read_yaml
from .failures import EXIT_STATUSES, SOME_FAILED
from .output_paths import STDOUT, OutputPath
from .progress import show_progress
from .prompt_file import PromptLine, read_prompts
from .result_file import Result, ResultWriter, open_results
from .run_reports import open_reports
from .summary import Tally, summary_text

FILL_S = 20.0
"""Seconds after a run that are given to graphs that are still being compiled."""

if TYPE_CHECKING:
    from ..llm import LLM
    from ..outputs import RequestOutput


@click.command(epilog=EXIT_STATUSES)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--prompts",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text with a prompt per line, or .jsonl: see above.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write results as JSON lines, each as soon as it is finished; - is stdout.",
)
@click.option(
    "--compiled",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Load graphs from this compiled set; replaces the setting compiled.",
)
@click.option(
    "--require-compiled",
    is_flag=True,
    help="Compile nothing: refuse what the set lacks, and say which fields of the key differ.",
)
@click.option(
    "--counters",
    metavar="FILE",
    type=OutputPath(),
    help="Write which steps ran, for how long, and lengths of requests: traffic to plan for.",
)
@click.option(
    "--metrics",
    metavar="FILE",
    type=OutputPath(),
    help="Write tokens, padding and seconds of each graph as Prometheus reads them.",
)
@click.option("--chat", is_flag=True, help="Make each text the user's message of a chat.")
@click.option("--max-tokens", type=int, help="Most new tokens per prompt.")
@click.option("--temperature", type=float, help="0 takes the likeliest token.")
@click.option("--top-p", type=float, help="Sample among tokens that reach this probability.")
@click.option("--top-k", type=int, help="Sample among this many likeliest tokens.")
@click.option("--seed", type=int, help="Same seed, same tokens; used for every prompt.")
def generate(
    config: Path,
    prompts: Path,
    output: Path | None,
    *,
    compiled: Path | None,
    require_compiled: bool,
    counters: Path | None,
    metrics: Path | None,
    chat: bool,
    **sampling: float | None,
) -> None:
    """Generate for every prompt of a file.

    A line of a .jsonl file is an object with one of "prompt" (text), "prompt_token_ids" or
    "messages" (a chat, beside which "tools" may list functions as JSON schemas), and any key of
    the configuration's section "sampling", which go before the options here, as these go before
    the configuration: max_tokens, min_tokens, stop, stop_token_ids, seed, n, temperature, top_k,
    top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, bad_words,
    structured_output, logprobs, prompt_logprobs and others. Some need more sampler_features than
    the configuration has by itself. With scheduling_policy priority, "priority" is an integer,
    the smallest of which runs first; without it is 0. Blank lines are skipped. A line that
    cannot run fails alone, with its number.

    Results have index (of the prompt, from 0), prompt (as written; null for token ids and
    chats), text, token_ids, finish_reason (stop, length or error) and error, and come in the
    order in which they finish. Where a request asks for them, they also have logprobs (one per
    token) and prompt_logprobs (one per token of the prompt but the first), each with logprob,
    rank and top (pairs of token id and logprob), and for n above 1 completions, which lists all
    samples, also where one of them failed. Without -o, texts are printed in the order of the
    prompts.
    """
    written = _written(config, compiled, require_compiled)
    settings = parse_config(written, source=str(config), folder=config.parent)
    given = {key: value for key, value in sampling.items() if value is not None}
    params = replace(settings.sampling, **given)  # type: ignore[arg-type]
    lines = read_prompts(prompts, params, chat=chat)
    inputs = {"prompts": prompts, "configuration": config, **_named_files(settings)}
    if plan_path(written) is not None:
        inputs["plan"] = config.parent / expanduser(str(plan_path(written)))
    results = {"results": None if str(output) == STDOUT else output}
    with (
        open_results(output, inputs) as writer,
        open_reports(counters, metrics, {**inputs, **results}) as write_reports,
    ):
        from ..llm import LLM

        with show_progress("graphs") as progress:
            llm = LLM(settings, progress=progress)
        with llm:
            try:
                tally = _run(llm, lines, writer)
            finally:
                write_reports(llm)
            _fill_local_set(llm)
    if tally.num_failed:
        click.get_current_context().exit(SOME_FAILED)


def _written(path: Path, compiled: Path | None, require_compiled: bool) -> object:
    """Read the configuration with what the options say about compiled graphs in it."""
    given = read_yaml(path)
    if isinstance(given, Mapping):
        options = {"compiled": str(compiled)} if compiled is not None else {}
        options |= {"compile": "never"} if require_compiled else {}
        given = {**given, **options}
    return given


def _named_files(settings: Config) -> dict[str, Path]:
    """Give what the settings name as if it were files here, which it may not be."""
    named = {"model": settings.model, "tokenizer": settings.tokenizer}
    return {key: Path(expanduser(name)) for key, name in named.items() if isinstance(name, str)}


def _run(llm: LLM, lines: Sequence[PromptLine], writer: ResultWriter) -> Tally:
    """Write the result of every line; say at the end, or when interrupted, what was done.

    An interrupt waits for the end of a step, whose results are written before the run stops.
    """
    tally = Tally(num_prompts=len(lines))
    start = time.monotonic()
    try:
        with show_progress("generate") as progress, held_interrupts() as interrupts:
            progress("", 0, len(lines))
            for results in _results(llm, lines):
                for result in results:
                    writer.write(result)
                    tally.add(result)
                if results:
                    progress("", tally.num_finished + tally.num_failed, len(lines))
                if interrupts:
                    break
    finally:
        seconds, num_pending = time.monotonic() - start, llm.loaded.arrivals.num_pending
        text = summary_text(tally, llm.loaded.runner.counters, seconds, num_pending=num_pending)
        click.echo(text, err=True)
    return tally


def _fill_local_set(llm: LLM) -> None:
    """Let graphs that are nearly there be finished: a short run would leave each start as cold.

    An interrupt ends only the waiting: all results are written.
    """
    num_pending = llm.loaded.arrivals.num_pending
    if not num_pending:
        return
    click.echo(
        f"waiting up to {FILL_S:.0f} s for {num_pending} graphs, which later starts load; "
        "Ctrl-C skips that",
        err=True,
    )
    with suppress(KeyboardInterrupt, NoriaError):  # of failures, warnings have told
        llm.wait_for_graphs(timeout_s=FILL_S)


def _results(llm: LLM, lines: Sequence[PromptLine]) -> Iterator[list[Result]]:
    """Yield what finished after each step, first the lines that cannot run."""
    ready = [(line, line.request) for line in lines if line.request is not None]
    yield [_failure(line, line.error) for line in lines if line.error is not None]
    prompts = [prompt for _, prompt in ready]
    params = [line.params for line, _ in ready]
    priorities = [line.priority for line, _ in ready]
    for finished in llm.iterate_steps(prompts, params, priority=priorities):
        yield [_result(ready[index][0], output) for index, output in finished]


def _result(line: PromptLine, output: RequestOutput) -> Result:
    several = output.completions if len(output.completions) > 1 else None
    if output.error is not None and several is None:
        return _failure(line, output.error)
    return Result(
        index=line.index,
        prompt=line.prompt,
        text=output.text,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
        error=None if output.error is None else _with_number(line, output.error),
        logprobs=output.completions[0].logprobs,
        prompt_logprobs=output.prompt_logprobs,
        completions=several,
    )


def _failure(line: PromptLine, reason: str) -> Result:
    error = _with_number(line, reason)
    return Result(line.index, line.prompt, None, (), finish_reason="error", error=error)


def _with_number(line: PromptLine, reason: str) -> str:
    return f"line {line.number}: {reason}"
