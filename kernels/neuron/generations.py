"""Which generations of devices the vendor's native torch package supports, as of SDK 2.33.1."""

from __future__ import annotations

NATIVE_GENERATIONS = ("trn2", "trn3")
OLD_GENERATIONS = ("trn1", "inf2")


def old_generation_text(device: str) -> str:
    """Return why nothing runs on an old generation, as the rest of a sentence."""
    return (
        "native torch-neuronx supports trn2 and trn3 only, and the XLA-based package that runs "
        f"{device} is in maintenance"
    )
