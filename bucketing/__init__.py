"""Bucketing: which fixed shapes exist, which one a step runs in, and what its padding costs.

Integers only: no tensors, no requests, no files.
"""

from .buckets import (
    Bucket,
    BucketPlan,
    DecodeBucket,
    PrefillBucket,
    ScoreBucket,
    bucket_work,
    cost_order,
)
from .ladder import (
    MAX_NUM_GRAPHS,
    SEQS,
    SPACING,
    TOKENS,
    Axis,
    Ladder,
    NoBucketError,
    Spacing,
    exponential,
    linear,
    powers_of_two,
)
from .padding import (
    PaddingCounter,
    StepPadding,
    aligned_starts,
    num_pad_tokens,
    packed_len,
    round_up,
    waste_share,
)
from .plan import BucketLists, GraphRow, PlanLimits, PlanTable, describe, plan_buckets
from .plan_file import PlanFile, PlanFileError, PlannedGraph
from .policy import (
    CoverPolicy,
    FillPolicy,
    StepPolicy,
    decode_context_need,
    num_spare_blocks,
)

__all__ = [
    "MAX_NUM_GRAPHS",
    "SEQS",
    "SPACING",
    "TOKENS",
    "Axis",
    "Bucket",
    "BucketLists",
    "BucketPlan",
    "CoverPolicy",
    "DecodeBucket",
    "FillPolicy",
    "GraphRow",
    "Ladder",
    "NoBucketError",
    "PaddingCounter",
    "PlanFile",
    "PlanFileError",
    "PlanLimits",
    "PlanTable",
    "PlannedGraph",
    "PrefillBucket",
    "ScoreBucket",
    "Spacing",
    "StepPadding",
    "StepPolicy",
    "aligned_starts",
    "bucket_work",
    "cost_order",
    "decode_context_need",
    "describe",
    "exponential",
    "linear",
    "num_pad_tokens",
    "num_spare_blocks",
    "packed_len",
    "plan_buckets",
    "powers_of_two",
    "round_up",
    "waste_share",
]
