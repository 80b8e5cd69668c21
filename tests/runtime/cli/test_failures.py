"""A user's mistake is one line on stderr and exit status 2, and never a traceback."""

from __future__ import annotations

import errno
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from noria.runtime import kv_cache
from noria.runtime.cli import check as check_module
from noria.runtime.cli.failures import UserMistake, plain_warnings, user_file

Run = Callable[..., Result]
MISTAKES = [
    ({"num_seq_buckets": [4]}, "num_seq_buckets: unknown setting; did you mean num_seqs_buckets?"),
    ({"num_seqs_buckets": [2, 8]}, "num_seqs_buckets"),
    ({"num_batched_tokens_buckets": "32,64"}, "num_batched_tokens_buckets"),
    ({"max_model_len": 128}, "max_position_embeddings"),
    ({"sampling": {"temperature": -1}}, "sampling.temperature"),
    ({"model": None}, "model: is missing"),
]

MODEL_KEYS: list[tuple[dict[str, object], str]] = [
    ({"architectures": [["x"]]}, "model: architectures [['x']] is not supported"),
    ({"rope_theta": 10**400}, "model: rope_theta must be a number above 0"),
    ({"rope_scaling": {1: 2, "factor": 3, "type": "default"}}, "rope_scaling: 1 2 has no meaning"),
    ({"hidden_size": 2**40}, "model: hidden_size must be at most 2**31 - 1"),
]
UNFIT_HERE: list[tuple[dict[str, object], str]] = [
    ({"model": "~no-such-user/x"}, "model '~no-such-user/x': no home folder"),
    ({"model": "x" * 300}, "File name too long"),
    ({"tokenizer": "~no-such-user/x"}, "tokenizer '~no-such-user/x': no home folder"),
    ({"compiled": "~no-such-user/x"}, "compiled '~no-such-user/x': no home folder"),
    ({"num_blocks": 60_000_000}, "num_blocks: 60000000 (as configured) makes a KV cache of 61,44"),
    ({"kv_cache_memory": "64GiB", "max_num_seqs": 4000, "num_seqs_buckets": [4000]}, "num_blocks"),
]


def assert_is_one_line(result: Result, text: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr


@pytest.mark.parametrize(("changes", "text"), MISTAKES, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("command", ["check", "plan", "compile", "generate"])
def test_b01_a_wrong_setting_stops_every_command(
    run: Run, make_config: Callable[..., Path], command: str, changes: dict[str, object], text: str
) -> None:
    path = make_config(**changes)
    prompts = ["--prompts", path] if command == "generate" else []

    result = run(command, path, *prompts)

    assert_is_one_line(result, text)
    assert str(path) in result.stderr


@pytest.mark.parametrize(("keys", "text"), MODEL_KEYS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("command", ["check", "plan", "compile"])
def test_a_wrong_key_of_an_inline_model_stops_every_command(
    run: Run,
    make_config: Callable[..., Path],
    tiny_settings: dict[str, Any],
    command: str,
    keys: dict[str, object],
    text: str,
) -> None:
    path = make_config(model=tiny_settings["model"] | keys)

    assert_is_one_line(run(command, path), text)


@pytest.mark.parametrize(("changes", "text"), UNFIT_HERE, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_this_machine_is_one_line(
    run: Run,
    make_config: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    text: str,
) -> None:
    monkeypatch.setattr(kv_cache, "free_memory_bytes", lambda: 2**20)
    path = make_config(**changes)

    assert run("check", path).exit_code == 0
    assert_is_one_line(run("compile", path), text)


def test_a_head_dim_that_a_backend_cannot_run_names_the_multiple_and_the_other_backend(
    run: Run, make_config: Callable[..., Path], tiny_settings: dict[str, Any]
) -> None:
    model = tiny_settings["model"] | {"head_dim": 12}

    refused = run("compile", make_config(backend="cpu", model=model))

    assert_is_one_line(refused, "model: head_dim is 12; backend cpu runs multiples of 8 only")
    assert run("compile", make_config(backend="reference", model=model)).exit_code == 0


@pytest.mark.parametrize("command", ["check", "plan", "compile", "generate"])
def test_a_missing_configuration_is_named(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "nowhere.yaml"
    prompts = ["--prompts", path] if command == "generate" else []

    assert_is_one_line(run(command, path, *prompts), str(path))


def test_a_folder_is_no_prompt_file(run: Run, config: Path, tmp_path: Path) -> None:
    assert_is_one_line(run("generate", config, "--prompts", tmp_path), f"{tmp_path}: Is a dir")


def test_a_prompt_file_without_prompts_is_refused(run: Run, config: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n  \n")

    assert_is_one_line(run("generate", config, "--prompts", prompts), "holds no prompt")


def test_one_json_document_is_no_prompt_file(run: Run, config: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text('["a"]')

    assert_is_one_line(run("generate", config, "--prompts", prompts), "one per line")


def test_an_output_that_cannot_be_written_is_named(run: Run, config: Path, tmp_path: Path) -> None:
    prompts, output = tmp_path / "prompts.txt", tmp_path / "no" / "out.jsonl"
    prompts.write_text("hi\n")

    assert_is_one_line(run("generate", config, "--prompts", prompts, "-o", output), str(output))


def test_prompts_are_never_overwritten(run: Run, config: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hi\n")

    result = run("generate", config, "--prompts", prompts, "-o", tmp_path / "." / "prompts.txt")

    assert_is_one_line(result, "is the file of the prompts")
    assert prompts.read_text() == "hi\n"


@pytest.mark.parametrize(
    ("option", "value"), [("--max-tokens", 0), ("--temperature", -1), ("--top-p", 2)]
)
def test_a_wrong_sampling_option_is_refused(
    run: Run, config: Path, tmp_path: Path, option: str, value: int
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hi\n")

    result = run("generate", config, "--prompts", prompts, option, value)

    assert_is_one_line(result, option.strip("-").replace("-", "_"))


def test_a_backend_that_cannot_run_is_checked_but_not_compiled(
    run: Run, make_config: Callable[..., Path], tiny_settings: dict[str, Any]
) -> None:
    path = make_config(
        backend="neuron",
        max_model_len=128,
        max_num_batched_tokens=128,
        num_batched_tokens_buckets=[128],
        model={**tiny_settings["model"], "max_position_embeddings": 128},
    )

    assert run("check", path).exit_code == 0
    assert_is_one_line(run("compile", path), "neuron")


def test_an_unknown_model_name_is_refused(run: Run) -> None:
    assert_is_one_line(run("fetch", "smollm3"), "smollm2-135m")


@pytest.mark.parametrize(
    "arguments", [["chekc"], ["check"], ["check", "--yaml"], ["generate", "x"]]
)
def test_wrong_arguments_have_the_same_status(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_a_process_ends_with_that_status(
    start_noria: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    done = start_noria("check", tmp_path / "nowhere.yaml")
    output, errors = done.communicate(timeout=600)

    assert (done.returncode, output, errors.count("\n")) == (2, "", 1)


def test_an_error_of_ours_keeps_its_traceback(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise RuntimeError(path)

    monkeypatch.setattr(check_module, "load_config", fail)

    result = run("check", config)

    assert isinstance(result.exception, RuntimeError)
    assert result.exit_code == 1


def test_an_interrupt_has_its_own_status(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_module, "load_config", interrupt)

    result = run("check", config)

    assert (result.exit_code, result.stderr) == (130, "Interrupted\n")


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_warning_is_one_plain_line_and_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_warnings():
        for text in ("slow\nmachine", "slow\nmachine", "other"):
            warnings.warn(text, UserWarning, stacklevel=1)

    assert capsys.readouterr().err == "Warning: slow machine\nWarning: other\n"


def test_a_full_disk_is_the_users_and_a_closed_pipe_is_nobodys() -> None:
    with pytest.raises(UserMistake, match="out: No space left"), user_file(Path("out")):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(BrokenPipeError), user_file(Path("out")):
        raise BrokenPipeError
