"""Bucketing: which fixed shapes exist, which one a step runs in, and what its padding costs.

Integers only: no tensors, no requests, no files.
"""

from .buckets import Bucket, BucketPlan, DecodeBucket, PrefillBucket, bucket_work, cost_order
from .ladder import (
    CONTEXTS,
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

__all__ = [
    "CONTEXTS",
    "SEQS",
    "SPACING",
    "TOKENS",
    "Axis",
    "Bucket",
    "BucketPlan",
    "DecodeBucket",
    "Ladder",
    "NoBucketError",
    "PrefillBucket",
    "Spacing",
    "bucket_work",
    "cost_order",
    "exponential",
    "linear",
    "powers_of_two",
]
