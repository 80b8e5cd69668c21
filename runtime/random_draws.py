"""Randomness of sampling: a pure function of seed and position, the same on every target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return one float32 in (0, 1) per (seed, position) pair: 23 bits, each step at its middle.

    Zero never comes: it would draw the first token, however improbable.

    Two rounds of the SplitMix64 finalizer (Steele, Lea and Flood, 2014): the first spreads the
    seed, the second the position in that seed's stream. A draw depends on nothing else, so a
    request gets the same tokens in any batch, bucket or order.
    """
    with np.errstate(over="ignore"):
        stream = _mix(np.asarray(seeds, dtype=np.uint64) + GOLDEN_GAMMA)
        counter = np.asarray(positions, dtype=np.uint64) + np.uint64(1)
        bits = _mix(stream + counter * GOLDEN_GAMMA)
    return (((bits >> np.uint64(41)).astype(np.float64) + 0.5) * 2.0**-23).astype(np.float32)


def sample_seed(seed: int, sample: int) -> int:
    """Return the seed of one of several samples of a request: the request's own for sample 0.

    Others take output ``sample`` of the SplitMix64 generator whose state is the complement of
    the seed: no two samples of a request share one, as the finalizer is a bijection.
    """
    if sample == 0:
        return seed
    with np.errstate(over="ignore"):
        state = ~np.asarray([seed], dtype=np.uint64) + np.uint64(sample) * GOLDEN_GAMMA
        return int(_mix(state)[0])


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
