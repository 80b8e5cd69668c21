"""A second oracle for attention, as unlike the kernels as possible.

One request, one token and one head at a time, over contiguous keys that never were in a cache:
no blocks, no tables, no slots, no padding, no online softmax. numpy, fp64.
"""

from __future__ import annotations

import numpy as np
from attention_cases import Heads, Request, Step
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dense_attention(step: Step) -> list[Array]:
    """Return the attention output ``[query_len, H*D]`` of each request of the step."""
    return [_attend_request(step, request) for request in step.requests]


def _attend_request(step: Step, request: Request) -> Array:
    heads = step.heads
    q, k, v = request.tensors(heads)
    q_CHD = q.double().numpy()
    k_CKD = heads.read(k, heads.k_scale).numpy()
    v_CKD = heads.read(v, heads.v_scale).numpy()
    rows = []
    for position in range(request.context_len, request.num_tokens):
        seen = slice(0, position + 1)
        if heads.window is not None:
            seen = slice(max(0, position + 1 - heads.window), position + 1)
        rows.append(_attend_token(q_CHD[position], k_CKD[seen], v_CKD[seen], heads))
    return np.stack(rows) if rows else np.zeros((0, q.shape[1] * v.shape[2]))


def _attend_token(q_HD: Array, k_CKD: Array, v_CKD: Array, sizes: Heads) -> Array:
    outputs = []
    for head, q_D in enumerate(q_HD):
        scores_C = (k_CKD[:, head // sizes.group] @ q_D) * sizes.scale
        if sizes.softcap is not None:
            scores_C = sizes.softcap * np.tanh(scores_C / sizes.softcap)
        weights_C = np.exp(scores_C - scores_C.max())
        outputs.append(weights_C / weights_C.sum() @ v_CKD[:, head // sizes.group])
    return np.concatenate(outputs)
