"""Shards of a prompt file: every prompt once, with its number, whatever runs again or fails."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "deploy" / "shards.py"
INDEXES = ("JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE")
PROMPTS = "one\n\ntwo\r\nthree\n   \nfour\nfive\n"

FAKE = """
import json, pathlib, sys
from noria.runtime.cli.prompt_file import read_prompts
from noria.runtime.sampling_params import SamplingParams
log, status, lost = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
prompts, output = sys.argv[sys.argv.index("--prompts") + 1], sys.argv[sys.argv.index("-o") + 1]
lines = read_prompts(pathlib.Path(prompts), SamplingParams(), chat=False)
with open(log, "a") as file:
    print(*(line.prompt for line in lines), file=file)
with open(output, "w") as file:
    for line in reversed(lines[lost:]):
        error = f"line {line.number}: no" if line.prompt == "four" else None
        record = {"index": line.index, "prompt": line.prompt, "text": "\\u00e9\\u2028"}
        print(json.dumps({**record, "error": error}, ensure_ascii=False), file=file)
sys.exit(status)
"""


def load():
    spec = importlib.util.spec_from_file_location("deployed_shards", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SHARDS = load()


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INDEXES:
        monkeypatch.delenv(name, raising=False)


class Job:
    """A prompt file, a folder of results, and a command that notes what it was given."""

    def __init__(self, folder: Path, text: str = PROMPTS) -> None:
        self.folder, self.results, self.log = folder, folder / "results", folder / "log"
        self.prompts = folder / "prompts.txt"
        self.prompts.write_text(text, encoding="utf-8", newline="")
        self.fake = folder / "fake.py"
        self.fake.write_text(FAKE, encoding="utf-8")
        self.status, self.lost = 0, 0

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.fake), str(self.log), str(self.status), str(self.lost)]

    def run(self, *options: str, command: Sequence[str] = (), env=None) -> Result:
        given = ["run", str(self.prompts), str(self.results), *options, "--"]
        return CliRunner().invoke(SHARDS.main, [*given, *(command or self.command)], env=env)

    def run_all(self, count: int) -> None:
        for index in range(count):
            done = self.run("--index", str(index), "--count", str(count))
            assert done.exit_code == 0, done.output

    def merge(self) -> Result:
        return CliRunner().invoke(SHARDS.main, ["merge", str(self.results), str(self.merged)])

    @property
    def merged(self) -> Path:
        return self.folder / "all.jsonl"

    @property
    def records(self) -> list[dict[str, object]]:
        with self.merged.open(encoding="utf-8", newline="\n") as file:
            return [json.loads(line) for line in file]

    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@given(st.integers(0, 300), st.integers(1, 400))
def test_every_prompt_is_in_one_shard_and_shards_are_even(num_prompts: int, count: int) -> None:
    run = SHARDS.Run("", num_prompts, count, [])

    ranges = [run.range_of(index) for index in range(count)]

    assert [prompt for one in ranges for prompt in one] == list(range(num_prompts))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("count", [1, 3, 8])
def test_merged_results_are_in_order_with_the_numbers_of_the_lines(job: Job, count: int) -> None:
    job.run_all(count)

    assert job.merge().exit_code == 1, "one of them is an error"
    assert [record["index"] for record in job.records] == list(range(5))
    assert [record["prompt"] for record in job.records] == ["one", "two", "three", "four", "five"]
    assert [record["error"] for record in job.records] == [None, None, None, "line 6: no", None]
    assert {record["text"] for record in job.records} == {"\u00e9\u2028"}
    assert sorted(os.listdir(job.results)) == sorted(
        ["run.json", *(f"{index:05}-of-{count:05}.jsonl" for index in range(count))]
    )


def test_a_finished_shard_is_not_run_again(job: Job) -> None:
    job.run_all(2)
    job.run_all(2)

    assert job.runs() == ["one two", "three four five"]


@pytest.mark.parametrize(("status", "lost", "expected"), [(2, 0, 2), (130, 1, 130), (0, 1, 2)])
def test_an_unfinished_shard_fails_and_is_run_again(
    job: Job, monkeypatch: pytest.MonkeyPatch, status: int, lost: int, expected: int
) -> None:
    """Whether the command failed or lost a result; the others of the folder stay."""
    assert job.run("--index", "0", "--count", "2").exit_code == 0
    # what fails is what the command's file does, not the command: that is part of the run
    job.fake.write_text(
        FAKE.replace("int(sys.argv[2])", str(status)).replace("int(sys.argv[3])", str(lost)),
        encoding="utf-8",
    )

    failed = job.run("--index", "1", "--count", "2")
    assert failed.exit_code == expected
    assert job.merge().exit_code == 2
    assert not job.merged.exists()

    job.fake.write_text(FAKE, encoding="utf-8")
    assert job.run("--index", "1", "--count", "2").exit_code == 0
    assert job.merge().exit_code == 1
    assert job.runs() == ["one two", "three four five", "three four five"]


def test_status_one_is_that_of_a_finished_shard_with_errors(job: Job) -> None:
    job.status = 1

    job.run_all(2)

    assert job.merge().exit_code == 1
    assert len(job.records) == 5


def test_a_killed_command_has_the_status_of_a_shell(job: Job) -> None:
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]

    assert job.run("--index", "0", "--count", "1", command=command).exit_code == 137


def test_merging_names_what_is_not_finished(job: Job) -> None:
    job.run("--index", "1", "--count", "3")

    refusal = job.merge()

    assert refusal.exit_code == 2
    assert refusal.output.endswith("results: 2 of 3 shards are not finished: 0, 2\n")


@pytest.mark.parametrize("what", ["prompts_sha256", "num_shards", "command"])
def test_results_of_another_run_are_not_mixed_in(job: Job, what: str) -> None:
    job.run("--index", "0", "--count", "2")
    if what == "prompts_sha256":
        job.prompts.write_text(PROMPTS.replace("two", "six"), encoding="utf-8", newline="")
    job.status = int(what == "command")

    refusal = job.run("--index", "1", "--count", "3" if what == "num_shards" else "2")

    assert refusal.exit_code == 2
    assert f"run.json: of a run with other {what}; name another folder" in refusal.output
    assert job.runs() == ["one two"]


def test_the_folder_is_looked_at_again_before_a_shard_counts_as_finished(job: Job) -> None:
    """Two different runs that begin at once: the one whose note is replaced does not finish."""
    other = json.dumps({"prompts_sha256": "", "num_prompts": 1, "num_shards": 1, "command": []})
    note = f"open({str(job.results / 'run.json')!r}, 'w').write({other!r})\n"
    job.fake.write_text(note + FAKE, encoding="utf-8")

    assert job.run("--index", "0", "--count", "2").exit_code == 2
    assert os.listdir(job.results) == ["run.json"]


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "1", "AWS_BATCH_JOB_ARRAY_SIZE": "2"}, []),
        ({"JOB_COMPLETION_INDEX": "1"}, ["--count", "2"]),
    ],
    ids=["batch", "kubernetes"],
)
def test_the_job_says_which_shard(job: Job, env: dict[str, str], options: list[str]) -> None:
    assert job.run(*options, env=env).exit_code == 0
    assert job.runs() == ["three four five"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--index"),
        (["--index", "0"], "--count"),
        (["--index", "2", "--count", "2"], "the last one is 1"),
        (["--index", "x", "--count", "2"], "--index"),
    ],
)
def test_a_job_that_says_no_shard_is_refused(job: Job, options: list[str], named: str) -> None:
    refusal = job.run(*options)

    assert refusal.exit_code == 2
    assert named in refusal.output
    assert job.runs() == []


def test_a_prompt_file_that_is_not_there_is_one_line(job: Job) -> None:
    job.prompts.unlink()

    refusal = job.run("--index", "0", "--count", "1")

    assert refusal.exit_code == 2
    assert refusal.output.startswith("Error: ")
    assert refusal.output.count("\n") == 1


def test_shards_of_the_tiny_model_give_the_results_of_one_run(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a" * n, "max_tokens": n} for n in range(1, 6)]
    text = "\n\n".join(json.dumps(line) for line in [*lines, {"prompt": "x", "top_k": "no"}])
    job.prompts.write_text(text, encoding="utf-8")
    config = ROOT / "configs" / "tiny-cpu.yaml"
    command = [sys.executable, "-m", "noria.runtime", "generate", str(config)]
    once = tmp_path / "once.jsonl"

    for index in range(2):
        done = job.run("--index", str(index), "--count", "2", command=command)
        assert done.exit_code == 0, done.output
    assert job.merge().exit_code == 1
    alone = subprocess.run([*command, "--prompts", job.prompts, "-o", once], capture_output=True)

    assert alone.returncode == 1, alone.stderr
    expected = [json.loads(line) for line in once.read_text(encoding="utf-8").splitlines()]
    assert job.records == sorted(expected, key=lambda record: record["index"])
    assert str(job.records[5]["error"]).startswith("line 11: ")


class Instance:
    """Where ``cores.sh`` runs: a folder with the ``python`` that it finds first."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        # a link would not find the packages of an environment
        python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        (folder / "bin" / "python").write_text(python)
        (folder / "bin" / "python").chmod(0o755)
        self.path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(self, job: Job, cores: str, count: int, **variables: str) -> int:
        words = ["bash", SCRIPT.with_name("cores.sh"), cores, job.prompts, job.results]
        counted = ["--count", str(count), "--", *job.command]
        environ = {**os.environ, "PATH": self.path, **variables}
        return subprocess.run([*words, *counted], env=environ).returncode


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


@pytest.mark.parametrize("name", INDEXES[:2])
def test_every_core_of_an_instance_runs_a_shard(job: Job, instance: Instance, name: str) -> None:
    note = (
        "import os\nprint(os.environ['NEURON_RT_VISIBLE_CORES'], file=open(__file__ + '.c', 'a'))"
    )
    job.fake.write_text(note + FAKE, encoding="utf-8")

    for index in ("0", "1"):
        assert instance.run(job, "0 2", 4, **{name: index}) == 0

    assert sorted(Path(f"{job.fake}.c").read_text().split()) == ["0", "0", "2", "2"]
    assert sorted(job.runs()) == ["four five", "one", "three", "two"]


def test_an_instance_fails_if_one_of_its_shards_does(job: Job, instance: Instance) -> None:
    fails = FAKE.replace("int(sys.argv[2])", "3 * ('one' in open(sys.argv[-3]).read())")
    job.fake.write_text(fails, encoding="utf-8")

    assert instance.run(job, "0 1", 2, JOB_COMPLETION_INDEX="0") == 3
    assert sorted(os.listdir(job.results)) == ["00001-of-00002.jsonl", "run.json"]


def test_cores_are_for_array_jobs(job: Job, instance: Instance) -> None:
    assert instance.run(job, "0 1", 2) != 0
    assert not job.results.exists()
