"""The packed linear layers: values against the reference, rows independent of their number."""

import pytest
import torch
from attention_cases import same_bits

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.linear import pack
from noria.kernels.cpu.memory import Arena
from noria.kernels.cpu.native import load_library
from noria.kernels.reference import ReferenceKernels

KERNELS = CpuKernels()
RESULTS = pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ],
    ids=["f32", "bf16", "bf16_to_f32"],
)
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def make_case(num_inputs: int, num_outputs: int, num_rows: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(num_inputs * 1000 + num_outputs)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) * num_inputs**-0.5
    bias = torch.randn(num_outputs, generator=generator)
    x = torch.randn(num_rows, num_inputs, generator=generator)
    return weight.to(dtype), bias.to(dtype), x.to(dtype)


@RESULTS
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"),
    [(1, 1), (2, 15), (3, 16), (7, 17), (33, 47), (64, 48), (65, 49), (100, 130), (576, 960)],
)
def test_values_match_the_reference(dtype, out_dtype, has_bias, num_inputs, num_outputs):
    weight, bias, x = make_case(num_inputs, num_outputs, 11, dtype)
    bias = bias if has_bias else None

    output = KERNELS.make_linear(weight, bias, out_dtype)(x)

    expected = ReferenceKernels().make_linear(weight, bias, out_dtype)(x)
    tolerance = TOLERANCES[out_dtype]
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


@RESULTS
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(576, 100), (1536, 576), (33, 50)])
def test_a_row_has_the_same_bits_at_every_row_count(dtype, out_dtype, num_inputs, num_outputs):
    weight, bias, x = make_case(num_inputs, num_outputs, 2049, dtype)
    linear = KERNELS.make_linear(weight, bias, out_dtype)

    whole = linear(x)

    for num_rows in [*range(1, 41), 64, 100, 128, 129, 2047]:
        assert same_bits(linear(x[:num_rows]), whole[:num_rows])
        assert same_bits(linear(x[-num_rows:]), whole[-num_rows:])


@RESULTS
def test_number_of_threads_changes_no_bit(dtype, out_dtype):
    weight, bias, x = make_case(64, 300, 37, dtype)
    linear = KERNELS.make_linear(weight, bias, out_dtype)
    threads = torch.get_num_threads()

    try:
        torch.set_num_threads(1)
        alone = linear(x)
        torch.set_num_threads(5)
        together = linear(x)
    finally:
        torch.set_num_threads(threads)

    assert same_bits(alone, together)


@RESULTS
def test_rows_may_have_a_stride(dtype, out_dtype):
    weight, bias, x = make_case(32, 40, 6, dtype)
    linear = KERNELS.make_linear(weight, bias, out_dtype)
    wide = torch.full((6, 50), float("nan"), dtype=dtype)
    wide[:, 9:41] = x

    assert same_bits(linear(wide[:, 9:41]), linear(x))


@RESULTS
@pytest.mark.parametrize("num_inputs", [31, 32])
def test_nan_in_one_row_stays_there(dtype, out_dtype, num_inputs: int):
    """An odd row is padded inside, never with the first element of the next one."""
    weight, bias, x = make_case(num_inputs, 40, 9, dtype)
    linear = KERNELS.make_linear(weight, bias, out_dtype)
    clean = linear(x)
    x[4] = float("nan")

    output = linear(x)

    assert output[4].isnan().all()
    kept = [row for row in range(9) if row != 4]
    assert same_bits(output[kept], clean[kept])


def test_packing_holds_every_weight_once_and_zeros_beside():
    weight = torch.arange(1, 17 * 3 + 1, dtype=torch.float32).view(17, 3)

    (panels,) = pack(weight.unsqueeze(0), Arena(), library=load_library())
    (pairs,) = pack(weight.unsqueeze(0).bfloat16(), Arena(), library=load_library())

    assert panels.shape == (2, 3, 16)
    assert torch.equal(panels.transpose(1, 2).reshape(32, 3)[:17], weight)
    assert not panels[1, :, 1:].any()
    assert pairs.shape == (2, 2, 16, 2)
    assert torch.equal(pairs.transpose(1, 2).reshape(32, 4)[:17, :3], weight.bfloat16())
    assert not pairs[:, 1, :, 1].any()


def test_inputs_that_do_not_fit_are_refused():
    linear = KERNELS.make_linear(torch.zeros(4, 8), None, torch.float32)

    with pytest.raises(ValueError, match=r"x has shape \(2, 7\), expected \(2, 8\)"):
        linear(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"x has dtype torch.bfloat16, expected torch.float32"):
        linear(torch.zeros(2, 8, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="expected dense rows"):
        linear(torch.zeros(2, 16)[:, ::2])
    with pytest.raises(ValueError, match=r"linear of torch.float64 cannot give torch.float64"):
        KERNELS.make_linear(torch.zeros(4, 8, dtype=torch.float64), None, torch.float64)
    with pytest.raises(ValueError, match=r"bias has shape \(5,\), expected \(4,\)"):
        KERNELS.make_linear(torch.zeros(4, 8), torch.zeros(5), torch.float32)
