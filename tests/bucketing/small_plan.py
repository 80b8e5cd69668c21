"""A plan of four graphs whose steps take a second per row, to be added up by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from row_seconds import row_seconds

from noria.bucketing import DecodeBucket, PlanFile, PlanLimits, PrefillBucket
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.plan_file import PlannedGraph
from noria.bucketing.planner.about import budget_mapping, steps_mapping
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.planner.simulation import Steps
from noria.bucketing.traces.trace import Trace

LIMITS = PlanLimits(64, 4, 64, 4, 16)
FEES = GraphFees(base_compile_s=1.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0)
STEPS = Steps({(10, 10, 10, 0): 3, (40, 40, 40, 0): 2}, {(1, 20): 5, (3, 30): 7}, 0.0, 0.0, 0)
"""Real rows: 110 of prefill and 26 of decode. With the plan: 3 * 16 + 2 * 64 and 5 * 1 + 7 * 4."""
SETTINGS = PlanSettings(policy="fill", max_ratio=None, unseen_share=0.0)


def small_plan(steps: Steps = STEPS, **about: Any) -> PlanFile:
    """Return the plan; ``about`` replaces what it says of itself."""
    says = {
        "costs": row_seconds(FEES).data,
        "settings": {**asdict(SETTINGS), "must_have": []},
        "budget": budget_mapping(Budget(workers=2)),
        "demand": steps_mapping(steps),
    }
    return PlanFile(
        limits=LIMITS,
        prefill=tuple(PlannedGraph(PrefillBucket(size, 64), float(size)) for size in (16, 64)),
        decode=tuple(PlannedGraph(DecodeBucket(size, 64), float(size)) for size in (1, 4)),
        about={key: value for key, value in {**says, **about}.items() if value is not None},
    )


def traffic(num: int = 80, seed: int = 0, longest: int = 200) -> Trace:
    """Return requests of up to 250 tokens that come in 20 seconds."""
    random = np.random.default_rng(seed)
    prompts = np.minimum(longest, random.lognormal(3.5, 0.8, num).astype(np.int64) + 1)
    outputs = random.integers(1, 50, num)
    return Trace(prompts, outputs, np.sort(random.uniform(0, 20, num)))
