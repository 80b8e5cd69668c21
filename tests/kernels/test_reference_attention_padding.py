"""What must never be read or written: padding, the null block, unused slots, wrong inputs."""

import pytest
import torch
from attention_cases import Heads, Layout, Request, Step, make_decode, make_prefill, same_bits
from dense_attention import dense_attention
from torch import Tensor, nn

from noria.kernels.reference import ReferenceKernels, attention

PHASES = pytest.mark.parametrize("make", [make_prefill, make_decode])
REQUESTS = [Request(9, 2, 1), Request(0, 3, 2), Request(15, 1, 3)]


def is_poison_proof(make, filler: float, dtype: torch.dtype = torch.float64) -> bool:
    """True if neither unused slots nor padded rows can change a bit of the real rows."""
    heads = Heads(dtype=dtype)
    clean = make(REQUESTS, heads)
    bucket = Layout(num_rows=16, num_requests=5, extra_columns=2, filler=filler, padding=filler)
    poisoned = make(REQUESTS, heads, bucket)
    outputs = [step.request_rows(step.run(ReferenceKernels())[0]) for step in (clean, poisoned)]
    return all(same_bits(*pair) for pair in zip(*outputs, strict=True))


@PHASES
@pytest.mark.parametrize("filler", [float("nan"), float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_poison_in_unused_slots_never_reaches_a_result_c03(make, filler: float, dtype):
    """Poisoned: the null block, free blocks, the tail of each last block, every padded row."""
    assert is_poison_proof(make, filler, dtype)


def _multiply_by_mask(
    self, q_RKGD: Tensor, k_RKBD: Tensor, v_RKBD: Tensor, valid_RB: Tensor, softcap: float | None
):
    """The classical mistake: right on clean memory, but 0 times NaN is NaN."""
    mask = valid_RB[:, None, None].to(q_RKGD.dtype)
    dots = torch.einsum("rkgd,rkbd->rkgb", q_RKGD, k_RKBD)
    scores = dots + (1 - mask) * torch.finfo(dots.dtype).min / 2
    maximum = torch.maximum(self.maximum, scores.amax(dim=3, keepdim=True))
    decay = (self.maximum - maximum).exp()
    weights = (scores - maximum).exp() * mask
    output = self.output * decay + torch.einsum("rkgb,rkbd->rkgd", weights, v_RKBD)
    total = self.total * decay + weights.sum(dim=3, keepdim=True)
    return attention._SoftmaxState(maximum, total, output)


@PHASES
def test_poison_check_fails_for_a_kernel_that_multiplies_by_the_mask(make, monkeypatch):
    monkeypatch.setattr(attention._SoftmaxState, "add_block", _multiply_by_mask)
    step = make(REQUESTS)

    rows = step.request_rows(step.run(ReferenceKernels())[0])

    for got, expected in zip(rows, dense_attention(step), strict=True):
        assert float((got - torch.from_numpy(expected)).abs().max()) < 1e-12
    assert not is_poison_proof(make, float("nan"))


def full_pool_step(block_seed: int) -> Step:
    """8 blocks of 4 slots, all but the null block owned; 3 of 4 rows are real."""
    requests = [Request(11, 1, 1), Request(7, 1, 2), Request(7, 1, 3)]
    return make_decode(
        requests, Heads(), Layout(num_requests=4, free_blocks=0, block_seed=block_seed)
    )


def owner_keeps_last_slot(step: Step) -> bool:
    """True if slot 31 came out of the step as its owner left or wrote it."""
    _, k_cache, v_cache = step.run(ReferenceKernels())
    return all(
        same_bits(cache[7, 3], expected[7, 3])
        for cache, expected in zip((k_cache, v_cache), step.expected_caches, strict=True)
    )


def test_padding_slots_never_write_the_last_slot_c01():
    for block_seed in range(8):
        step = full_pool_step(block_seed)

        assert step.args[3].shape[0] * 4 == 32
        assert owner_keeps_last_slot(step)
        assert same_bits(step.run(ReferenceKernels())[1], step.expected_caches[0])


def _wrapping_write(k_RKD, v_RKD, k_cache, v_cache, slot_mapping, *, spec) -> None:
    """Plain indexing: -1 is the last slot."""
    k_cache.flatten(0, 1)[slot_mapping] = k_RKD
    v_cache.flatten(0, 1)[slot_mapping] = v_RKD


def test_last_slot_check_fails_for_a_write_that_wraps(monkeypatch):
    monkeypatch.setattr(attention, "write", _wrapping_write)

    assert not all(owner_keeps_last_slot(full_pool_step(seed)) for seed in range(8))


@PHASES
@pytest.mark.parametrize("filler", [0.0, float("nan")])
def test_a_step_without_requests_returns_zeros_and_writes_nothing_c04(make, filler: float):
    step = make([Request(0, 0)], None, Layout(num_rows=8, num_requests=8, query_len=1))
    caches = [torch.full_like(cache, filler) for cache in step.args[3:]]
    step.args[3:] = caches

    output, *after = step.run(ReferenceKernels())

    assert same_bits(output, torch.zeros(8, 32, dtype=torch.float64))
    assert all(same_bits(*pair) for pair in zip(after, caches, strict=True))


def test_dummy_rows_are_exact_zeros_beside_real_ones_c04():
    for num_real in (1, 2):
        step = make_decode(REQUESTS[:num_real], None, Layout(num_requests=8, filler=float("nan")))

        output, *_ = step.run(ReferenceKernels())

        padding = output[step.is_padding()]
        assert same_bits(padding, torch.zeros_like(padding))
        assert output.isfinite().all()


@PHASES
def test_table_entry_of_minus_one_holds_no_keys(make):
    """Two blocks of 4 are missing: the remaining keys alone are attended to, block 0 is not."""
    heads = Heads(block_size=4)
    step = make([Request(11, 1, 5)], heads, Layout(filler=float("nan")))
    name = "block_table_PW" if step.is_prefill else "block_table_SW"
    table = step.named[name].clone()
    table[0, :2] = -1

    output, *_ = step.with_named(**{name: table}).run(ReferenceKernels())

    q, k, v = Request(11, 1, 5).tensors(heads)
    scores = torch.einsum("kgd,ckd->kgc", q[11].reshape(2, 2, 8), k[8:]) * heads.scale
    expected = torch.einsum("kgc,ckd->kgd", scores.softmax(dim=2), v[8:])
    torch.testing.assert_close(output[0], expected.flatten(), rtol=0, atol=1e-12)


@PHASES
def test_clamped_table_entries_give_the_bits_of_skipped_ones_c11(make):
    """A target that cannot skip reads the null block instead, finite and never attended."""
    step = make(REQUESTS, None, Layout(num_requests=5, extra_columns=3, filler=1e30))
    name = "block_table_PW" if step.is_prefill else "block_table_SW"
    clamped = step.with_named(**{name: step.named[name].clamp(min=0)})
    cast = step.with_named(**{name: step.named[name].to(torch.uint32)})

    assert same_bits(clamped.run(ReferenceKernels())[0], step.run(ReferenceKernels())[0])
    with pytest.raises(ValueError, match=r"block_table has dtype torch.uint32"):
        cast.run(ReferenceKernels())


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
    step = make(REQUESTS, None, Layout(num_rows=8, num_requests=4))
    value = step.named[name]

    with pytest.raises(ValueError, match="has shape"):
        step.with_named(**{name: value[:-1]}).run(ReferenceKernels())
    with pytest.raises(ValueError, match=r"has dtype torch.int64, expected torch.int32"):
        step.with_named(**{name: value.long()}).run(ReferenceKernels())


@pytest.mark.parametrize("index", range(5), ids=["q", "k_new", "v_new", "k_cache", "v_cache"])
def test_tensors_of_another_shape_are_refused_c05(index: int):
    step = make_decode(REQUESTS, Heads(v_dim=6))
    step.args[index] = step.args[index][..., :-1]

    with pytest.raises(ValueError, match="has shape"):
        step.run(ReferenceKernels())


@pytest.mark.parametrize("slot", [-2, -28, -64, 64, 10**6])
def test_slots_outside_the_cache_are_refused(slot: int):
    step = make_decode(REQUESTS)
    slots = step.named["slot_mapping_R"].clone()
    slots[0] = slot

    with pytest.raises(ValueError, match=f"slot {slot} is outside a cache of 44 slots"):
        step.with_named(slot_mapping_R=slots).run(ReferenceKernels())


@pytest.mark.parametrize("block", [-2, 11])
def test_blocks_outside_the_cache_are_refused(block: int):
    step = make_decode(REQUESTS, None, Layout(extra_columns=1))
    table = step.named["block_table_SW"].clone()
    table[0, -1] = block

    with pytest.raises(ValueError, match=f"block {block} is not one of 11"):
        step.with_named(block_table_SW=table).run(ReferenceKernels())


def test_rows_longer_than_their_table_are_refused():
    step = make_decode([Request(15, 1, 3)])
    lens = step.named["context_lens_S"] + 1

    with pytest.raises(ValueError, match="sees token 16 of its block table, which holds 16"):
        step.with_named(context_lens_S=lens).run(ReferenceKernels())


def test_heads_and_rows_that_do_not_divide_are_refused():
    step = make_decode(REQUESTS, Heads(num_kv_heads=2, group=2))
    odd_heads = make_decode(REQUESTS)
    odd_heads.args[0] = odd_heads.args[0][:, :3]
    lens = {name: step.named[name][:2] for name in ("context_lens_S", "query_lens_S")}

    with pytest.raises(ValueError, match="3 query heads do not share 2"):
        odd_heads.run(ReferenceKernels())
    with pytest.raises(ValueError, match="9 rows do not divide among 2 requests"):
        step.with_named(**lens).run(ReferenceKernels())
    with pytest.raises(ValueError, match="6 rows are not whole tiles of 4"):
        make_prefill(REQUESTS).run(ReferenceKernels(prefill_tile=4))


class Doubled(nn.Module):
    def forward(self, x: Tensor, nested: list[Tensor]) -> Tensor:
        return x * 2 + nested[0]


def test_compile_binds_the_buffers_it_is_given():
    x, bias, output = torch.ones(3), torch.zeros(3), torch.empty(3)
    run = ReferenceKernels().compile(Doubled(), [x, [bias]], [output])

    run()
    assert output.tolist() == [2, 2, 2]
    x.fill_(3)
    bias.fill_(1)
    run()
    assert output.tolist() == [7, 7, 7]


def test_compile_takes_several_results_or_none():
    class Several(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return y, x

    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> None:
            x.add_(1)

    x, y, kernels = torch.zeros(3), torch.ones(3), ReferenceKernels()

    kernels.compile(Several(), [x, y], [x, y])()
    kernels.compile(Nothing(), [x], [])()

    assert (x.tolist(), y.tolist()) == ([2, 2, 2], [0, 0, 0])
    with pytest.raises(ValueError, match="the graph returns 2 values, not 1"):
        kernels.compile(Several(), [x, y], [x])()


def test_compile_refuses_an_output_of_another_shape():
    run = ReferenceKernels().compile(Doubled(), [torch.ones(3), [torch.ones(3)]], [torch.empty(1)])

    with pytest.raises(ValueError, match="graph output has shape"):
        run()
