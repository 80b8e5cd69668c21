"""Kernels that Noria's authors did not write, unmodified, in the simulator.

``NKI_CONFORMANCE_DIR`` names a folder with checkouts of the vendor's public repositories
``aws-neuron-sdk`` (its examples), ``nki-samples`` and ``nki-library``. This file holds the names
of kernels, and inputs and expectations of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from noria.kernels.nki.simulator import install

FOLDER = os.environ.get("NKI_CONFORMANCE_DIR", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="NKI_CONFORMANCE_DIR names no folder")
EXAMPLES = "aws-neuron-sdk/nki/examples"
LIBRARY = "nki-library/src/nkilib_src/nkilib"
MATMULS = f"{EXAMPLES}/matrix_multiplication/matrix_multiplication_nki_kernels.py"
MAMBA = f"{EXAMPLES}/fused_mamba/mamba_nki_kernels.py"

TOKEN_GENERATION = f"{LIBRARY}/core/attention/attention_tkg.py"
SAMPLES = "nki-samples/src/nki_samples/tutorials"

Function = Callable[..., Any]
Check = Callable[[Function], float]


@dataclass(frozen=True, slots=True)
class Case:
    """A public kernel, what runs it and returns its largest error, and the error allowed.

    ``wrap`` makes a kernel of a function that takes tiles on chip.
    """

    file: str
    kernel: str
    check: Check
    allowed: float
    wrap: Callable[[Function], Function] = lambda function: function


@dataclass(frozen=True, slots=True)
class Refusal:
    """A public kernel that does not run, and why: the error that it must raise."""

    file: str
    kernel: str
    error: type[Exception]
    why: str


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found.astype(np.float64) - expected.astype(np.float64)).max())


def addition(run: Function) -> float:
    a, b = draw(256, 1024), draw(256, 1024, seed=1)
    return error(run(a, b), a + b)


def matmul(k: int, m: int, n: int, **blocks: int) -> Check:
    def check(run: Function) -> float:
        left, right = draw(k, m) / 8, draw(k, n, seed=1) / 8
        return error(run(left, right, **blocks), left.T @ right)

    return check


def transposition(run: Function) -> float:
    rows = draw(2, 3 * 4)
    return error(run(rows, (3, 4)), rows.reshape(2, 3, 4).swapaxes(1, 2).reshape(2, 12))


def pooling(run: Function) -> float:
    image = draw(2, 6, 6)
    return error(run(image, 2), image.reshape(2, 3, 2, 3, 2).mean((2, 4)))


def state_space(seq_len: int) -> Check:
    def check(run: Function) -> float:
        delta, u = np.abs(draw(1, 128, seq_len)), draw(1, 128, seq_len, seed=1)
        a, b, c = (draw(*shape, seed=2) for shape in ((128, 2), (1, 2, seq_len), (1, 2, seq_len)))
        a = -np.abs(a)
        state, expected = np.zeros((128, 2)), np.empty((1, 128, seq_len))
        for t in range(seq_len):
            state = np.exp(delta[0, :, t, None] * a) * state
            state = state + (delta[0, :, t] * u[0, :, t])[:, None] * b[0, :, t]
            expected[0, :, t] = state @ c[0, :, t]
        return error(run(delta, u, a, b, c), expected)

    return check


def running_sum(run: Function) -> float:
    rows = draw(130, 300)
    return error(run(rows), np.cumsum(rows, -1))


def tiles_added(run: Function) -> float:
    """The number of tiles is a run-time value; rows beyond them would be returned unwritten."""
    a, b = (draw(256, 512, seed=s).astype(ml_dtypes.bfloat16) for s in (0, 1))
    return error(run(a, b, np.array([[2]], np.int32)), a + b)


def block_mask(run: Function) -> float:
    """Rows are (fold, offset, block): 128 blocks of 16 tokens in two folds."""
    positions = np.array([[5, 4000]], np.int32)
    found = run(positions, 2, 3, 1, 4096, block_len=16).reshape(2, 16, 128, 2, 3, 1)
    token = np.arange(4096).reshape(2, 128, 16).swapaxes(1, 2)
    expected = token[..., None, None, None] < positions[0][:, None, None]
    return error(found, np.broadcast_to(expected, found.shape))


def flat_mask(run: Function) -> float:
    positions = np.array([[7, 300]], np.int32)
    found = run(positions, 2, 1, 1, 512).reshape(4, 128, 2, 1, 1)
    token = np.arange(512).reshape(128, 4).T
    expected = token[..., None, None, None] < positions[0][:, None, None]
    return error(found, np.broadcast_to(expected, found.shape))


def prefill_attention(dtype: Any, **options: Any) -> Check:
    """Causal attention of two heads over a sequence that is no multiple of a tile."""

    def check(run: Function) -> float:
        length, dim = 200, 64
        q, k, v = (draw(2, length, dim, seed=s).astype(dtype) for s in range(3))
        found = run(q, np.ascontiguousarray(k.swapaxes(1, 2)), v, scale=dim**-0.5, **options)
        scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) * dim**-0.5
        if options.get("causal_mask", True):
            scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        return error(found, softmax(scores) @ v.astype(np.float64))

    return check


def rotation(run: Function) -> float:
    """Rotate both halves of a head against each other, queries of two heads and keys of one."""
    q, k = draw(1, 2, 128, 64), draw(1, 1, 128, 64, seed=1)
    cos, sin = draw(128, 64, seed=2), draw(128, 64, seed=3)
    found = run(q, k, np.zeros_like(q), np.zeros_like(k), cos, sin)

    def rotated(x: np.ndarray) -> np.ndarray:
        return x * cos + np.concatenate([-x[..., 32:], x[..., :32]], -1) * sin

    return max(error(found[0], rotated(q)), error(found[1], rotated(k)))


def token_attention(function: Function) -> Function:
    """Return a kernel around the library's decode attention over a block KV cache."""
    settings = importlib.import_module("nkilib.core.attention.attention_tkg_utils")
    allocator = importlib.import_module("nkilib.core.utils.allocator")
    logging = importlib.import_module("nkilib.core.utils.logging")
    isa, language = importlib.import_module("nki.isa"), importlib.import_module("nki.language")

    def kernel(q, k_new, v_new, k_cache, v_cache, mask, table, positions):  # type: ignore[no-untyped-def]
        batch, _, tokens, head_dim = v_new.shape
        heads = q.shape[1] // (batch * tokens)
        context = table.shape[1] * k_cache.shape[1]
        config = settings.AttnTKGConfig(
            bs=batch,
            q_head=heads,
            s_active=tokens,
            curr_sprior=context,
            full_sprior=context,
            d_head=head_dim,
            block_len=k_cache.shape[1],
            tp_k_prior=True,
            strided_mm1=False,
            use_pos_id=True,
            qk_in_sb=True,
        )
        memory = allocator.SbufManager(
            0, 192 * 1024, logging.get_logger("noria"), use_auto_alloc=True
        )
        tiles = [language.ndarray(x.shape, x.dtype, language.sbuf) for x in (q, k_new)]
        isa.dma_copy(tiles[0], q)
        isa.dma_copy(tiles[1], k_new)
        shape = (batch, heads, head_dim, tokens)
        out = language.ndarray(shape, q.dtype, language.shared_hbm)
        memory.open_scope()
        function(
            *(*tiles, v_new, k_cache, v_cache, mask, out, config, memory),
            rope_pos_ids=positions,
            active_blocks_table=table,
        )
        memory.close_scope()
        return out

    return kernel


def block_decode(run: Function) -> float:
    """Two requests of 100 and 1999 cached tokens in blocks of 16, and a new token each."""
    batch, heads, dim, block_size, width = 2, 4, 128, 16, 128
    caches = [draw(272, block_size, dim, seed=seed).astype(ml_dtypes.bfloat16) for seed in (0, 1)]
    q = (draw(batch, heads, dim, seed=2) / dim**0.5).astype(ml_dtypes.bfloat16)
    k_new, v_new = (draw(batch, dim, seed=s).astype(ml_dtypes.bfloat16) for s in (3, 4))
    table = np.random.default_rng(5).permutation(272)[: batch * width].reshape(batch, width)
    lengths = (100, 1999)
    found = run(
        np.ascontiguousarray(q.reshape(-1, dim).T),
        np.ascontiguousarray(k_new.T),
        v_new.reshape(batch, 1, 1, dim),
        *caches,
        np.ones((1, batch, heads, 1), np.uint8),
        table.astype(np.uint32),
        np.array(lengths, np.float32).reshape(batch, 1),
    )
    expected = np.empty((batch, heads, dim, 1))
    for b, length in enumerate(lengths):
        k, v = (
            np.concatenate([cache[table[b]].reshape(-1, dim)[:length], new[b : b + 1]])
            for cache, new in zip(caches, (k_new, v_new), strict=True)
        )
        weights = softmax(q[b].astype(np.float64) @ k.astype(np.float64).T)
        expected[b, :, :, 0] = weights @ v.astype(np.float64)
    return error(found, expected)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


CASES = (
    Case(
        f"{EXAMPLES}/tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add", addition, 0
    ),
    Case(MATMULS, "nki_matmul_basic_", matmul(128, 64, 512), 1e-5),
    Case(MATMULS, "nki_matmul_tiled_", matmul(256, 128, 512), 1e-5),
    Case(MATMULS, "nki_matmul_hoist_load_", matmul(256, 128, 512), 1e-5),
    Case(MATMULS, "nki_matmul_block_free_dimension_", matmul(128, 256, 1024), 1e-5),
    Case(
        MATMULS,
        "nki_matmul_fully_optimized_",
        matmul(256, 256, 512, TILES_IN_BLOCK_M=1, TILES_IN_BLOCK_N=1, TILES_IN_BLOCK_K=1),
        1e-5,
    ),
    Case(
        f"{EXAMPLES}/transpose2d/transpose2d_nki_kernels.py",
        "tensor_transpose2D_kernel_",
        transposition,
        0,
    ),
    Case(
        f"{EXAMPLES}/average_pool2d/average_pool2d_nki_kernels.py",
        "tensor_avgpool_kernel",
        pooling,
        1e-6,
    ),
    Case(MAMBA, "mamba_v1", state_space(32), 1e-4),
    Case(MAMBA, "mamba_v2", state_space(32), 1e-4),
    Case(MAMBA, "mamba_v3", state_space(512), 1e-4),
    Case(f"{LIBRARY}/core/cumsum/cumsum.py", "cumsum", running_sum, 1e-4),
    Case(
        f"{LIBRARY}/experimental/dynamic_shapes/dynamic_elementwise_add.py",
        "dynamic_elementwise_add",
        tiles_added,
        0,
    ),
    Case(f"{LIBRARY}/core/attention/gen_mask_tkg.py", "gen_mask_tkg_hbm", block_mask, 0),
    Case(f"{LIBRARY}/core/attention/gen_mask_tkg.py", "gen_mask_tkg_hbm", flat_mask, 0),
    Case(
        f"{LIBRARY}/core/attention/attention_cte.py",
        "attention_cte",
        prefill_attention(ml_dtypes.bfloat16),
        2e-2,
    ),
    Case(
        f"{LIBRARY}/core/attention/attention_cte.py",
        "attention_cte",
        prefill_attention(ml_dtypes.bfloat16, causal_mask=False),
        2e-2,
    ),
    Case(TOKEN_GENERATION, "attention_tkg", block_decode, 2e-2, token_attention),
    Case(f"{LIBRARY}/core/embeddings/rope_hf.py", "rope_hf", rotation, 1e-5),
)
# What does not run, as of nki-samples 6905a68 (February 2026) and nki-library d2ad3a5 (April 2026).
REFUSALS = (
    Refusal(
        f"{SAMPLES}/matrix_multiplication/matrix_multiplication_nki_kernels.py",
        "nki_matmul_tiled_",
        TypeError,
        "'dtype'",  # tensor_copy(dtype=), which NKI 0.2 removed
    ),
    Refusal(
        f"{SAMPLES}/attention_fwd_performance/attention_kernels.py",
        "attn_fwd_v1",
        ModuleNotFoundError,
        "neuronxcc",  # the namespace of NKI 0.1, an error since 0.4
    ),
    Refusal(f"{LIBRARY}/core/mlp/mlp.py", "mlp", IndentationError, "unexpected indent"),
    Refusal(
        f"{LIBRARY}/core/max/cascaded_max.py",
        "cascaded_max",
        AttributeError,
        "nc_find_index8",  # not simulated: no kernel of ours needs it
    ),
)


@pytest.fixture(autouse=True)
def _keep_modules_and_environment() -> Iterator[None]:
    """Undo what importing the sources does: some set the target in the environment."""
    install()
    modules, environment = dict(sys.modules), dict(os.environ)
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn2"
    yield
    for name in set(sys.modules) - set(modules):
        if name.split(".")[0] in ("conformance", "nkilib"):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel}-{CASES.index(case)}")
def test_a_public_kernel_runs_unmodified(case: Case) -> None:
    function = loaded(case.file, case.kernel)

    found = case.check(simulated(case.wrap(function)))

    print(f"{case.kernel}: error {found:.2g}")
    assert found <= case.allowed


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.kernel)
def test_a_public_kernel_that_does_not_run_says_why(case: Refusal) -> None:
    inputs = {"cascaded_max": (draw(1, 256),)}.get(case.kernel, (draw(128, 128), draw(128, 512)))

    with pytest.raises(case.error, match=case.why):
        simulated(loaded(case.file, case.kernel))(*inputs)


def simulated(function: Function) -> Function:
    run: Function = importlib.import_module("nki").simulate(function)
    return run


def loaded(file: str, kernel: str) -> Function:
    """Return a function of a public file; skip the test where the file is not there."""
    path = Path(FOLDER) / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function: Function = getattr(load(path), kernel)
    return function


def load(path: Path) -> ModuleType:
    """Import a file; one of the library as a member of its package, whose own file imports all."""
    if LIBRARY in path.as_posix():
        root = Path(FOLDER) / LIBRARY
        package = sys.modules.setdefault("nkilib", ModuleType("nkilib"))
        package.__path__ = [str(root)]
        return importlib.import_module(
            ".".join(["nkilib", *path.relative_to(root).with_suffix("").parts])
        )
    spec = importlib.util.spec_from_file_location(f"conformance.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
