"""What the C++ attention must never read or write: padding, the null block, unused slots."""

import pytest
import torch
from attention_cases import Heads, Layout, Request, Step, make_decode, make_prefill, same_bits

from noria.kernels.contract import AttentionSpec
from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels

KERNELS = CpuKernels()
PHASES = pytest.mark.parametrize("make", [make_prefill, make_decode])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
REQUESTS = [Request(9, 2, 1), Request(0, 3, 2), Request(15, 1, 3), Request(40, 2, 4)]


@PHASES
@DTYPES
@pytest.mark.parametrize("filler", [float("nan"), float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("block_size", [4, 16])
def test_poison_in_unused_slots_never_reaches_a_result_c03(make, dtype, filler, block_size):
    """Poisoned: the null block, free blocks, the tail of each last block, every padded row."""
    heads = Heads(dtype=dtype, block_size=block_size)
    bucket = Layout(num_rows=16, num_requests=6, extra_columns=2, filler=filler, padding=filler)
    steps = [make(REQUESTS, heads), make(REQUESTS, heads, bucket)]

    outputs = [step.request_rows(step.run(KERNELS)[0]) for step in steps]

    assert all(same_bits(*pair) for pair in zip(*outputs, strict=True))


@DTYPES
def test_later_tokens_of_the_same_request_never_reach_a_row(dtype: torch.dtype):
    """Causal masking selects: NaN in the last token's key and value leaves earlier rows alone."""
    heads = Heads(dtype=dtype)
    clean = make_prefill([Request(9, 5, 1)], heads)
    poisoned = make_prefill([Request(9, 5, 1)], heads)
    for tensor in poisoned.args[1:3]:
        tensor[4] = float("nan")

    first, second = (step.run(KERNELS)[0] for step in (clean, poisoned))

    assert same_bits(first[:4], second[:4])
    assert second[4].isnan().all()


def full_pool_step(block_seed: int, dtype: torch.dtype) -> Step:
    """8 blocks of 4 slots, all but the null block owned; 3 of 4 rows are real."""
    requests = [Request(11, 1, 1), Request(7, 1, 2), Request(7, 1, 3)]
    layout = Layout(num_requests=4, free_blocks=0, block_seed=block_seed, filler=float("nan"))
    return make_decode(requests, Heads(dtype=dtype), layout)


@DTYPES
def test_padding_slots_never_write_the_last_slot_c01(dtype: torch.dtype):
    for block_seed in range(8):
        step = full_pool_step(block_seed, dtype)

        _, *caches = step.run(KERNELS)

        for cache, expected in zip(caches, step.expected_caches, strict=True):
            assert same_bits(cache, expected)


@PHASES
@DTYPES
@pytest.mark.parametrize("filler", [0.0, float("nan")])
def test_a_step_without_requests_returns_zeros_and_writes_nothing_c04(make, dtype, filler):
    layout = Layout(num_rows=8, num_requests=8, query_len=1, padding=filler)
    step = make([Request(0, 0)], Heads(dtype=dtype), layout)
    step.args[3:] = [torch.full_like(cache, filler) for cache in step.args[3:]]

    output, *after = step.run(KERNELS)

    assert same_bits(output, torch.zeros(8, 32, dtype=dtype))
    assert all(same_bits(*pair) for pair in zip(after, step.args[3:], strict=True))


@DTYPES
def test_dummy_rows_are_exact_zeros_beside_real_ones_c04(dtype: torch.dtype):
    for num_real in (1, 2):
        layout = Layout(num_requests=8, filler=float("nan"), padding=float("nan"))
        step = make_decode(REQUESTS[:num_real], Heads(dtype=dtype), layout)

        output, *_ = step.run(KERNELS)

        padding = output[step.is_padding()]
        assert same_bits(padding, torch.zeros_like(padding))
        assert output.isfinite().all()


def table_name(step: Step) -> str:
    return "block_table_PW" if step.is_prefill else "block_table_SW"


@PHASES
@DTYPES
@pytest.mark.parametrize("holes", [[0], [0, 1], [1], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_table_entry_of_minus_one_holds_no_keys(make, dtype: torch.dtype, holes: list[int]):
    """Even whole tiles of them: 8 blocks of 4 tokens are one tile."""
    step = make([Request(41, 2, 5)], Heads(dtype=dtype), Layout(filler=float("nan")))
    table = step.named[table_name(step)].clone()
    table[0, holes] = -1
    step = step.with_named(**{table_name(step): table})

    output, *_ = step.run(KERNELS)

    expected, *_ = step.run(ReferenceKernels())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(output.float(), expected.float(), rtol=tolerance, atol=tolerance)
    assert output.isfinite().all()


@PHASES
@DTYPES
def test_a_row_whose_whole_table_is_minus_one_is_exact_zeros(make, dtype: torch.dtype):
    step = make([Request(41, 2, 5)], Heads(dtype=dtype), Layout(filler=float("nan")))
    table = torch.full_like(step.named[table_name(step)], -1)

    output, *_ = step.with_named(**{table_name(step): table}).run(KERNELS)

    assert same_bits(output, torch.zeros_like(output))


@PHASES
@DTYPES
def test_clamped_table_entries_give_the_bits_of_skipped_ones_c11(make, dtype: torch.dtype):
    layout = Layout(num_requests=6, extra_columns=3, filler=1e30)
    step = make(REQUESTS, Heads(dtype=dtype), layout)
    clamped = step.with_named(**{table_name(step): step.named[table_name(step)].clamp(min=0)})

    assert same_bits(clamped.run(KERNELS)[0], step.run(KERNELS)[0])


PREFILL_INPUTS = [
    "slot_mapping_T",
    "query_start_loc",
    "tile_request",
    "context_lens_P",
    "query_lens_P",
]
DECODE_INPUTS = ["slot_mapping_R", "query_lens_S"]


@pytest.mark.parametrize(
    ("make", "name"),
    [(make_prefill, name) for name in PREFILL_INPUTS]
    + [(make_decode, name) for name in DECODE_INPUTS],
)
def test_inputs_of_another_length_or_dtype_are_refused_c05(make, name: str):
    layout = Layout(num_rows=12, num_requests=4)
    step = make(REQUESTS, Heads(dtype=torch.float32), layout)
    value = step.named[name]

    with pytest.raises(ValueError, match="has shape"):
        step.with_named(**{name: value[:-1]}).run(KERNELS)
    with pytest.raises(ValueError, match=r"has dtype torch.int64, expected torch.int32"):
        step.with_named(**{name: value.long()}).run(KERNELS)


@pytest.mark.parametrize("index", range(1, 5), ids=["k_new", "v_new", "k_cache", "v_cache"])
def test_tensors_of_another_shape_dtype_or_layout_are_refused_c05(index: int):
    def step() -> Step:
        return make_decode(REQUESTS, Heads(dtype=torch.float32))

    narrow, wide, sparse = step(), step(), step()
    narrow.args[index] = narrow.args[index][..., :-1]
    wide.args[index] = wide.args[index].bfloat16()
    sparse.args[index] = sparse.args[index].repeat_interleave(2, dim=-1)[..., ::2]

    with pytest.raises(ValueError, match="has shape"):
        narrow.run(KERNELS)
    with pytest.raises(ValueError, match="has dtype"):
        wide.run(KERNELS)

    def clone_nothing(bad: Step) -> None:
        KERNELS.attend_decode(*bad.args, **bad.named, spec=AttentionSpec(scale=bad.heads.scale))

    with pytest.raises(ValueError, match="expected dense rows"):
        clone_nothing(sparse)


def test_sizes_that_do_not_fit_are_refused():
    heads = Heads(dtype=torch.float32)
    odd_heads = make_decode(REQUESTS, heads)
    odd_heads.args[0] = odd_heads.args[0][:, :3]
    step = make_decode(REQUESTS, heads)
    lens = {name: step.named[name][:3] for name in ("context_lens_S", "query_lens_S")}
    lens["block_table_SW"] = step.named["block_table_SW"][:3]

    with pytest.raises(ValueError, match="3 query heads do not share 2"):
        odd_heads.run(KERNELS)
    with pytest.raises(ValueError, match="16 rows do not divide among 3 requests"):
        make_decode([Request(0, 4, n) for n in range(4)], heads).with_named(**lens).run(KERNELS)
    with pytest.raises(ValueError, match="head dim 12, expected a multiple of 8"):
        make_decode(REQUESTS, Heads(k_dim=12, v_dim=12, dtype=torch.float32)).run(KERNELS)


@pytest.mark.parametrize("slot", [-2, -28, 10**6, 2**31 - 1, -(2**31)])
def test_slots_outside_the_cache_write_nothing(slot: int):
    step = make_decode(REQUESTS, Heads(dtype=torch.float32), Layout(filler=float("nan")))
    slots = torch.full_like(step.named["slot_mapping_R"], slot)

    _, *caches = step.with_named(slot_mapping_R=slots).run(KERNELS)

    assert all(same_bits(*pair) for pair in zip(caches, step.args[3:], strict=True))


@pytest.mark.parametrize("block", [-2, 10**6, 2**31 - 1, -(2**31)])
def test_blocks_outside_the_cache_are_not_read(block: int):
    step = make_decode([Request(41, 2, 5)], Heads(dtype=torch.float32))
    tables = [step.named["block_table_SW"].clone() for _ in range(2)]
    for table, entry in zip(tables, (block, -1), strict=True):
        table[0, 1] = entry

    outputs = [step.with_named(block_table_SW=table).run(KERNELS)[0] for table in tables]

    assert same_bits(*outputs)


def test_lengths_past_the_table_read_no_further():
    step = make_decode([Request(15, 1, 3)], Heads(dtype=torch.float32))
    lens = step.named["context_lens_S"] + 1000

    assert same_bits(step.with_named(context_lens_S=lens).run(KERNELS)[0], step.run(KERNELS)[0])
