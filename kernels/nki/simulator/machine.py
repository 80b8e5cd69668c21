"""The NeuronCore that a kernel runs on: generation, clock, accumulators, allocations, trace."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .errors import fail
from .generation import NUM_PARTITIONS, Generation
from .memory import Life, Storage
from .trace import Trace


@dataclass(slots=True)
class Accumulators:
    """The 128 fp32 accumulator registers of one engine; a lane is valid once it was reset."""

    values: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(NUM_PARTITIONS, np.float32)
    )
    valid: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(NUM_PARTITIONS, np.bool_))


@dataclass(slots=True)
class Machine:
    """State of one simulated core during one kernel."""

    generation: Generation
    trace: Trace | None = None
    strict_hbm: bool = True  # whether reading unwritten HBM is an error
    program_id: int = 0
    num_programs: int = 1
    shared: list[Storage] = field(default_factory=list)  # shared_hbm, in order of allocation
    num_shared: int = 0  # of them, how many this program has allocated
    clock: int = 0
    lives: list[Life] = field(default_factory=list)
    scalar: Accumulators = field(default_factory=Accumulators)
    vector: Accumulators = field(default_factory=Accumulators)


CURRENT: ContextVar[Machine] = ContextVar("noria_nki_machine")


def machine() -> Machine:
    """Return the core that the running kernel is on.

    Raises:
        SimulationError: no kernel is running.
    """
    found = CURRENT.get(None)
    if found is None:
        fail("called outside a simulated kernel; run it by nki.simulate(kernel)(...)")
    return found


def tick() -> Machine:
    """Start the next instruction."""
    core = machine()
    core.clock += 1
    return core
