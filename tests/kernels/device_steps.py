"""Attention steps and an engine on a device's kernels, for the device itself and its stand-in."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from attention_cases import Heads, Layout, Request, Step
from dense_attention import dense_attention
from nki_kernels import make_nki_decode, make_nki_prefill
from torch import Tensor, nn

from noria.kernels.kernel_set import KernelSet

REQUESTS = [Request(70, 4, 1), Request(0, 3, 2), Request(15, 1, 3)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
HEADS = {
    f"{str(dtype)[6:]}-{window}": Heads(dtype=dtype, block_size=16, window=window)
    for dtype, window in product(TOLERANCES, (None, 20))
}
STEPS = {
    f"{make.__name__}-{name}": make(REQUESTS, heads, Layout(filler=float("nan")))
    for make, (name, heads) in product((make_nki_prefill, make_nki_decode), HEADS.items())
}


class Attend(nn.Module):
    """One attention layer as a graph."""

    def __init__(self, kernels: KernelSet, step: Step) -> None:
        super().__init__()
        self.attend: Any = kernels.attend_prefill if step.is_prefill else kernels.attend_decode
        self.spec = step.heads.spec

    def forward(self, args: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        result: Tensor = self.attend(*args, **named, spec=self.spec)
        return result


def problems_of(step: Step, kernels: KernelSet) -> list[str]:
    """Compile a step, run it, and say what is not as dense attention and a plain write have it."""
    args = [tensor.clone() for tensor in step.args]
    for index in (3, 4):
        cache = kernels.zeros(args[index].shape, args[index].dtype)
        cache.copy_(args[index])
        args[index] = cache
    num_rows, num_heads, dim = args[0].shape
    output = torch.zeros((num_rows, num_heads * dim), dtype=args[0].dtype)
    kernels.compile(Attend(kernels, step), [args, step.named], [output])()
    problems = []
    for cache, expected in zip(args[3:5], step.expected_caches, strict=True):
        if not torch.equal(cache.cpu().view(torch.uint8), expected.view(torch.uint8)):
            problems.append("a cache does not hold what was written")
    for rows, expected in zip(step.request_rows(output), dense_attention(step), strict=True):
        error = (rows.double() - torch.from_numpy(expected)).abs().nan_to_num(nan=9).max()
        if error > TOLERANCES[step.heads.dtype]:
            problems.append(f"attention is {error:g} off")
    if output[step.is_padding()].any():
        problems.append("rows of padding are not zero")
    return problems
