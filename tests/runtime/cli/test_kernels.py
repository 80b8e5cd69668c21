"""``noria kernels``: bytes and times of simulated kernels."""

from __future__ import annotations

import builtins
from collections.abc import Callable

import pytest
from click.testing import Result

Run = Callable[..., Result]


def trace(run: Run, *options: object) -> Result:
    return run("kernels", "trace", "--batch", 2, "--context", 256, "--block-size", 2, *options)


def rows(result: Result, first: str) -> list[list[str]]:
    lines = [line.split() for line in result.stdout.splitlines()]
    return [words for words in lines if words and words[0] == first]


def test_trace_prints_bytes_and_times_of_both_pathways(run: Run) -> None:
    result = trace(run, "--fill", 0.25)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(
        "decode attention on trn2: batch 2, 64 of 256 tokens per request, "
        "32 of 128 blocks of 2, 4 heads over 1 of 128\n"
    )
    # 2 requests, 64 tokens, keys and values of 128 bfloat16
    needed, moved, skipped = "64.0 KiB", "64.0 KiB", "192.0 KiB"
    copied, transposed = (rows(result, name)[0] for name in ("dma_copy", "dma_transpose"))
    assert " ".join(copied[1:8]) == f"{needed} {moved} {skipped} 1.00"
    assert " ".join(transposed[1:8]) == f"{needed} 256.0 KiB 0 B 4.00"
    engines = [words[1] for words in rows(result, "dma_copy")[1:]]
    assert engines == ["dma", "tensor", "vector", "scalar", "gpsimd"]
    assert " us, the work of " in result.stdout


def test_a_pathway_that_the_step_does_not_allow_is_named_with_the_reason(run: Run) -> None:
    result = trace(run, "--head-dim", 64)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("dma_transpose: not for this step: ")
    assert rows(result, "dma_transpose") == []


def test_a_target_without_indirect_dma_is_one_line(run: Run) -> None:
    result = trace(run, "--target", "trn1")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: dma_copy: not for this step on trn1: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--heads", 3, "--kv-heads", 2), "--heads 3 is no multiple of --kv-heads 2"),
        (("--fill", 1.5), "'--fill': 1.5 is not in the range 0<=x<=1"),
        (("--target", "trn9"), "'trn9' is not one of 'trn1', 'inf2', 'trn2', 'trn3'"),
    ],
)
def test_options_that_do_not_fit_are_named(
    run: Run, options: tuple[object, ...], message: str
) -> None:
    result = trace(run, *options)

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_simulator(name: str, *args: object, **kwargs: object) -> object:
        if name.endswith("decode_trace"):
            raise ModuleNotFoundError("No module named 'ml_dtypes'", name="ml_dtypes")
        return real_import(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_simulator)

    result = trace(run)

    assert result.exit_code == 2
    assert result.stderr == "Error: the simulator needs ml_dtypes: install noria[nki]\n"
