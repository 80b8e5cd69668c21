from __future__ import annotations

import numpy as np

from noria.runtime.random_draws import sample_seed, uniforms


def test_a_draw_depends_on_its_seed_and_position_alone():
    seeds, positions = [1, 2, 3, 2**64 - 1], [5, 6, 7, 8]

    together = uniforms(seeds, positions)

    pairs = zip(seeds, positions, strict=True)
    alone = [uniforms([seed], [position])[0] for seed, position in pairs]
    assert together.tolist() == alone


def test_draws_are_uniform_over_positions_and_over_seeds():
    many = np.arange(200_000)

    for draws in (uniforms(np.zeros_like(many), many), uniforms(many, np.zeros_like(many))):
        counts, _ = np.histogram(draws, bins=100, range=(0, 1))
        chi_square = ((counts - 2000) ** 2 / 2000).sum()
        assert draws.min() >= 0
        assert draws.max() < 1
        # 99 degrees of freedom: 62 to 149 is the middle 99.8 %.
        assert 62 < chi_square < 149


def test_neighbouring_positions_and_seeds_are_not_correlated():
    many = np.arange(100_000)

    by_position = uniforms(np.full_like(many, 7), many)
    by_seed = uniforms(many, np.full_like(many, 7))

    for draws in (by_position, by_seed):
        assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.015


def test_samples_of_a_request_have_seeds_of_their_own():
    seeds = [sample_seed(seed, sample) for seed in (0, 1, 2**64 - 1) for sample in range(200)]

    assert [sample_seed(seed, 0) for seed in (0, 42, 2**64 - 1)] == [0, 42, 2**64 - 1]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_draws_of_samples_are_uniform_and_not_correlated():
    seeds = [sample_seed(7, sample) for sample in range(50_000)]
    draws = uniforms(np.array(seeds, dtype=np.uint64), np.full(50_000, 7))

    counts, _ = np.histogram(draws, bins=100, range=(0, 1))
    # 99 degrees of freedom: 62 to 149 is the middle 99.8 %.
    assert 62 < ((counts - 500) ** 2 / 500).sum() < 149
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.015
