"""The process in which one engine runs: commands in and replies out, as JSON lines.

Other engines live in interpreters of their own, where Noria is not installed, so this file is
also a script that needs nothing but the standard library and the engine itself.

    {"op": "load", and the fields of Load}
        -> {"ok": true, "version": "..."}
    {"op": "run", "prompts": [[id, ...], ...], "new_tokens": n}
        -> {"ok": true, "seconds": s, "token_ids": [[id, ...], ...]}
    a command that fails
        -> {"ok": false, "error": "one line"}

The end of the commands ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol, TextIO

TokenIds = list[list[int]]


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine is started with.

    Attributes:
        model: where its weights are, in the form that the engine reads.
        activations: dtype of the computation, "float32" or "bfloat16".
        num_threads: threads that compute.
        max_num_seqs: prompts that a run holds at most.
        max_model_len: prompt and new tokens of one prompt at most.
        settings: Noria's configuration; other engines take none.
    """

    model: str
    activations: str
    num_threads: int
    max_num_seqs: int
    max_model_len: int
    settings: Mapping[str, object]


class Engine(Protocol):
    """A loaded engine that generates greedily and never stops at an end token."""

    version: str

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        """Return ``new_tokens`` ids for each prompt, in the order of the prompts."""
        ...


class OpenVinoEngine:
    """OpenVINO GenAI's continuous batching; the cache grows as it needs to."""

    def __init__(self, load: Load) -> None:
        """Load the folder of an exported model."""
        import openvino as ov
        import openvino_genai as genai

        self.version = metadata.version("openvino-genai")
        self._tensor, self._config_class = ov.Tensor, genai.GenerationConfig
        hint = {"bfloat16": "bf16", "float32": "f32"}[load.activations]
        properties = {
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": load.num_threads,
        }
        self._pipeline = genai.ContinuousBatchingPipeline(
            load.model, genai.SchedulerConfig(), "CPU", properties
        )

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        """Return ``new_tokens`` ids for each prompt."""
        import numpy as np

        config = self._config_class()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        tensors = [self._tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]


class TransformersEngine:
    """Hugging Face ``generate`` with a static cache; all prompts are one batch."""

    def __init__(self, load: Load) -> None:
        """Load a Hugging Face folder."""
        import torch
        import transformers

        torch.set_num_threads(load.num_threads)
        self.version = str(transformers.__version__)
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            load.model, dtype=getattr(torch, load.activations)
        )
        # With an end token set, generate would stop early.
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        """Return ``new_tokens`` ids for each prompt; the prompts are equally long."""
        input_ids = self._torch.tensor(prompts)
        with self._torch.inference_mode():
            ids = self._model.generate(
                input_ids,
                attention_mask=self._torch.ones_like(input_ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                cache_implementation="static",
                disable_compile=True,
            )
        rows: TokenIds = ids[:, input_ids.shape[1] :].tolist()
        return rows


class VllmEngine:
    """vLLM's CPU build, compiled, without its prefix cache."""

    def __init__(self, load: Load) -> None:
        """Load a Hugging Face folder; compiles, which takes about a minute."""
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{load.num_threads - 1}")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        import vllm

        self.version = str(vllm.__version__)
        self._params_class = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=load.model,
            dtype=load.activations,
            max_model_len=load.max_model_len,
            max_num_seqs=load.max_num_seqs,
            enable_prefix_caching=False,
        )

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        """Return ``new_tokens`` ids for each prompt."""
        params = self._params_class(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class LlamaCppEngine:
    """llama.cpp through its C interface, all prompts as sequences of the same batches."""

    def __init__(self, load: Load) -> None:
        """Load a GGUF file."""
        import llama_cpp as library

        self.version = str(library.__version__)
        self._library = library
        model = library.llama_model_load_from_file(
            load.model.encode(), library.llama_model_default_params()
        )
        settings = library.llama_context_default_params()
        # The context is shared out evenly, in multiples of 256 cells.
        settings.n_ctx = load.max_num_seqs * -(-load.max_model_len // 256) * 256
        settings.n_batch = load.max_num_seqs * load.max_model_len
        settings.n_seq_max = load.max_num_seqs
        settings.n_threads = settings.n_threads_batch = load.num_threads
        self._context = library.llama_init_from_model(model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not load {load.model}")
        self._vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        self._batch = library.llama_batch_init(settings.n_batch, 0, 1)

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        """Return ``new_tokens`` ids for each prompt."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        rows: TokenIds = [[] for _ in prompts]
        pieces, start = [list(prompt) for prompt in prompts], [0] * len(prompts)
        for _ in range(new_tokens):
            for row, token_id in zip(rows, self._step(pieces, start), strict=True):
                row.append(token_id)
            start = [one + len(piece) for one, piece in zip(start, pieces, strict=True)]
            pieces = [row[-1:] for row in rows]
        return rows

    def _step(self, pieces: TokenIds, start: Sequence[int]) -> list[int]:
        """Compute a piece of every sequence; return the likeliest id after each."""
        import numpy as np

        batch, last = self._batch, []
        batch.n_tokens = 0
        for sequence, piece in enumerate(pieces):
            for position, token_id in enumerate(piece, start[sequence]):
                index = batch.n_tokens
                batch.token[index], batch.pos[index] = token_id, position
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
                batch.logits[index] = False
                batch.n_tokens += 1
            last.append(batch.n_tokens - 1)
            batch.logits[last[-1]] = True
        if status := self._library.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        pointers = [self._library.llama_get_logits_ith(self._context, index) for index in last]
        return [
            int(np.argmax(np.ctypeslib.as_array(pointer, (self._vocab_size,))))
            for pointer in pointers
        ]


ENGINES: Mapping[str, Callable[[Load], Engine]] = {
    "openvino": OpenVinoEngine,
    "llama-cpp": LlamaCppEngine,
    "transformers": TransformersEngine,
    "vllm": VllmEngine,
}


def serve(make_engine: Callable[[Load], Engine], commands: TextIO, *, replies: TextIO) -> None:
    """Answer commands until there are no more."""
    engine: Engine | None = None
    for line in commands:
        command = json.loads(line)
        try:
            if command.pop("op") == "load":
                engine = make_engine(Load(**command))
                reply: dict[str, Any] = {"version": engine.version}
            else:
                assert engine is not None, "run before load"
                reply = run(engine, **command)
            reply["ok"] = True
        except Exception as error:  # whatever an engine raises is a result of the bench
            reply = {"ok": False, "error": one_line(error)}
        print(json.dumps(reply), file=replies, flush=True)


def run(engine: Engine, prompts: TokenIds, *, new_tokens: int) -> dict[str, Any]:
    """Time one run; seconds count generation alone."""
    start = time.perf_counter()
    token_ids = engine.generate(prompts, new_tokens)
    return {"seconds": time.perf_counter() - start, "token_ids": token_ids}


def one_line(error: BaseException) -> str:
    """Return an exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def claim_stdout() -> TextIO:
    """Return the stream for replies, and send whatever libraries print to stderr instead."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def main(arguments: Sequence[str]) -> None:
    """Serve the engine that the one argument names."""
    replies = claim_stdout()
    serve(ENGINES[arguments[0]], sys.stdin, replies=replies)


if __name__ == "__main__":
    # The script's own folder comes first on the path and would hide modules of its files' names.
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    main(sys.argv[1:])
