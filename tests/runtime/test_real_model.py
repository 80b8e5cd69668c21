"""SmolLM2-135M-Instruct, if it is fetched, against transformers on the same weights in fp32."""

from __future__ import annotations

import random

import pytest
import torch

from noria.runtime.llm import LLM
from noria.runtime.models.converted import convert_gguf
from noria.runtime.models.fetch import fetched_path
from noria.runtime.sampling_params import SamplingParams

transformers = pytest.importorskip("transformers")
PATH = fetched_path("smollm2-135m")
pytestmark = pytest.mark.skipif(PATH is None, reason="run: noria fetch smollm2-135m")

NUM_PROMPTS, NUM_TOKENS = 32, 64
TIE = 1e-4
"""Two logits closer than this share of the largest one are a tie, in fp32."""

GRAVITY = (
    "Gravity is a fundamental concept in physics that describes the force of gravity, which is a "
    "result of the curvature of spacetime caused by the presence of mass."
)


@pytest.fixture(scope="module")
def llm():
    return LLM(
        {
            "model": "smollm2-135m",
            "dtype": "float32",
            "max_model_len": 256,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 256,
            "num_batched_tokens_buckets": [64, 256],
            "num_seqs_buckets": [1, 32],
            "num_blocks": 300,
        }
    )


@pytest.fixture(scope="module")
def oracle():
    folder = convert_gguf(PATH).folder
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def varied_prompts(llm):
    """Return texts cut at 32 lengths from 1 to 125 tokens."""
    rng = random.Random(0)
    text = (
        "The history of irrigation begins with wheels that lift water from a river. A noria is "
        "driven by the stream itself: buckets fill below, rise, and empty into a channel above. "
        "def lift(buckets):\n    return sum(b.volume for b in buckets if b.full)\n"
        "In 1842 about 3,500 litres an hour were measured at Hama, in Syria. Why does it creak? "
    )
    token_ids = llm.loaded.source.tokenizer.encode(text)
    starts = [rng.randrange(40) for _ in range(NUM_PROMPTS)]
    return [token_ids[s : s + 1 + 4 * i] for i, s in enumerate(starts)]


def test_greedy_tokens_and_prefill_logits_equal_transformers(llm, oracle, record_property):
    prompts, first_logits = varied_prompts(llm), {}
    runner = llm.loaded.runner
    inner = runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        for row, scheduled in enumerate(output.requests):
            if scheduled.sampling is not None:
                first_logits.setdefault(scheduled.request_id, graph.logits_RV[row].clone())

    runner.run_graph = run_graph
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    runner.run_graph = inner

    ties = []
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.token_ids) == NUM_TOKENS
        with torch.no_grad():
            logits = oracle(torch.tensor([[*prompt, *output.token_ids]])).logits[0]
        # Teacher-forced: while all tokens agree this is exactly generate() run alone.
        expected = logits[len(prompt) - 1 : -1]
        ours = first_logits[output.request_id]
        assert (ours - expected[0]).abs().max() <= 1e-4 * expected[0].abs().max()
        for position, token_id in enumerate(output.token_ids):
            row = expected[position]
            if int(row.argmax()) != token_id:
                gap = float((row.max() - row[token_id]) / row.abs().max())
                ties.append((output.request_id, position, gap))
    record_property("ties (request, position, gap)", ties)
    assert all(gap < TIE for _, _, gap in ties)
    assert len(ties) <= 0.01 * NUM_PROMPTS * NUM_TOKENS


def test_known_answers(llm):
    greedy = SamplingParams(temperature=0, max_tokens=24)

    (plain,) = llm.generate("The capital of France is", greedy)
    (chat,) = llm.chat(
        [{"role": "user", "content": "What is gravity? Answer in one sentence."}],
        SamplingParams(temperature=0, max_tokens=60),
    )

    assert plain.prompt_token_ids == (504, 3575, 282, 4649, 314)
    assert plain.text == " Paris.\n\nThe answer is: 2018-01-22 12:1"
    assert (chat.text, chat.finish_reason) == (GRAVITY, "stop")
    assert len(chat.prompt_token_ids) == 39


def test_streamed_text_equals_generated_text(llm):
    params = SamplingParams(temperature=0, max_tokens=30)
    (whole,) = llm.generate("Once upon a time", params)

    pieces = list(llm.stream("Once upon a time", params))

    assert "".join(pieces) == whole.text
    assert len(pieces) > 10


def test_alone_and_together_give_the_same_tokens(llm):
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=12)
    prompts = varied_prompts(llm)[:6]

    together = llm.generate(prompts, params)
    alone = [llm.generate([prompt], params)[0] for prompt in prompts]

    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
