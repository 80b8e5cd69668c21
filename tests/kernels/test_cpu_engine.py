"""The cpu target under a whole engine: narrower processors, no compiler, memory that runs out."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_engine_run import MODEL

from noria.kernels.cpu import memory
from noria.runtime import LLM
from noria.runtime.errors import BackendError

SCRIPT = Path(__file__).parent / "tiny_engine_run.py"


def run_engine(**environment: str) -> dict[str, dict]:
    """Run both dtypes in a process, which itself checks that results are batch-invariant."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def normal() -> dict[str, dict]:
    return run_engine()


def assert_close(results: dict[str, dict], normal: dict[str, dict]) -> None:
    """fp32 must choose the same tokens; bf16 rounds at other places and may not."""
    assert results["float32"]["tokens"] == normal["float32"]["tokens"]
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 5e-2)):
        logits, expected = (torch.tensor(r[dtype]["first_logits"]) for r in (results, normal))
        assert logits.shape == (4, MODEL["vocab_size"])
        torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs AVX2"
)
def test_an_engine_on_avx2_generates_the_same(normal):
    results = run_engine(ATEN_CPU_CAPABILITY="avx2")

    assert results["float32"]["kernels"] == "CpuKernels"
    assert_close(results, normal)


def test_an_engine_without_a_compiler_generates_the_same_where_onednn_has_no_bf16(normal, tmp_path):
    results = run_engine(PATH=str(tmp_path), ONEDNN_MAX_CPU_ISA="AVX2")

    assert results["float32"]["kernels"] == "TorchKernels"
    assert_close(results, normal)


def test_a_graph_without_memory_is_named(monkeypatch):
    """Weights and the cache fit; then the system has nothing left for the first graph."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    def exhaust(label: str, index: int, total: int) -> None:
        monkeypatch.setattr(mmap, "mmap", refuse)

    monkeypatch.setattr(memory, "_PIECE", 1)  # no room left over for what graphs need
    config = {
        "model": {**MODEL, "intermediate_size": 8192},
        "backend": "cpu",
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 1,
    }

    with pytest.raises(BackendError) as error:
        LLM(config, progress=exhaust)

    assert str(error.value) == (
        "graph prefill_t128_c128 failed to compile: no memory for 8,388,608 bytes: [Errno 12] "
        "Cannot allocate memory; lower max_num_batched_tokens or max_model_len, or take its size "
        "out of the bucket lists"
    )
