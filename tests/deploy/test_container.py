"""The container file: its instructions, image, hosts, sources and shell. Nothing is built."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
TEXT = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
INSTRUCTIONS = {"FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "CMD"}
HOSTS = {
    "apt.repos.neuron.amazonaws.com",
    "pip.repos.neuron.amazonaws.com",
    "public.ecr.aws",
}
HOST = re.compile(r"(?<![\w.$/-])(?:[a-z0-9-]+\.)+(?:com|org|io|net|dev|aws|ai|cn|eu|co)\b")
SHELLS = sorted(DEPLOY.glob("*.sh"))


def instructions(text: str) -> list[tuple[str, str]]:
    """Return instructions and what they are given: comments out, continued lines joined."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(kept).replace("\\\n", " ")
    words = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, " ".join(rest)) for name, *rest in words]


def problems(text: str) -> list[str]:
    """Return what is wrong with a container file."""
    found = instructions(text)
    wrong = [f"unknown instruction {name}" for name, _ in found if name not in INSTRUCTIONS]
    if [name for name, _ in found][:1] != ["FROM"]:
        wrong.append("does not begin with FROM")
    for name, given in found:
        wrong += [f"{name} is given nothing"] if not given else []
        wrong += from_problems(given) if name == "FROM" else []
        wrong += copy_problems(given) if name == "COPY" else []
        wrong += shell_problems(given) if name == "RUN" else []
    text = re.sub(r"deb \[[^\]]*\]", "", text)
    hosts = set(HOST.findall(text)) | set(re.findall(r"https?://([^/\s\"']+)", text))
    return wrong + [f"another host: {host}" for host in sorted(hosts - HOSTS)]


def from_problems(image: str) -> list[str]:
    _, _, tag = image.rpartition("/")[2].partition(":")
    pinned = re.fullmatch(r"\d[\w.-]*", tag)
    return [] if pinned else [f"{image} is not pinned by a tag"]


def copy_problems(given: str) -> list[str]:
    *names, _ = given.split()
    return [f"{name} is not there" for name in names if not (ROOT / name).exists()]


def shell_problems(script: str) -> list[str]:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    return [done.stderr] if done.returncode else []


def test_the_container_file_has_no_problems() -> None:
    assert problems(TEXT) == []
    assert len(instructions(TEXT)) > 10


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("ubuntu:26.04", "ubuntu", "not pinned"),
        ("ubuntu:26.04", "ubuntu:latest", "not pinned"),
        ("FROM public.ecr.aws", "FROM docker.io", "another host: docker.io"),
        ('"$TORCH_INDEX" \\', "https://pypi.org/simple \\", "another host: pypi.org"),
        ("https://pip.repos.", "https://files.", "another host: files.neuron.amazonaws.com"),
        ("WORKDIR /data", "WORKDIRS /data", "unknown instruction WORKDIRS"),
        ("WORKDIR /data", "WORKDIR", "WORKDIR is given nothing"),
        ("COPY kernels ", "COPY kernel ", "kernel is not there"),
        ('test -n "$TORCH_INDEX" \\', 'test -n "$TORCH_INDEX \\', "unexpected EOF"),
        ("    && apt-get install", "    && && apt-get install", "syntax error"),
    ],
)
def test_mistakes_are_found(old: str, new: str, problem: str) -> None:
    assert old in TEXT

    assert [one for one in problems(TEXT.replace(old, new, 1)) if problem in one] != []


def test_all_of_the_package_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"]}
    copied = {
        part for name, given in instructions(TEXT) if name == "COPY" for part in given.split()
    }

    assert folders | {"pyproject.toml", "README.md", "LICENSE"} <= copied
    assert {f"examples/deploy/{path.name}" for path in [*SHELLS, DEPLOY / "shards.py"]} <= copied


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (extras,) = re.findall(r'"/noria/source\[([\w,]+)\]"', TEXT)

    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


@pytest.mark.parametrize("path", SHELLS, ids=lambda path: path.name)
def test_scripts_are_shell(path: Path) -> None:
    assert shell_problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*")), ids=lambda path: path.name)
def test_files_say_first_that_they_have_not_run(path: Path) -> None:
    if path.is_dir():
        return
    first = " ".join(path.read_text(encoding="utf-8").splitlines()[:4])

    assert re.search(r"Not (?:built|run)|not been run", first), "say so in the first lines"
