"""Windows and block offsets to the last bit, what they must never read, and what they cost."""

import itertools
import time
from dataclasses import replace

import pytest
import torch
from attention_cases import (
    Layout,
    Request,
    make_decode,
    make_prefill,
    same_bits,
    single_steps,
)
from attention_targets import (
    BLOCK_SIZES,
    CPU,
    DTYPES,
    NAN,
    ODD,
    PHASES,
    TARGETS,
    all_same_bits,
    heads_of,
    rows_of,
    windows_of,
)
from torch import Tensor, nn

from noria.kernels.contract import AttentionSpec


@TARGETS
@PHASES
@DTYPES
@BLOCK_SIZES
def test_freed_blocks_and_offsets_change_no_bit(kernels, make, dtype, block_size: int):
    """Poisoned: freed blocks, the null block, unused slots, padded rows."""
    for window in windows_of(block_size):
        heads = heads_of(block_size, window, dtype)
        whole = rows_of(make(ODD, heads), kernels)

        for filler, dropped, stale in itertools.product((NAN, 1e30), (0, 0.5, 1), (False, True)):
            layout = Layout(
                num_rows=12,
                num_requests=5,
                filler=filler,
                padding=filler,
                dropped=dropped,
                stale=stale,
                block_seed=1,
            )
            assert all_same_bits(rows_of(make(ODD, heads, layout), kernels), whole)


@TARGETS
@DTYPES
@BLOCK_SIZES
def test_any_chunking_and_single_decode_steps_give_the_bits_of_one_prefill(
    kernels, dtype, block_size: int
):
    """Chunks start and end inside of windows and of key tiles, with the oldest blocks freed."""
    prompt, layout = Request(0, 80, 7), Layout(dropped=1.0, filler=NAN)
    for window in (1, block_size - 1, block_size + 1, 40):
        heads = heads_of(block_size, window, dtype)
        (whole,) = rows_of(make_prefill([prompt], heads), kernels)

        for edges in [(0, 1, 80), (0, 32, 64, 80), (0, 39, 43, 79, 80)]:
            chunks = [
                rows_of(make_prefill([Request(start, end - start, 7)], heads, layout), kernels)[0]
                for start, end in itertools.pairwise(edges)
            ]
            assert same_bits(torch.cat(chunks), whole)
        singles = list(single_steps(prompt))[::5]
        decoded = [rows_of(make_decode([one], heads, layout), kernels)[0] for one in singles]
        assert same_bits(torch.cat(decoded), whole[::5])


@TARGETS
@DTYPES
def test_packed_and_verified_rows_equal_each_alone(kernels, dtype: torch.dtype):
    layout = Layout(dropped=1.0, filler=NAN)
    for window in (1, 6, 33):
        heads = heads_of(4, window, dtype)
        packed = rows_of(make_prefill(ODD, heads, layout), kernels)
        verified = rows_of(make_decode(ODD, heads, layout), kernels)

        for index, request in enumerate(ODD):
            alone = rows_of(make_prefill([request], heads), kernels)[0]
            singles = [rows_of(make_decode([r], heads), kernels)[0] for r in single_steps(request)]
            assert same_bits(packed[index], alone)
            assert same_bits(verified[index], alone)
            assert same_bits(torch.cat(singles), alone)


@TARGETS
@DTYPES
@pytest.mark.parametrize("token", [0, 5, 31])
def test_tokens_outside_a_window_never_reach_a_row(kernels, dtype: torch.dtype, token: int):
    """NaN keys and values in a live block: rows that see the token are NaN, no others."""
    for window in (1, 7, 33):
        heads = heads_of(16, window, dtype)
        clean, poisoned = (make_prefill([Request(0, 70, 1)], heads) for _ in range(2))
        for tensor in poisoned.args[1:3]:
            tensor[token] = NAN

        first, second = (step.run(kernels)[0] for step in (clean, poisoned))

        sees = torch.zeros(70, dtype=torch.bool)
        sees[token : token + window] = True
        assert same_bits(first[~sees], second[~sees])
        assert second[sees].isnan().all()


@TARGETS
@PHASES
def test_a_window_that_holds_every_context_changes_no_bit(kernels, make):
    plain = rows_of(make(ODD, heads_of(4, None)), kernels)

    assert all_same_bits(rows_of(make(ODD, heads_of(4, 74)), kernels), plain)
    assert not all_same_bits(rows_of(make(ODD, heads_of(4, 73)), kernels), plain)


def test_a_windowed_decode_step_walks_only_its_window():
    """80,000 tokens, all in one block: with a window the rest costs no processor time."""
    heads, num_columns = heads_of(16, 64), 5000
    step = make_decode([Request(5, 1, 1)], heads)
    block = int(step.blocks[0][0])
    step = step.with_named(
        block_table_SW=torch.full((1, num_columns), block, dtype=torch.int32),
        context_lens_S=torch.tensor([16 * num_columns - 1], dtype=torch.int32),
    )

    def seconds(window: int | None) -> float:
        layer = replace(step, heads=replace(heads, window=window))
        times = []
        for _ in range(20):
            start = time.process_time()
            layer.run(CPU)
            times.append(time.process_time() - start)
        return min(times)

    assert 5 * seconds(64) < seconds(None)


def test_a_compiled_step_reads_its_offsets_where_they_lie():
    step = make_decode(ODD, heads_of(4, 9), Layout(dropped=1.0, extra_columns=6))
    args = [tensor.clone() for tensor in step.args]
    named = {name: tensor.clone() for name, tensor in step.named.items()}
    output = torch.zeros_like(args[0].flatten(1))
    named["block_offset"].zero_()

    run = CPU.compile(Decode(step.heads.spec), [args, named], [output])
    named["block_offset"].copy_(step.named["block_offset"])
    run()

    assert same_bits(output, step.run(CPU)[0])


class Decode(nn.Module):
    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, args: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        return CPU.attend_decode(*args, **named, spec=self.spec)


@PHASES
def test_tokens_before_a_table_are_not_read(make):
    """A table that starts too late, which the reference refuses, is one with holes."""
    heads = heads_of(4, 20)
    step = make([Request(70, 2, 1)], heads, Layout(dropped=1.0, filler=NAN))
    name = "block_table_PW" if step.is_prefill else "block_table_SW"
    table = step.named[name]
    holes = step.with_named(**{name: torch.cat([torch.full((1, 2), -1).int(), table[:, 2:]], 1)})
    late = step.with_named(
        **{name: table[:, 2:].contiguous(), "block_offset": step.named["block_offset"] + 2}
    )

    assert all_same_bits(rows_of(late, CPU), rows_of(holes, CPU))
    assert not all_same_bits(rows_of(late, CPU), rows_of(step, CPU))
