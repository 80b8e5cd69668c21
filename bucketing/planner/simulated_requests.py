"""Requests of a trace as a simulation runs them, and the limits that they must keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..traces.trace import Trace


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What a service may do at most.

    Attributes:
        max_num_seqs: requests that run at once.
        max_model_len: tokens of one request; its output ends there.
        prefill_tile: rows at whose multiples packed requests start.
        block_size: tokens of a KV block.
        num_blocks: of the pool, the null block included; None: never too few.
    """

    max_num_seqs: int
    max_model_len: int
    prefill_tile: int = 1
    block_size: int = 1
    num_blocks: int | None = None


@dataclass(slots=True)
class SimulatedRequest:
    """A request on its way; ``promised`` tokens have blocks from its admission on."""

    index: int
    prompt_len: int
    output_len: int
    arrival_s: float
    num_generated: int = 0
    num_computed: int = 0
    promised: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_len + self.num_generated

    @property
    def num_uncomputed(self) -> int:
        """Tokens that are not in the cache."""
        return self.num_tokens - self.num_computed

    @property
    def num_left(self) -> int:
        """Tokens to generate."""
        return self.output_len - self.num_generated


def simulated_requests(trace: Trace, limits: ServiceLimits) -> list[SimulatedRequest]:
    """Return the requests of a trace, in order.

    Raises:
        ValueError: see ``simulate``.
    """
    if trace.output_lens is None:
        raise ValueError("a simulation needs the output lengths of requests")
    if trace.weights is not None and (trace.weights != 1).any():
        raise ValueError("a simulation needs single requests, not a histogram of lengths")
    arrivals = np.zeros(len(trace.prompt_lens)) if trace.arrivals_s is None else trace.arrivals_s
    requests = []
    rows = zip(
        trace.prompt_lens.tolist(), trace.output_lens.tolist(), arrivals.tolist(), strict=True
    )
    for index, (prompt_len, output_len, arrival_s) in enumerate(rows):
        if prompt_len > limits.max_model_len - 1:
            raise ValueError(
                f"request {index} has a prompt of {prompt_len} tokens; max_model_len "
                f"{limits.max_model_len} allows {limits.max_model_len - 1} and one new token"
            )
        output_len = min(output_len, limits.max_model_len - prompt_len)
        if limits.num_blocks is not None:
            num_blocks = -(-(prompt_len + output_len) // limits.block_size)
            if num_blocks > limits.num_blocks - 1:
                raise ValueError(
                    f"request {index} needs {num_blocks} blocks; num_blocks {limits.num_blocks} "
                    f"gives {limits.num_blocks - 1} (one is the null block)"
                )
        requests.append(SimulatedRequest(index, prompt_len, output_len, arrival_s))
    return requests
