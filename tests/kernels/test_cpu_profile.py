"""Work that a profile attributes to commands, against numbers worked out by hand."""

import pytest
import torch
from torch import nn

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.native import Call
from noria.kernels.cpu.profile import CommandTime, timed


def test_a_linear_layer_multiplies_every_row_and_reads_its_weight_once():
    x, packed, out = torch.zeros(5, 7), torch.zeros(1, 7, 16), torch.zeros(5, 3)
    call = Call("linear_f32_f32", 1, (x, packed, None, out, 5, 7, 3, 7, 128, 3, 5))

    time = timed(call, 0.5)

    assert time == CommandTime("linear 7x3", 2 * 5 * 7 * 3, 4 * (35 + 112 + 15), 0.5)


NO_OPTIONS = (None, 0, 0.0, 1.0)
"""Block offset, window, soft cap and scale of values."""


def test_attention_counts_the_tokens_that_are_there():
    """Two requests see 10 and 3 tokens; a third is padding, and the caches are far larger."""
    q = torch.zeros(3, 4, 8, dtype=torch.bfloat16)
    caches = [torch.zeros(100, 16, 2, 8, dtype=torch.bfloat16) for _ in range(2)]
    lens = [torch.tensor(values, dtype=torch.int32) for values in ([9, 2, 0], [1, 1, 0])]
    table = torch.zeros(3, 5, dtype=torch.int32)
    sizes = (3, 32, 3, 1, 5, 100, 16, 4, 2, 8, 32, 1, 1.0, 2, *NO_OPTIONS)
    call = Call("attend_bf16_bf16", 3, (q, *caches, table, None, *lens, q.flatten(1), *sizes))

    time = timed(call, 1.0)

    assert time.operator == "attend"
    assert time.flop == 4 * 4 * 8 * (10 + 3)
    assert time.num_bytes == 2 * 13 * 2 * 8 * 2 + 2 * 3 * 4 * 8 * 2


def test_a_causal_prefill_sees_one_token_more_per_query():
    q = torch.zeros(4, 1, 8)
    cache = torch.zeros(9, 4, 1, 8)
    start, context, queries = (torch.tensor(v, dtype=torch.int32) for v in ([0, 4], [2], [4]))
    sizes = (4, 8, 1, 4, 3, 9, 4, 1, 1, 8, 32, 4, 1.0, 1)
    table = torch.zeros(1, 3, dtype=torch.int32)
    args = (q, cache, cache, table, start, context, queries, q, *sizes)

    plain = timed(Call("attend_f32_f32", 1, (*args, *NO_OPTIONS)), 1.0)
    windowed = timed(Call("attend_f32_f32", 1, (*args, None, 4, 0.0, 1.0)), 1.0)

    assert plain.flop == 4 * 8 * (3 + 4 + 5 + 6)
    assert windowed.flop == 4 * 8 * (3 + 4 + 4 + 4)
    assert plain.num_bytes == windowed.num_bytes == 2 * 6 * 8 * 4 + 2 * 4 * 8 * 4


def test_a_write_reads_new_rows_and_writes_them_as_the_cache_holds_them():
    """Five rows of 3 heads of 8, keys and values."""
    rows, slots = torch.zeros(5, 3, 8), torch.zeros(5, dtype=torch.int32)
    sizes = (5, 24, 24, 24, 144, 5, 1.0, 1.0)
    for dtype, size in ((torch.float32, 4), (torch.float8_e4m3fn, 1)):
        cache = torch.zeros(9, 16, 3, 8, dtype=dtype)
        name = "write_kv_f32_f32" if size == 4 else "write_kv_f32_fp8"

        time = timed(Call(name, 1, (rows, rows, cache, cache, slots, *sizes)), 1.0)

        assert time == CommandTime("write_kv", 0, 2 * 5 * 24 * (4 + size), 1.0)


def test_experts_are_counted_for_all_rows_and_no_more_weights_than_there_are():
    """Three rows of two experts each, of eight (and of four) experts of 5 inputs, 7 outputs."""
    x, starts, out = torch.zeros(3, 5), torch.zeros(9, dtype=torch.int32), torch.zeros(6, 7)
    packed = torch.zeros(16, 1, 5, 16)
    up = Call("expert_gate_up_f32", 8, (x, starts, starts, packed, out, 5, 7, 5, 3))
    down = Call("expert_down_f32", 4, (out, starts[:5], packed[:4], out, 7, 5, 3))

    times = timed(up, 1.0), timed(down, 1.0)

    weight = 5 * 16 * 4
    read = x.nbytes + out.nbytes, 2 * out.nbytes
    assert times[0] == CommandTime(
        "expert_gate_up 5x14", 2 * 6 * 5 * 14, 6 * 2 * weight + read[0], 1.0
    )
    assert times[1] == CommandTime("expert_down 7x5", 2 * 6 * 7 * 5, 4 * weight + read[1], 1.0)


def test_copies_of_blocks_count_those_that_are_not_skipped():
    cache, src = torch.zeros(5, 4, 1, 8), torch.tensor([2, -1, 3], dtype=torch.int32)
    call = Call("copy_blocks", 1, (cache, src, src, 3, 5, cache[0].nbytes, 2**16))

    assert timed(call, 1.0).num_bytes == 2 * 2 * 4 * 8 * 4


class Model(nn.Module):
    """An embedding, a layer of this target and one operator that is torch's."""

    def __init__(self, kernels: CpuKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.linear = kernels.make_linear(torch.ones(4, 8), None, torch.float32)
        self.register_buffer("table", torch.ones(10, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.kernels.embed(ids, self.table)) + 1


@pytest.mark.parametrize("num_threads", [1, 3])
def test_profiling_runs_the_graph_and_times_every_command(num_threads: int):
    kernels, output = CpuKernels(), torch.zeros(6, 4)
    run = kernels.compile(Model(kernels), [torch.zeros(6, dtype=torch.int32)], [output])
    threads = torch.get_num_threads()

    torch.set_num_threads(num_threads)
    try:
        times = run.profile()
    finally:
        torch.set_num_threads(threads)

    operators = [time.operator for time in times]  # the last one copies into the output
    assert operators == ["take_rows", "linear 8x4", "torch", "torch"]
    assert all(time.seconds >= 0 for time in times)
    assert times[0].num_bytes == 2 * 6 * 8 * 4
    assert output.eq(9).all()
