"""The offline interface: texts, chats or token ids in, generated text out."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self, cast

from .config import Config, load_config, parse_config
from .conversation import Conversation, Message, Tool
from .engine import OutputWatch
from .errors import NoriaError, RequestError
from .graphs import Progress
from .interrupts import held_interrupts
from .loading import LoadedEngine, load_engine
from .metrics import metrics_text
from .outputs import RequestOutput
from .prompts import Prompt, prompt_list
from .request import Request
from .request_texts import RequestTexts
from .sampling_params import SamplingParams
from .submission import Submission, output_of
from .value_text import value_text


class LLM:
    """A model, compiled and warm, that generates for any number of requests at once.

    At a first start worker processes may still be compiling graphs when it is there; requests run
    in larger ones meanwhile, with the same tokens. ``close``, or the end of a ``with`` block, of
    the object or of the program ends them, and what they have compiled stays in the local set.
    """

    def __init__(
        self,
        config: Config | Mapping[str, object] | str | Path,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Load and compile everything that the configuration names.

        Args:
            config: a path to a YAML file, its content as a mapping, or a parsed Config.
            progress: called for each graph with what is done ("load" or "compile" and its label),
                how many are done and how many there are.

        Raises:
            NoriaError: a setting, the model or this machine does not fit.
        """
        self.config = _as_config(config)
        self.loaded: LoadedEngine = load_engine(self.config, progress or _no_progress)
        self._engine = self.loaded.engine
        self._close = weakref.finalize(self, self.loaded.arrivals.close)
        source = self.loaded.source
        self._texts = RequestTexts(
            source.tokenizer,
            vocab_size=source.architecture.vocab_size,
            end_token_ids=source.eos_token_ids,
        )

    def __enter__(self) -> Self:
        """Return this object, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the processes that still compile graphs; generating goes on with those there are."""
        self._close()

    def wait_for_graphs(self, timeout_s: float = math.inf) -> None:
        """Wait until no graph is to come, as measuring needs; those of other bits stay out.

        Args:
            timeout_s: seconds after which it goes on without those that are not.

        Raises:
            SetError: some will never be there, and why; the others are.
        """
        self._engine.wait_for_graphs(timeout_s)

    @property
    def default_params(self) -> SamplingParams:
        """Sampling settings of requests that bring none: the configuration's."""
        return self.config.sampling

    @property
    def counters(self) -> dict[str, object]:
        """What ran so far, as plain data: steps by shape, graphs, lengths of finished requests.

        Written as JSON it is what ``noria generate --counters`` writes, and traffic to plan for.
        """
        with self._engine.lock:
            return self._engine.counters.to_mapping(self.loaded.counted)

    def metrics_text(self) -> str:
        """Return what ran so far in the text format of Prometheus.

        Raises:
            NoriaError: prometheus_client is not installed.
        """
        with self._engine.lock:
            return metrics_text(self._engine.counters)

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Generate for all prompts; outputs are in the order of the prompts.

        Args:
            prompts: texts, lists of token ids or conversations; one alone is a list of one.
            params: one for all, or one each; None takes the configuration's.
            priority: one for all, or one each; smaller runs first. Needs ``scheduling_policy:
                priority``.

        A prompt that can never run gives an output whose ``error`` says why; the others run.
        """
        outputs = dict(self.iterate(prompts, params, priority=priority))
        return [outputs[index] for index in range(len(outputs))]

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Tool] = (),
    ) -> list[RequestOutput]:
        """Answer conversations, each a list of ``{"role": ..., "content": ...}`` messages.

        The model's chat template renders them; one that it refuses gives an ``error``. ``tools``
        are functions that the model may call in any of the answers, as JSON schemas:
        ``{"type": "function", "function": {"name": ..., "parameters": ...}}``.
        """
        given = cast("list[Sequence[Message]]", prompt_list(conversations))
        if any(isinstance(one, str) for one in given):
            raise NoriaError("chat takes lists of messages; for a plain text use generate")
        return self.generate([Conversation(messages, tools) for messages in given], params)

    def iterate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Generate like ``generate``, yielding (prompt index, output) as requests finish."""
        for finished in self.iterate_steps(prompts, params, priority=priority):
            yield from finished

    def iterate_steps(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
    ) -> Iterator[list[tuple[int, RequestOutput]]]:
        """Generate like ``iterate``, yielding after each step what finished in it, often nothing.

        A caller that stops between steps has lost nothing that was finished.
        """
        given = prompt_list(prompts)
        count = len(given)
        params_each = self._params_each(params, count)
        yield from self._run(given, params_each, _priority_each(priority, count))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the text of one request in pieces, each of whole characters.

        Closing the iterator early cancels the request.

        Raises:
            RequestError: the request can never run, or the model has no tokenizer.
        """
        (one,) = self._params_each(params, 1)
        if one.n > 1:
            raise RequestError(f"n is {one.n}; stream gives the text of one sample")
        _ = self._texts.tokenizer  # raises where the model has none
        submission = self._submit(prompt, one)
        if submission.error is not None:
            raise RequestError(submission.error)
        (request,) = submission.samples
        try:
            yield from self._pieces(request)
        finally:
            self._engine.cancel(request)

    def _pieces(self, request: Request) -> Iterator[str]:
        """Step until the request ends, giving its text, whoever ran the steps.

        Raises:
            RequestError: the request ended with an error.
        """
        is_finished = False
        while not is_finished:
            with self._engine.lock:  # another thread's step may be adding to the text
                is_finished = request.is_finished
                piece = request.text.take() if request.text else ""
            if piece:
                yield piece
            if not is_finished:
                self._engine.step()
        if request.error is not None:
            raise RequestError(request.error)

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
    ) -> Iterator[list[tuple[int, RequestOutput]]]:
        submissions: list[Submission] = []
        ended: deque[int] = deque()  # prompts of which a sample has ended, whoever ran the step
        try:
            asked = zip(prompts, params, priorities, strict=True)
            for index, (prompt, one, priority) in enumerate(asked):
                on_finish = partial(ended.append, index)
                with held_interrupts():  # between the two, nobody would cancel it
                    submissions.append(self._submit(prompt, one, priority, on_finish))
            ended.extend(index for index, one in enumerate(submissions) if one.is_finished)
            pending = dict(enumerate(submissions))
            while pending:
                indices = sorted({ended.popleft() for _ in range(len(ended))} & pending.keys())
                finished = [index for index in indices if pending[index].is_finished]
                yield [(index, output_of(pending.pop(index))) for index in finished]
                if pending:
                    self._engine.step()
        finally:
            with held_interrupts():
                for submission in submissions:
                    for sample in submission.samples:
                        self._engine.cancel(sample)

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        priority: int = 0,
        on_finish: Callable[[], None] = lambda: None,
    ) -> Submission:
        text = prompt if isinstance(prompt, str) else None
        token_ids: Sequence[int] = ()
        try:
            token_ids = self._texts.token_ids(prompt)
            params = self._texts.read_params(params)
            watch = OutputWatch(
                new_text=self._texts.text_maker(params),
                new_constraint=self._texts.constraint_maker(params),
                on_finish=on_finish,
            )
            samples = self._engine.submit(token_ids, params, priority=priority, watch=watch)
            return Submission(text, tuple(token_ids), samples)
        except RequestError as error:
            return Submission(text, tuple(token_ids), error=str(error))

    def _params_each(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_params] * count
        is_list = isinstance(params, Sequence)
        if not is_list or not all(isinstance(one, SamplingParams) for one in params):
            shown = value_text(params)
            raise NoriaError(f"params is {shown}; it must be SamplingParams, or a list of them")
        if len(params) != count:
            raise NoriaError(f"{len(params)} sampling params for {count} prompts; give one or all")
        return params


def _priority_each(priority: int | Sequence[int], count: int) -> Sequence[int]:
    if isinstance(priority, int):
        return [priority] * count
    is_list = isinstance(priority, Sequence)
    if not is_list or not all(isinstance(one, int) for one in priority):
        shown = value_text(priority)
        raise NoriaError(f"priority is {shown}; it must be an integer, or a list of them")
    if len(priority) != count:
        raise NoriaError(f"{len(priority)} priorities for {count} prompts; give one or all")
    return priority


def _as_config(config: Config | Mapping[str, object] | str | Path) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return parse_config(config)
    return load_config(config)


def _no_progress(label: str, index: int, total: int) -> None:
    """Show nothing."""
