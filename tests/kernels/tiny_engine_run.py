"""Runs a tiny model end to end and prints, as JSON, what it generated: a process of its own.

A processor with fewer instructions is chosen by the environment, before torch is imported.
Every prompt runs alone and among the others; its logits must have the same bits.
"""

import json
from collections import defaultdict

import torch
from attention_cases import same_bits

from noria.runtime import LLM, SamplingParams

MODEL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 0,
    "seed": 1,
}
PROMPTS = [[5, 17, 3, 42, 8], [9], list(range(1, 34)), [200, 100] * 6]


def build(dtype: str) -> LLM:
    return LLM(
        {
            "model": MODEL,
            "backend": "cpu",
            "dtype": dtype,
            "max_model_len": 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "block_size": 8,
            "num_batched_tokens_buckets": [40, 64],
            "num_seqs_buckets": [1, 3, 4],
        }
    )


def generate(llm: LLM, prompts: list[list[int]]) -> list[tuple[list[int], torch.Tensor]]:
    """Return the tokens of each prompt and the logits that chose them."""
    runner, logits = llm.loaded.runner, defaultdict(list)
    run_graph = runner.run_graph

    def record(graph, output) -> None:
        run_graph(graph, output)
        for row, scheduled in enumerate(output.requests):
            logits[scheduled.request_id].append(graph.logits_RV[row].clone())

    runner.run_graph = record
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12))
    runner.run_graph = run_graph
    return [(list(output.token_ids), torch.stack(logits[output.request_id])) for output in outputs]


def run(dtype: str) -> dict[str, object]:
    llm = build(dtype)
    together = generate(llm, PROMPTS)
    for prompt, (tokens, logits) in zip(PROMPTS, together, strict=True):
        (alone,) = generate(llm, [prompt])
        assert alone[0] == tokens
        assert same_bits(alone[1], logits)
        assert logits.isfinite().all()
    assert llm.loaded.invariance.is_invariant
    first = [logits[0].tolist() for _, logits in together]
    tokens = [tokens for tokens, _ in together]
    kernels = type(llm.loaded.model.kernels).__name__
    return {"kernels": kernels, "tokens": tokens, "first_logits": first}


if __name__ == "__main__":
    print(json.dumps({dtype: run(dtype) for dtype in ("float32", "bfloat16")}))
