"""A second oracle for attention, as unlike the kernels as possible.

One request, one token and one head at a time, over contiguous keys that never were in a cache:
no blocks, no tables, no slots, no padding, no online softmax. numpy, fp64.
"""

from __future__ import annotations

import numpy as np
from attention_cases import Request, Step
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dense_attention(step: Step) -> list[Array]:
    """Return the attention output ``[query_len, H*D]`` of each request of the step."""
    return [_attend_request(step, request) for request in step.requests]


def _attend_request(step: Step, request: Request) -> Array:
    q, k, v = (tensor.double().numpy() for tensor in request.tensors(step.heads))
    rows = [
        _attend_token(q[position], k[: position + 1], v[: position + 1], step.heads.scale)
        for position in range(request.context_len, request.num_tokens)
    ]
    return np.stack(rows) if rows else np.zeros((0, q.shape[1] * v.shape[2]))


def _attend_token(q_HD: Array, k_CKD: Array, v_CKD: Array, scale: float) -> Array:
    group = q_HD.shape[0] // k_CKD.shape[1]
    heads = []
    for head, q_D in enumerate(q_HD):
        scores_C = (k_CKD[:, head // group] @ q_D) * scale
        weights_C = np.exp(scores_C - scores_C.max())
        heads.append(weights_C / weights_C.sum() @ v_CKD[:, head // group])
    return np.concatenate(heads)
