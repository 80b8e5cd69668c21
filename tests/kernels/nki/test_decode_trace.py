"""Bytes of decode steps by both pathways."""

from __future__ import annotations

import numpy as np
import pytest

from noria.kernels.nki.decode_trace import DecodeStep, block_table, decode_cost


def test_a_step_counts_live_tokens_blocks_and_whole_folds() -> None:
    step = DecodeStep(batch=3, context=1000, fill=0.5, block_size=16, num_kv_heads=2)

    assert (step.live_tokens, step.live_blocks, step.table_width) == (500, 32, 128)
    assert step.needed_bytes == 3 * 32 * 16 * 2 * 2 * 128 * 2


def test_the_table_holds_each_live_block_once_and_minus_one() -> None:
    table = block_table(DecodeStep(batch=3, context=256, fill=0.25, block_size=1))

    assert table.shape == (3, 256)
    assert sorted(table[table >= 0].tolist()) == list(range(1, 3 * 64 + 1))
    assert np.all(table[:, 64:] == -1)


@pytest.mark.parametrize("fill", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("block_size", "num_kv_heads"), [(1, 1), (16, 2), (64, 1)])
def test_the_copying_pathway_moves_the_live_blocks_alone(
    fill: float, block_size: int, num_kv_heads: int
) -> None:
    context = 128 * block_size
    step = DecodeStep(2, context, fill, block_size, num_kv_heads=num_kv_heads, head_dim=32)

    found = decode_cost(step, "dma_copy", "trn2").cache

    assert found.moved_bytes == step.needed_bytes
    whole = DecodeStep(2, context, 1.0, block_size, num_kv_heads=num_kv_heads, head_dim=32)
    assert found.moved_bytes + found.skipped_bytes == whole.needed_bytes


def test_the_transposing_pathway_moves_the_whole_table() -> None:
    step = DecodeStep(batch=1, context=256, fill=0.25, block_size=2)

    found = decode_cost(step, "dma_transpose", "trn2").cache

    assert found.moved_bytes == 4 * step.needed_bytes
    assert found.skipped_bytes == 0


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("window", [1, 100, 4096])
def test_a_window_moves_its_blocks_alone(window: int, fp8: bool) -> None:
    step = DecodeStep(2, 2048, 0.6, 16, head_dim=32, window=window, fp8=fp8)

    found = decode_cost(step, "dma_copy", "trn2").cache

    first, last = max(0, 1229 - window) // 16, 1228 // 16
    assert (step.live_tokens, step.live_blocks) == (1229, last + 1 - first)
    assert found.moved_bytes == step.needed_bytes
    assert step.needed_bytes == 2 * step.live_blocks * 16 * 2 * 32 * (1 if fp8 else 2)


def test_the_transposing_pathway_has_no_windows() -> None:
    with pytest.raises(ValueError, match="'dma_transpose' has no windows, expected dma_copy"):
        decode_cost(DecodeStep(1, 256, window=16), "dma_transpose", "trn2")


def test_skipped_folds_save_dma_time_and_skipped_blocks_of_a_fold_leave_engines_idle() -> None:
    def work(context: int, fill: float) -> dict[str, float]:
        cost = decode_cost(DecodeStep(1, context, fill, 4), "dma_copy", "trn2").cost
        return {engine.engine: engine.work_s for engine in cost.engines}

    one_fold, two_folds = work(1024, 0.5), work(1024, 1.0)
    half_a_fold, whole_fold = work(512, 0.5), work(512, 1.0)

    assert one_fold["dma"] < 0.7 * two_folds["dma"]
    assert one_fold["tensor"] == two_folds["tensor"]
    assert half_a_fold["dma"] == pytest.approx(whole_fold["dma"], rel=0.1)
