"""Graphs lowered to commands: same results as eager, static buffers, shared memory."""

import gc

import pytest
import torch
from attention_cases import Heads, Layout, Request, make_decode, same_bits
from torch import Tensor, nn

from noria.kernels.contract import AttentionSpec
from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.program import Program
from noria.kernels.reference import ReferenceKernels
from noria.kernels.static_graph import bind, trace

KERNELS = CpuKernels()
HEADS = Heads(num_kv_heads=2, group=2, dtype=torch.float32)
WIDTH = 32


class Layer(nn.Module):
    """One decoder layer in miniature, built from any KernelSet."""

    def __init__(self, kernels, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def linear(num_inputs: int, num_outputs: int) -> nn.Module:
            weight = torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5
            return kernels.make_linear(weight, None, torch.float32)

        self.kernels = kernels
        self.qkv, self.out = linear(WIDTH, 64), linear(WIDTH, WIDTH)
        self.gate_up, self.down = linear(WIDTH, 96), linear(48, WIDTH)
        self.register_buffer("weight", torch.rand(WIDTH, generator=generator) + 0.5)
        self.register_buffer("cos_sin", torch.randn(64, 8, generator=generator))
        self.register_buffer("table", torch.randn(50, WIDTH, generator=generator))

    def forward(self, inputs: dict[str, Tensor], caches: list[Tensor]) -> Tensor:
        kernels = self.kernels
        residual = kernels.embed(inputs["ids"], self.table)
        qkv = self.qkv(kernels.rms_norm(residual, self.weight, 1e-5))
        q, k, v = (part.unflatten(1, (-1, 8)) for part in qkv.split([32, 16, 16], dim=1))
        q, k = kernels.rope(q, k, inputs["positions"], self.cos_sin)
        named = {name: inputs[name] for name in inputs if name not in ("ids", "positions")}
        attended = kernels.attend_decode(
            q, k, v, *caches, **named, spec=AttentionSpec(scale=HEADS.scale)
        )
        x, residual = kernels.add_rms_norm(self.out(attended), residual, self.weight, 1e-5)
        return self.down(kernels.silu_mul(self.gate_up(x))) + residual


def make_inputs(seed: int, num_rows: int = 8) -> tuple[dict[str, Tensor], list[Tensor]]:
    requests = [Request(9, 1, seed), Request(0, 1, seed + 1), Request(33, 1, seed + 2)]
    step = make_decode(requests, HEADS, Layout(num_requests=num_rows))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (num_rows,), generator=generator, dtype=torch.int32)
    positions = step.named["context_lens_S"].clone()
    return {**step.named, "ids": ids, "positions": positions}, step.args[3:]


def clones(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def test_a_graph_matches_eager_to_the_bit_and_the_reference_closely():
    inputs, caches = make_inputs(1)
    eager_caches, graph_caches, other_caches = clones(caches), clones(caches), clones(caches)
    output = torch.full((8, WIDTH), float("nan"))

    KERNELS.compile(Layer(KERNELS), [inputs, graph_caches], [output])()

    assert same_bits(output, Layer(KERNELS)(inputs, eager_caches))
    assert all(same_bits(*pair) for pair in zip(graph_caches, eager_caches, strict=True))
    expected = Layer(ReferenceKernels())(inputs, other_caches)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


def test_compiling_changes_no_input():
    inputs, caches = make_inputs(1)
    before = clones([*inputs.values(), *caches])

    KERNELS.compile(Layer(KERNELS), [inputs, caches], [torch.zeros(8, WIDTH)])

    for tensor, copy in zip([*inputs.values(), *caches], before, strict=True):
        assert torch.equal(tensor, copy)


def test_inputs_are_read_where_they_lie_at_every_run():
    inputs, caches = make_inputs(1)
    output = torch.zeros(8, WIDTH)
    run = KERNELS.compile(Layer(KERNELS), [inputs, caches], [output])

    for seed in (5, 6):
        new_inputs, new_caches = make_inputs(seed)
        for buffer, value in zip(
            [*inputs.values(), *caches], [*new_inputs.values(), *new_caches], strict=True
        ):
            buffer.copy_(value)
        run()
        assert same_bits(output, Layer(KERNELS)(new_inputs, new_caches))


def test_graphs_share_memory_and_weights_and_do_not_disturb_each_other():
    kernels = CpuKernels()
    layer, steps = Layer(kernels), [make_inputs(seed, rows) for seed, rows in ((1, 16), (4, 8))]
    outputs = [torch.zeros(rows, WIDTH) for rows in (16, 8)]
    runs = []
    sizes = []
    for (inputs, caches), output in zip(steps, outputs, strict=True):
        runs.append(kernels.compile(layer, [inputs, caches], [output]))
        sizes.append(kernels._pool.num_bytes)

    for _ in range(2):
        for run, (inputs, caches), output in zip(runs, steps, outputs, strict=True):
            eager = clones(caches)
            run()
            assert same_bits(output, layer(inputs, eager))
    assert sizes[0] == sizes[1] > 0


def test_graphs_point_to_the_modules_own_tensors():
    layer = Layer(KERNELS)
    layer.plain = torch.zeros(3)
    layer.register_buffer("passing", torch.zeros(3), persistent=False)
    inputs, caches = make_inputs(1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, inputs: dict[str, Tensor], caches: list[Tensor]) -> Tensor:
            return self.layer(inputs, caches) + self.layer.plain.sum() + self.layer.passing.sum()

    both = Both()
    static = bind(trace(both, [inputs, caches]), both, [inputs, caches])
    pointers = {tensor.data_ptr() for tensor in static.placeholders.values()}

    own = [*layer.state_dict().values(), layer.plain, layer.passing, *inputs.values(), *caches]
    assert pointers == {tensor.data_ptr() for tensor in own}


def test_constants_of_the_trace_are_kept():
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.tensor([1.0, 2.0])

    output = torch.zeros(2)

    KERNELS.compile(Constant(), [torch.ones(2)], [output])()

    assert output.tolist() == [2.0, 3.0]


def test_memory_inside_a_graph_is_reused():
    class Chain(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            for _ in range(40):
                x = KERNELS.rms_norm(x, weight, 1e-5)
            return x

    kernels, x = CpuKernels(), torch.ones(4, 8)
    run = kernels.compile(Chain(), [x, torch.ones(8)], [torch.zeros(4, 8)])

    assert run.num_commands == 40
    assert kernels._pool.num_bytes == 2 * x.nbytes


def test_programs_keep_what_they_point_to_alive():
    inputs, caches = make_inputs(1)
    expected = Layer(KERNELS)(inputs, clones(caches))
    output = torch.zeros(8, WIDTH)
    run = KERNELS.compile(Layer(KERNELS), [inputs, caches], [output])
    del inputs, caches
    gc.collect()
    noise = [torch.full((1000,), float("nan")) for _ in range(100)]

    run()

    assert same_bits(output, expected)
    assert len(noise) == 100


def test_a_model_is_one_list_of_commands():
    class Pure(Layer):
        def forward(self, inputs: dict[str, Tensor], caches: list[Tensor]) -> Tensor:
            x = self.kernels.embed(inputs["ids"], self.table)
            return self.down(self.kernels.silu_mul(self.gate_up(x)))

    inputs, caches = make_inputs(1)
    output = torch.zeros(8, WIDTH)

    run = KERNELS.compile(Pure(KERNELS), [inputs, caches], [output])

    assert isinstance(run, Program)
    assert (len(run.steps), run.num_commands) == (1, 4)


class TwoLinears(nn.Module):
    """For 300 rows, which linears compute in tiles of 4 or 8."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        weights = [torch.randn(shape, generator=generator) for shape in ((100, 33), (7, 100))]
        self.first, self.last = (KERNELS.make_linear(w, None, torch.float32) for w in weights)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


@pytest.mark.parametrize(
    ("num_rows", "tiles_end"), [(1, 8), (24, 24), (128, 128), (129, 136), (257, 264), (999, 300)]
)
def test_a_run_for_some_rows_gives_them_the_same_bits_and_leaves_out_the_rest(num_rows, tiles_end):
    graph, x = TwoLinears(), torch.randn(300, 33)
    output = torch.zeros(300, 7)
    run = KERNELS.compile(graph, [x], [output])
    run()
    expected = output.clone()
    output.fill_(float("nan"))

    run.run_rows(num_rows)

    assert same_bits(output[:num_rows], expected[:num_rows])
    assert output[tiles_end:].isnan().all()


class RowByRow(nn.Module):
    """Operators in chunks of rows: of 16 thousand elements."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("weight", torch.ones(2048))
        self.register_buffer("positions", torch.arange(100, dtype=torch.int32))
        self.register_buffer("angles", torch.randn(100, 64))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "silu_mul":
            return KERNELS.silu_mul(x)
        if self.kind == "add_rms_norm":
            return KERNELS.add_rms_norm(x, x, self.weight, 1e-5)[0]
        heads = x.unflatten(1, (-1, 64))
        return KERNELS.rope(heads, heads, self.positions, self.angles)[0].flatten(1)


@pytest.mark.parametrize("kind", ["silu_mul", "add_rms_norm", "rope"])
@pytest.mark.parametrize("num_rows", [1, 17, 40, 100])
def test_a_run_for_some_rows_leaves_out_chunks_of_others(kind, num_rows):
    graph, x = RowByRow(kind), torch.randn(100, 2048)
    output = torch.zeros(100, 1024 if kind == "silu_mul" else 2048)
    run = KERNELS.compile(graph, [x], [output])
    run()
    expected = output.clone()
    output.fill_(float("nan"))

    run.run_rows(num_rows)

    assert same_bits(output[:num_rows], expected[:num_rows])
    assert output[num_rows + 16 :].isnan().all()
    assert num_rows > 80 or output[-1].isnan().all()


def test_a_run_for_some_rows_does_all_else():
    """Torch between commands, and commands whose tasks are no rows in order."""
    inputs, caches = make_inputs(1)
    graph, output = Layer(KERNELS), torch.zeros(8, WIDTH)
    run = KERNELS.compile(graph, [inputs, caches], [output])
    run()
    expected, cached = output.clone(), [cache.clone() for cache in caches]
    output.zero_()
    for cache, before in zip(caches, make_inputs(1)[1], strict=True):
        cache.copy_(before)

    run.run_rows(3)

    assert same_bits(output, expected)
    assert all(same_bits(a, b) for a, b in zip(caches, cached, strict=True))
