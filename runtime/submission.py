"""A prompt from its submission to its output."""

from __future__ import annotations

from dataclasses import dataclass

from .outputs import Completion, RequestOutput
from .request import Request


@dataclass(frozen=True, slots=True)
class Submission:
    """A prompt on its way: its samples, or why there are none."""

    prompt: str | None
    token_ids: tuple[int, ...]
    samples: tuple[Request, ...] = ()
    error: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing to wait for."""
        return all(sample.is_finished for sample in self.samples)


def output_of(submission: Submission) -> RequestOutput:
    """Return what became of a prompt whose samples have all ended."""
    if not submission.samples:
        return RequestOutput("", submission.prompt, submission.token_ids, error=submission.error)
    first = submission.samples[0]
    has_prompt_logprobs = first.params.prompt_logprobs is not None
    completions = tuple(_completion(sample) for sample in submission.samples)
    return RequestOutput(
        request_id=first.request_id,
        prompt=submission.prompt,
        prompt_token_ids=first.prompt_token_ids,
        completions=completions,
        prompt_logprobs=tuple(first.prompt_logprobs) if has_prompt_logprobs else None,
        error=next((one.error for one in completions if one.error is not None), None),
    )


def _completion(request: Request) -> Completion:
    assert request.finish_reason is not None
    has_logprobs = request.params.logprobs is not None
    return Completion(
        token_ids=tuple(request.output_token_ids),
        text=None if request.text is None else request.text.text,
        finish_reason=request.finish_reason.value,
        logprobs=tuple(request.output_logprobs) if has_logprobs else None,
        error=request.error,
    )
