"""Routing of rows to experts: softmax, order, masks."""

import pytest
import torch
from attention_cases import same_bits
from row_targets import CPU, EVERY, REFERENCE, int32, rand, tokens, wide

NAN = float("nan")


@EVERY
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (8, 2), (17, 17), (128, 8)])
def test_routing_is_softmax_then_the_largest(kernels, dtype, normalize, num_experts, top_k):
    logits = rand(9, num_experts, dtype=dtype) * 4

    experts, weights = kernels.route(logits, tokens(9), top_k, normalize)

    probabilities = logits.double().softmax(dim=1)
    order = logits.double().sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    expected = probabilities.gather(1, order)
    if normalize:
        expected = expected / expected.sum(dim=1, keepdim=True)
    assert (experts.dtype, weights.dtype) == (torch.int32, wide(dtype))
    assert torch.equal(experts.long(), order)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-6, atol=1e-9)


@EVERY
def test_equal_logits_take_the_lowest_ids(kernels, dtype: torch.dtype):
    inf = float("inf")
    rows = [[2, 3, 3, 2, 3], [0.0, -0.0, 0.0, -0.0, -1], [-inf, -inf, -inf, -inf, 1]]

    experts, _ = kernels.route(torch.tensor(rows).to(dtype), tokens(3), 4, True)

    assert experts.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3], [4, 0, 1, 2]]


@EVERY
def test_logits_that_differ_by_less_than_their_softmax_shows_keep_their_order(kernels, dtype):
    step = torch.finfo(dtype).eps
    logits = torch.tensor([[1.0, 1.0 + step, 100.0]], dtype=torch.float64).to(dtype)

    experts, _ = kernels.route(logits, tokens(1), 2, False)

    assert experts.tolist() == [[2, 1]]


@EVERY
@pytest.mark.parametrize("normalize", [True, False])
def test_masked_rows_have_no_expert_and_no_weight(kernels, dtype: torch.dtype, normalize: bool):
    logits = rand(6, 8, dtype=dtype)
    clean = kernels.route(logits, tokens(6), 2, normalize)
    logits[[1, 4]] = NAN

    experts, weights = kernels.route(logits, int32([1, 0, 1, 1, 0, 1]), 2, normalize)

    assert experts[[1, 4]].tolist() == [[-1, -1]] * 2
    assert weights[[1, 4]].tolist() == [[0, 0]] * 2
    kept = [0, 2, 3, 5]
    assert torch.equal(experts[kept], clean[0][kept])
    assert same_bits(weights[kept], clean[1][kept])


@EVERY
@pytest.mark.parametrize("normalize", [True, False])
def test_nan_logits_give_known_experts_and_harm_no_other_row(kernels, dtype, normalize):
    logits = rand(3, 8, dtype=dtype)
    clean = kernels.route(logits, tokens(3), 2, normalize)
    logits[1, 3] = NAN

    experts, weights = kernels.route(logits, tokens(3), 2, normalize)

    assert weights[1].isnan().all()
    assert 3 not in experts[1].tolist()
    assert ((experts >= 0) & (experts < 8)).all()
    assert same_bits(weights[[0, 2]], clean[1][[0, 2]])


@EVERY
def test_routing_of_a_row_has_the_same_bits_anywhere(kernels, dtype: torch.dtype):
    logits = rand(40, 19, dtype=dtype)
    experts, weights = kernels.route(logits, tokens(40), 3, True)
    beside = torch.full((40, 30), NAN, dtype=dtype)
    beside[:, 4:23] = logits

    assert same_bits(kernels.route(beside[:, 4:23], tokens(40), 3, True)[1], weights)
    for first, count in ((0, 1), (7, 2), (33, 7)):
        part = slice(first, first + count)
        some = kernels.route(logits[part].clone(), tokens(count), 3, True)
        assert torch.equal(some[0], experts[part])
        assert same_bits(some[1], weights[part])


@pytest.mark.parametrize("kernels", [CPU, REFERENCE], ids=["cpu", "reference"])
def test_routing_that_does_not_fit_is_refused(kernels):
    logits = torch.zeros(2, 4)

    for top_k in (0, 5):
        with pytest.raises(ValueError, match=f"top_k is {top_k}, expected 1 to 4 experts"):
            kernels.route(logits, tokens(2), top_k, True)
    with pytest.raises(ValueError, match=r"token_mask has shape \(3,\), expected \(2,\)"):
        kernels.route(logits, tokens(3), 2, True)
    with pytest.raises(ValueError, match=r"token_mask has dtype torch.bool"):
        kernels.route(logits, tokens(2).bool(), 2, True)
