"""Plain torch in place of the C++ kernels: the reference's values, oneDNN's linears."""

import pytest
import torch
from attention_cases import FP8, Heads, Layout, Request, make_decode, make_prefill

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.fallback import TorchKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.architecture import Architecture, LayerKind, expected_tensors
from noria.runtime.models.decoder import Decoder

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
RESULTS = pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, torch.float32)],
    ids=["f32", "bf16", "bf16_to_f32"],
)


@pytest.fixture
def torch_kernels(monkeypatch, tmp_path) -> TorchKernels:
    """What a machine without a compiler gets."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler .* is on PATH; install g\+\+"):
        kernels = CpuKernels()
    assert isinstance(kernels, TorchKernels)
    return kernels


@DTYPES
def test_attention_is_the_reference(torch_kernels, dtype: torch.dtype):
    for make in (make_prefill, make_decode):
        step = make([Request(9, 2, 1), Request(0, 3, 2)], Heads(dtype=dtype))

        assert torch.equal(step.run(torch_kernels)[0], step.run(ReferenceKernels())[0])


@DTYPES
def test_windows_caps_and_fp8_caches_are_the_reference(torch_kernels, dtype: torch.dtype):
    heads = Heads(dtype=dtype, window=5, softcap=1.0, cache_dtype=FP8, k_scale=0.5)
    for make in (make_prefill, make_decode):
        step = make([Request(9, 2, 1), Request(0, 3, 2)], heads, Layout(dropped=1.0))

        assert torch.equal(step.run(torch_kernels)[0], step.run(ReferenceKernels())[0])


@RESULTS
def test_linears_match_the_reference(torch_kernels, has_bf16, dtype, out_dtype):
    weight, bias, x = torch.randn(30, 20) / 4, torch.randn(30), torch.randn(41, 20)
    args = weight.to(dtype), bias.to(dtype), out_dtype or dtype
    linear = torch_kernels.make_linear(*args)

    for rows in (1, 3, 4, 8, 41):
        got = linear(x[:rows].to(dtype))
        expected = ReferenceKernels().make_linear(*args)(x[:rows].to(dtype))
        tolerance = 2e-2 if args[2] == torch.bfloat16 else 1e-5
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[True, False], ids=["bf16", "no_bf16"])
def has_bf16(request, monkeypatch) -> bool:
    """Whether oneDNN finds bf16 in the processor; AVX2 alone has none."""
    has_bf16 = request.param and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if request.param and not has_bf16:
        pytest.skip("this machine does not have it")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_bf16)
    return has_bf16


@RESULTS
def test_rows_are_batch_invariant(torch_kernels, has_bf16, dtype, out_dtype):
    linear = torch_kernels.make_linear(torch.randn(96, 64).to(dtype), None, out_dtype or dtype)
    x = torch.randn(64, 64).to(dtype)
    whole = linear(x)

    assert whole.dtype == (out_dtype or dtype)
    for rows in (1, 2, 3, 4, 7, 8, 20, 33):
        assert torch.equal(linear(x[:rows]), whole[:rows])


def test_wide_results_are_not_rounded_on_the_way(torch_kernels):
    """Logits are fp32: two that differ by less than bf16 tells apart keep their order."""
    weight = torch.tensor([[1.0, 2**-12], [1.0, 2**-11]]).bfloat16()

    logits = torch_kernels.make_linear(weight, None, torch.float32)(torch.ones(1, 2).bfloat16())

    assert logits.tolist() == [[1 + 2**-12, 1 + 2**-11]]


@RESULTS
def test_packed_weights_are_counted(torch_kernels, has_bf16, dtype, out_dtype):
    linear = torch_kernels.make_linear(torch.zeros(96, 64).to(dtype), None, out_dtype or dtype)

    size = 2 if has_bf16 and (out_dtype or dtype) == torch.bfloat16 else 4
    assert 96 * 64 * size <= linear.opaque_bytes < 2 * 96 * 64 * size


def test_a_model_counts_them(torch_kernels):
    architecture = Architecture(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        layers=(LayerKind(),) * 1,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        max_position_embeddings=16,
    )
    tensors = {name: torch.zeros(s) for name, s in expected_tensors(architecture).items()}
    built = [
        Decoder(architecture, kernels, tensors, dtype=torch.float32, max_model_len=16)
        for kernels in (torch_kernels, ReferenceKernels())
    ]

    packed, plain = (model.weight_bytes for model in built)

    assert plain > sum(tensor.nbytes for tensor in tensors.values())
    assert plain <= packed < 1.2 * plain


def test_graphs_run(torch_kernels):
    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch_kernels.make_linear(torch.ones(4, 8), None, torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch_kernels.silu_mul(x))

    x, output = torch.ones(2, 16), torch.zeros(2, 4)
    run = torch_kernels.compile(Graph(), [x], [output])
    run()

    torch.testing.assert_close(output, torch.full((2, 4), 8 * 0.7310586))
