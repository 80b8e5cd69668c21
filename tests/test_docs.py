"""The documents are true: tables, commands, examples, links and the files that they name.

``python tests/test_docs.py`` writes the table of settings into README.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from machines import fresh_trn2

from noria.bucketing import PlanFile
from noria.kernels.neuron.packages import Package, refusal
from noria.runtime.cli import main
from noria.runtime.cli.prompt_file import read_prompts
from noria.runtime.config import config_rows, parse_config
from noria.runtime.conversation import Conversation
from noria.runtime.errors import ConfigError
from noria.runtime.sampler_features import check_features
from noria.runtime.yaml_reader import parse_yaml

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "configuration.md"
DOCTOR = ROOT / "docs" / "doctor.md"
PLANNING = ROOT / "docs" / "planning.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TABLE = re.compile(r"(<!-- settings:.*?-->\n)(.*?)(<!-- end of settings -->)", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
FILE = re.compile(
    r"(?<![\w./-])((?:bucketing|configs|docs|examples|kernels|runtime|tests)/[\w./*-]*\w"
    r"|[A-Z]+\.md|Makefile|MANIFEST\.in|constraints\.txt|pyproject\.toml)"
)
CODE = re.compile(r"`([^`\n]+)`")
LABEL = re.compile(r"(?:prefill_t|decode_s|score_t)\d+_c\d+")
SETTING = re.compile(r"(?:^ {4}|`)([a-z0-9]+_[a-z0-9_]+): ", re.MULTILINE)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
COMMAND = re.compile(r"(?:^|[`$] ?|/)noria ((?:[a-z]+ ?)+)", re.MULTILINE)
READERS_HOSTS = {"keepachangelog.com", "pytorch.org", "semver.org"}
FORBIDDEN = re.compile(
    r"(?<![\w~.])/(?:home|root|work|opt|mnt|srv|tmp|Users)/\w+"
    r"|\b(?:localhost|TB[DA]|coming soon|placeholder|lorem)\b"
    r"|\b(?:blazing|seamless|effortless|revolutionary|cutting-edge|state-of-the-art)\w*",
    re.IGNORECASE,
)


def settings_table() -> str:
    """Return the table of all settings, as README.md must have it."""
    lines = ["| setting | value | default | meaning |", "| --- | --- | --- | --- |"]
    for row in config_rows():
        cells = (f"`{row.key}`", row.kind, row.default, row.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write_settings_table() -> None:
    """Put the table between its marks in README.md."""
    text = TABLE.sub(lambda match: match[1] + settings_table() + match[3], read(README))
    README.write_text(text, encoding="utf-8")


def test_the_table_of_settings_is_up_to_date() -> None:
    match = TABLE.search(read(README))

    assert match is not None
    assert match[2] == settings_table(), "python tests/test_docs.py writes it"


def test_the_python_example_runs_on_the_tiny_model(tmp_path: Path) -> None:
    (example,) = code_blocks(README, "python")
    tiny = ROOT / "configs" / "tiny-cpu.yaml"
    code, num_replaced = re.subn(r"configs/[\w-]+\.yaml", tiny.as_posix(), example)

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )

    assert num_replaced == 1
    assert done.returncode == 0, done.stderr
    assert "True\nStepPadding(num_steps=" in done.stdout


def test_the_table_of_commands_is_complete() -> None:
    cells = re.findall(r"^\| `noria ([a-z ]+\b)", read(README), re.MULTILINE)

    assert sorted(cell.strip() for cell in cells) == sorted(command_names(main))


def test_the_plan_of_the_demonstration_is_what_is_printed() -> None:
    assert plan_lines(ROOT / "configs" / "smollm2-135m-cpu.yaml") <= lines_of(README)


def test_the_plan_of_the_guide_is_what_is_printed(tmp_path: Path) -> None:
    example = re.search(r"(?:^    \w+: .*\n){3,}", read(GUIDE), re.MULTILINE)
    assert example is not None
    file = tmp_path / "example.yaml"
    file.write_text(textwrap.dedent(example[0]), encoding="utf-8")

    assert plan_lines(file) <= lines_of(GUIDE)


def test_the_page_about_planning_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, trace = ROOT / "configs" / "llama3-8b-trn2.yaml", ROOT / "examples/traces/chat.csv.gz"
    options = ["--workers", "4", "--compile-budget", "5m", "--search", "10m", "-o", "plan.yaml"]
    questions = ["--max-graphs", "4", "--max-model-len", "4096", "--drop", "decode_s16_c4096"]
    questions += ["--add", "640", "--add", "12x4096"]

    made = CliRunner().invoke(main, ["plan", str(config), "--trace", str(trace), *options])
    asked = CliRunner().invoke(main, ["whatif", "plan.yaml", *questions])

    printed = {line.strip() for line in (made.stdout + asked.stdout).splitlines()}
    assert printed <= lines_of(PLANNING)
    assert len(asked.stdout.splitlines()) == 7


def test_the_report_that_is_shown_is_what_is_printed() -> None:
    config, trace = ROOT / "configs" / "llama3-8b-trn2.yaml", ROOT / "examples/traces/chat.csv.gz"
    options = ["--workers", "4", "--compile-budget", "5m", "--search", "10m", "--report"]

    shown = CliRunner().invoke(main, ["plan", str(config), "--trace", str(trace), *options]).stdout

    head = [*shown.partition("WARNINGS")[0].splitlines()]
    head += shown.partition("COMPARISON\n")[2].splitlines()[:6]
    payers = shown.partition("WHO PAYS\n")[2].splitlines()[:2]
    assert {line.strip() for line in head} <= lines_of(README)
    assert {line.strip() for line in payers} <= lines_of(PLANNING)


def test_the_report_of_the_doctor_is_what_is_printed(tmp_path: Path) -> None:
    machine = fresh_trn2(tmp_path).packages({"ml_dtypes": "0.5.0"})
    machine.packages({"torch-neuronx": "1.0"}, empty=True)
    config = ROOT / "configs" / "llama3-8b-trn2.yaml"

    shown = CliRunner().invoke(main, ["doctor", str(config)], obj=machine.sources()).stdout

    printed = [line.strip() for line in shown.partition("package ")[2].splitlines()[1:]]
    (example,) = re.findall(r"^    package .*\n((?:    .*\n|\n)+)", read(DOCTOR), re.MULTILINE)
    expected = [line.strip().removesuffix("...").strip() for line in example.splitlines()]
    assert len(printed) == len(expected[:-1])
    assert [p for p, e in zip(printed, expected, strict=False) if not p.startswith(e)] == []
    assert str(refusal({"torch": Package("torch", "2.13.0")}, (3, 12))) in read(README)


def test_the_plan_file_of_the_guide_is_one() -> None:
    (example,) = code_blocks(GUIDE, "yaml")

    config = parse_config({"model": "any", "buckets": parse_yaml(example, source="example")})

    assert isinstance(config.buckets, PlanFile)
    assert config.buckets.step_policy().pack([700]) == (512,)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 8, "num_seqs_buckets": [1, 2, 4]},
        {
            "max_model_len": 2048,
            "max_num_batched_tokens": 1024,
            "num_batched_tokens_buckets": [128, 512],
        },
        {"max_model_len": 2048, "decode_context_length_buckets": [512, 2048]},
    ],
    ids=["requests", "tokens", "context"],
)
def test_verdicts_of_the_guide_are_those_of_the_check(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_config({"model": "any", **settings})

    verdict = str(refusal.value).split(": ", 2)[2]
    assert f"| `{verdict}` |" in read(GUIDE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    known = {name.split()[0] for name in command_names(main)}
    named = {match[1].split()[0] for match in COMMAND.finditer(read(document))}

    assert named - known == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    dead = []
    for target in links(document):
        path, _, anchor = target.partition("#")
        file = document if not path else document.parent / path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)

    assert dead == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    named = {match[1] for match in FILE.finditer(read(document))}

    assert {name for name in named if not any(ROOT.glob(name))} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_out_are_for_readers(document: Path) -> None:
    hosts = set(re.findall(r"https?://([\w.-]+)", read(document)))

    assert hosts - READERS_HOSTS == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_is_said_that_belongs_to_one_machine_or_is_not_plain(document: Path) -> None:
    assert [match[0] for match in FORBIDDEN.finditer(read(document))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_names_of_code_exist(document: Path) -> None:
    missing = {name for name in names_of(document) if not words_of(name) <= words_of_sources()}

    assert missing == set()


def test_the_architecture_names_much_code() -> None:
    assert len(names_of(ROOT / "docs" / "architecture.md")) > 50


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_settings_with_a_value_exist(document: Path) -> None:
    settings = {row.key.rpartition(".")[2] for row in config_rows()}

    assert set(SETTING.findall(read(document))) - settings == set()


def test_the_configuration_and_the_prompt_of_the_readme_are_valid(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    (settings,), (line,) = code_blocks(README, "yaml"), code_blocks(README, "json")
    config = parse_config(parse_yaml(settings, source="README.md"))
    file = tmp_path / "prompts.jsonl"
    file.write_text(line, encoding="utf-8")

    (prompt,) = read_prompts(file, config.sampling, chat=False)

    assert prompt.error is None
    assert isinstance(prompt.request, Conversation)
    assert [tool["function"]["name"] for tool in prompt.request.tools] == ["weather"]
    check_features(prompt.params, config.sampler_features, config.max_logprobs)


def test_pictures_are_readable_in_light_and_dark_mode() -> None:
    for picture in (ROOT / "docs").glob("*.svg"):
        text = read(picture)

        assert "prefers-color-scheme: dark" in text, picture.name
        assert "<title" in text, picture.name
        assert "<desc" in text, picture.name


def plan_lines(config: Path) -> set[str]:
    """Return what `noria plan` prints."""
    done = CliRunner().invoke(main, ["plan", str(config)])
    assert done.exit_code == 0, done.output
    return {line.strip() for line in done.output.splitlines()}


def lines_of(document: Path) -> set[str]:
    return {line.strip() for line in read(document).splitlines()}


def links(document: Path) -> Iterator[str]:
    """Yield the targets of links and pictures that are not addresses."""
    for match in LINK.finditer(read(document)):
        target = match[1] or match[2]
        if not target.startswith(("http://", "https://")):
            yield target


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", read(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def names_of(document: Path) -> set[str]:
    """Return what stands in backticks like a name of Python, without numbers of KV groups."""
    text = re.sub(r"^(?: {4}|```).*$", "", read(document), flags=re.MULTILINE)
    names = {code for code in CODE.findall(text) if IDENTIFIER.fullmatch(code)}
    others = {name for name in names if LABEL.fullmatch(name) or FILE.fullmatch(name)}
    return {re.sub(r"_\d$", "", name) for name in names - others}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@cache
def words_of_sources() -> set[str]:
    return words_of(" ".join(map(read, sources())))


def code_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", read(document), re.DOTALL | re.MULTILINE)


def command_names(group: click.Group, prefix: str = "") -> list[str]:
    """Return all commands below a group, as they are typed."""
    names = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            names += command_names(command, f"{prefix}{name} ")
        else:
            names.append(prefix + name)
    return names


def sources() -> list[Path]:
    folders = ("bucketing", "configs", "kernels", "runtime", "tests")
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    kinds = (".py", ".cpp", ".h", ".yaml")
    return [*(p for p in found if p.suffix in kinds and p != Path(__file__)), ROOT / "Makefile"]


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    write_settings_table()
