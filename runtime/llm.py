"""The offline interface: texts, chats or token ids in, generated text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .config import Config, load_config, parse_config
from .conversation import Conversation, Message, Tool
from .errors import NoriaError, RequestError
from .graphs import Progress
from .loading import LoadedEngine, load_engine
from .models.tokenizer import StreamDecoder
from .outputs import RequestOutput
from .prompts import Prompt, prompt_list
from .request import FinishReason, Request
from .request_texts import RequestTexts
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class _Submission:
    """A prompt on its way: its request, or why there is none."""

    prompt: str | None
    token_ids: tuple[int, ...]
    request: Request | None = None
    error: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.request is None or self.request.is_finished


class LLM:
    """A model, compiled and warm, that generates for any number of requests at once."""

    def __init__(
        self,
        config: Config | Mapping[str, object] | str | Path,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Load and compile everything that the configuration names.

        Args:
            config: a path to a YAML file, its content as a mapping, or a parsed Config.
            progress: called with label, index and total for each graph that is compiled.

        Raises:
            NoriaError: a setting, the model or this machine does not fit.
        """
        self.config = _as_config(config)
        self.loaded: LoadedEngine = load_engine(self.config, progress or _no_progress)
        self._engine = self.loaded.engine
        source = self.loaded.source
        self._texts = RequestTexts(
            source.tokenizer,
            vocab_size=source.architecture.vocab_size,
            end_token_ids=source.eos_token_ids,
        )

    @property
    def default_params(self) -> SamplingParams:
        """Sampling settings of requests that bring none: the configuration's."""
        return self.config.sampling

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts; outputs are in the order of the prompts.

        Args:
            prompts: texts, lists of token ids or conversations; one alone is a list of one.
            params: one for all, or one each; None takes the configuration's.

        A prompt that can never run gives an output whose ``error`` says why; the others run.
        """
        outputs = dict(self.iterate(prompts, params))
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
        if isinstance(conversations, str) or any(isinstance(one, str) for one in conversations):
            raise NoriaError("chat takes lists of messages; for a plain text use generate")
        given = cast("list[Sequence[Message]]", prompt_list(conversations))
        return self.generate([Conversation(messages, tools) for messages in given], params)

    def iterate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Generate like ``generate``, yielding (prompt index, output) as requests finish."""
        for finished in self.iterate_steps(prompts, params):
            yield from finished

    def iterate_steps(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[list[tuple[int, RequestOutput]]]:
        """Generate like ``iterate``, yielding after each step what finished in it, often nothing.

        A caller that stops between steps has lost nothing that was finished.
        """
        given = prompt_list(prompts)
        yield from self._run(given, self._params_each(params, len(given)))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the text of one request in pieces, each of whole characters.

        Closing the iterator early cancels the request.

        Raises:
            RequestError: the request can never run, or the model has no tokenizer.
        """
        decoder = StreamDecoder(self._texts.tokenizer)
        (one,) = self._params_each(params, 1)
        submission = self._submit(prompt, one)
        if submission.request is None:
            raise RequestError(submission.error)
        request = submission.request
        try:
            yield from self._pieces(request, decoder)
        finally:
            self._engine.cancel(request)

    def _pieces(self, request: Request, decoder: StreamDecoder) -> Iterator[str]:
        """Step until the request ends, decoding its tokens, whoever ran the steps."""
        num_given = 0
        while True:
            token_ids = _text_token_ids(request)
            if num_given < len(token_ids):
                num_given += 1
                if text := decoder.push(token_ids[num_given - 1]):
                    yield text
            elif request.is_finished:
                break
            else:
                self._engine.step()
        if text := decoder.flush():
            yield text

    def _run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> Iterator[list[tuple[int, RequestOutput]]]:
        submissions: list[_Submission] = []
        try:
            for prompt, one in zip(prompts, params, strict=True):
                submissions.append(self._submit(prompt, one))
            pending = dict(enumerate(submissions))
            while pending:
                # Asked of the requests, not of the step: another caller may have run it.
                finished = [index for index, one in pending.items() if one.is_finished]
                yield [(index, self._output(pending.pop(index))) for index in finished]
                if pending:
                    self._engine.step()
        finally:
            for submission in submissions:
                if submission.request is not None:
                    self._engine.cancel(submission.request)

    def _submit(self, prompt: Prompt, params: SamplingParams) -> _Submission:
        text = prompt if isinstance(prompt, str) else None
        token_ids: Sequence[int] = ()
        try:
            token_ids = self._texts.token_ids(prompt)
            params = self._texts.read_params(params)
            return _Submission(text, tuple(token_ids), self._engine.submit(token_ids, params))
        except RequestError as error:
            return _Submission(text, tuple(token_ids), error=str(error))

    def _output(self, submission: _Submission) -> RequestOutput:
        request = submission.request
        if request is None:
            return RequestOutput(
                request_id="",
                prompt=submission.prompt,
                prompt_token_ids=submission.token_ids,
                token_ids=(),
                text=None,
                finish_reason="error",
                error=submission.error,
            )
        assert request.finish_reason is not None
        tokenizer = self.loaded.source.tokenizer
        return RequestOutput(
            request_id=request.request_id,
            prompt=submission.prompt,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=tuple(request.output_token_ids),
            text=tokenizer.decode(_text_token_ids(request)) if tokenizer else None,
            finish_reason=request.finish_reason.value,
        )

    def _params_each(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_params] * count
        is_list = isinstance(params, Sequence)
        if not is_list or not all(isinstance(one, SamplingParams) for one in params):
            raise NoriaError(f"params is {params!r}; it must be SamplingParams, or a list of them")
        if len(params) != count:
            raise NoriaError(f"{len(params)} sampling params for {count} prompts; give one or all")
        return params


def _text_token_ids(request: Request) -> Sequence[int]:
    """Return the generated tokens less the end token, which is not text."""
    if request.finish_reason is FinishReason.STOP:
        return request.output_token_ids[:-1]
    return request.output_token_ids


def _as_config(config: Config | Mapping[str, object] | str | Path) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return parse_config(config)
    return load_config(config)


def _no_progress(label: str, index: int, total: int) -> None:
    """Show nothing."""
