"""The offline workload."""

from __future__ import annotations

import pytest

from noria.runtime.bench.workload import Workload
from noria.runtime.errors import ConfigError


def test_default_workload_is_32_prompts_of_64_ids_with_64_new_tokens() -> None:
    workload = Workload(vocab_size=49152)

    assert (workload.num_prompts, workload.prompt_len, workload.new_tokens) == (32, 64, 64)
    assert workload.num_new_tokens == 2048
    assert workload.tokens_per_prompt == 128


def test_prompts_have_the_asked_shape_and_stay_inside_the_vocabulary() -> None:
    workload = Workload(num_prompts=50, prompt_len=9, vocab_size=7)

    prompts = workload.prompts(0)

    assert [len(prompt) for prompt in prompts] == [9] * 50
    assert {token_id for prompt in prompts for token_id in prompt} == set(range(7))


def test_prompts_are_the_same_for_every_engine_and_differ_between_runs_and_seeds() -> None:
    workload = Workload(vocab_size=49152)

    assert workload.prompts(1) == Workload(vocab_size=49152).prompts(1)
    assert workload.prompts(1) != workload.prompts(2)
    assert workload.prompts(1) != Workload(vocab_size=49152, seed=1).prompts(1)


@pytest.mark.parametrize("name", ["num_prompts", "prompt_len", "new_tokens", "vocab_size"])
def test_a_workload_without_work_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is 0; it must be at least 1$"):
        Workload(**({"vocab_size": 10} | {name: 0}))
