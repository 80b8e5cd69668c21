"""What follows a request's tokens may break: that ends this request alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unbatched import PairStop, Residues

from noria.runtime.constraint import TokenConstraint
from noria.runtime.engine import OutputWatch
from noria.runtime.request import FinishReason, TextStream
from noria.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8)
NEIGHBOURS = [[i + 1, 7, i] for i in range(3)]
FEATURES = ("greedy", "top_k_top_p", "structured_output")


class PanicException(BaseException):
    """As libraries in Rust raise it."""


class Breaking:
    """Another object, one of whose methods raises when it is called for the third time."""

    def __init__(self, inner: TextStream | TokenConstraint, method: str, error: type) -> None:
        self._inner = inner
        self._method = method
        self._error = error
        self._calls: Iterator[int] = iter(range(10_000))

    def __getattr__(self, name: str) -> object:
        if name == self._method and next(self._calls) == 2:
            raise self._error("out of\nplace")
        return getattr(self._inner, name)


def watch(method: str, error: type) -> OutputWatch:
    return OutputWatch(
        new_text=lambda: Breaking(PairStop(1000), method, error),
        new_constraint=lambda: Breaking(Residues(61, 100), method, error),
    )


@pytest.mark.parametrize("error", [ValueError, PanicException])
@pytest.mark.parametrize("method", ["push", "accept", "bitmask", "is_complete"])
def test_a_fault_of_text_or_grammar_ends_its_request_alone(
    make_engine, make_shape, dense, method, error
):
    tiny = make_engine(make_shape(sampler_features=FEATURES))

    first = tiny.submit(NEIGHBOURS[0], GREEDY)
    broken = tiny.submit([9, 9], GREEDY, watch=watch(method, error))
    others = [tiny.submit(prompt, GREEDY) for prompt in NEIGHBOURS[1:]]
    tiny.run()

    assert broken.finish_reason is FinishReason.ERROR
    assert broken.error.endswith(f"{error.__name__}: out of place")
    tokens = [request.output_token_ids for request in (first, *others)]
    assert tokens == [dense.generate(prompt, GREEDY, 8) for prompt in NEIGHBOURS]


def test_a_text_that_cannot_end_is_the_error_of_its_request(tiny):
    class Endless(PairStop):
        def finish(self) -> bool:
            raise ValueError("no end")

    watch = OutputWatch(new_text=lambda: Endless(1000), new_constraint=lambda: None)
    ended, cancelled = (tiny.submit([5, 6], GREEDY, watch=watch) for _ in range(2))
    tiny.engine.step()
    tiny.engine.cancel(cancelled)
    tiny.run()

    for request in (ended, cancelled):
        assert request.finish_reason is FinishReason.ERROR
        assert request.error == "the text of the output failed: ValueError: no end"
    assert len(ended.output_token_ids) == 8


def test_an_interrupt_while_tokens_are_handed_out_loses_none_of_the_others(tiny, dense):
    first = tiny.submit(NEIGHBOURS[0], GREEDY)
    text = Breaking(PairStop(1000), "push", KeyboardInterrupt)
    watch = OutputWatch(new_text=lambda: text, new_constraint=lambda: None)
    interrupted = tiny.submit([9, 9], GREEDY, watch=watch)
    others = [tiny.submit(prompt, GREEDY) for prompt in NEIGHBOURS[1:]]

    tiny.engine.step()
    tiny.engine.step()
    with pytest.raises(KeyboardInterrupt):
        tiny.engine.step()
    tiny.engine.check_invariants()
    tiny.engine.cancel(interrupted)
    tiny.run()

    tokens = [request.output_token_ids for request in (first, *others)]
    assert tokens == [dense.generate(prompt, GREEDY, 8) for prompt in NEIGHBOURS]
