"""How fast a workload could run if the machine did nothing but multiply, or nothing but read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..models.architecture import Architecture, Experts, expected_tensors
from ..step_costs import DTYPE_BYTES
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Stored:
    """How weights are stored: the format's name, and bytes per weight."""

    name: str
    weight_bytes: float


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Parameters by how often they are used.

    Attributes:
        num_body_params: used by every token.
        num_head_params: used by every token whose next one is asked for.
        num_idle_params: of the experts that a token does not use.
    """

    num_body_params: int
    num_head_params: int
    num_idle_params: int = 0

    @property
    def num_step_params(self) -> int:
        """Parameters that a decode step reads, whose tokens use all experts between them."""
        return self.num_body_params + self.num_head_params + self.num_idle_params


@dataclass(frozen=True, slots=True)
class Roofs:
    """Bounds of one workload in new tokens per second.

    Attributes:
        compute: every multiplication at the measured peak of a large matrix product.
        memory: every decode step reads all weights once, at the measured read bandwidth.
    """

    compute: float
    memory: float

    @property
    def lowest(self) -> float:
        """The bound that is reached first."""
        return min(self.compute, self.memory)


def model_cost(architecture: Architecture) -> ModelCost:
    """Count parameters; an embedding counts only where it is the head too."""
    sizes = {name: math.prod(shape) for name, shape in expected_tensors(architecture).items()}
    names = architecture.names
    tables = sizes.pop(f"{names.embedding}.weight"), sizes.pop(f"{names.head}.weight", None)
    idle = sum(_idle_params(kind.experts, architecture.hidden_size) for kind in architecture.layers)
    head = tables[0] if tables[1] is None else tables[1]
    return ModelCost(sum(sizes.values()) - idle, head, idle)


def _idle_params(experts: Experts | None, hidden_size: int) -> int:
    """Count the parameters of a layer's experts that one token leaves out."""
    if experts is None:
        return 0
    return 3 * hidden_size * experts.intermediate_size * (experts.num - experts.num_per_token)


def job_flop(cost: ModelCost, workload: Workload) -> int:
    """Return the floating point operations of one run's linear layers.

    Two for each parameter that a token uses: prompt tokens use the body, new tokens the body and
    the head. Attention is left out: at a few hundred tokens it is some per cent.
    """
    num_tokens = workload.num_prompts * workload.tokens_per_prompt
    num_new = workload.num_new_tokens
    return 2 * (cost.num_body_params * num_tokens + cost.num_head_params * num_new)


def stored_as(dtype: str) -> Stored:
    """Return weights that are all of one dtype, a key of ``step_costs.DTYPE_BYTES``."""
    return Stored(dtype, DTYPE_BYTES[dtype])


def roofs(
    cost: ModelCost, workload: Workload, *, flop_s: float, read_bytes_s: float, stored: Stored
) -> Roofs:
    """Return the bounds of one run.

    Args:
        cost: the model.
        workload: the run; all of its prompts share every decode step.
        flop_s: operations per second of a large matrix product.
        read_bytes_s: bytes per second read from memory.
        stored: how the weights are stored.
    """
    compute_s = job_flop(cost, workload) / flop_s
    step_s = cost.num_step_params * stored.weight_bytes / read_bytes_s
    return Roofs(
        compute=workload.num_new_tokens / compute_s,
        memory=workload.num_prompts / step_s,
    )
