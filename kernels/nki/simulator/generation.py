"""What differs between the generations of the NeuronCore, by target name."""

from __future__ import annotations

from dataclasses import dataclass

from .enums import nc_version

NUM_PARTITIONS = 128
PSUM_BANKS = 8
PSUM_BANK_BYTES = 2048  # per partition: 512 fp32


@dataclass(frozen=True, slots=True)
class Generation:
    """Limits of one generation.

    ``sbuf_bytes`` is per partition. ``moving_bytes`` is what one matmul may write per partition:
    one PSUM bank before trn3, all of them from trn3 on.
    """

    name: str
    version: nc_version
    sbuf_bytes: int
    moving_bytes: int

    def at_least(self, version: nc_version) -> bool:
        """Return whether this generation has what ``version`` introduced."""
        return self.version.value >= version.value


TRN1 = Generation("trn1", nc_version.gen2, 192 * 1024, PSUM_BANK_BYTES)
TRN2 = Generation("trn2", nc_version.gen3, 224 * 1024, PSUM_BANK_BYTES)
TRN3 = Generation("trn3", nc_version.gen4, 256 * 1024, PSUM_BANKS * PSUM_BANK_BYTES)
TARGETS = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
}


def generation_of(target: str) -> Generation:
    """Return the generation that a target name stands for.

    Raises:
        ValueError: the name is none of the documented ones.
    """
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is unknown; choose one of {', '.join(TARGETS)}")
    return TARGETS[target]
