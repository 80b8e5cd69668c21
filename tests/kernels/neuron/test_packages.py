"""What is installed of the vendor's packages, from metadata in folders of the tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from installed_packages import ALL_REAL, DYNAMO, install

from noria.kernels.neuron.packages import (
    FAMILIES,
    INDEX,
    WRITTEN_FOR,
    Kind,
    Lack,
    install_line,
    installed_packages,
    listed,
    package_lacks,
    refusal,
    requirements,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def lacks(tmp_path: Path):
    """Return what a folder of packages lacks under Python 3.12."""

    def found(python: tuple[int, int] = (3, 12), on_path: str = "python3.14") -> list[Lack]:
        packages = installed_packages([str(tmp_path)])
        return package_lacks(packages, python, "python", lambda name: name in on_path)

    return found


def test_what_fits_together_lacks_nothing(tmp_path, lacks):
    install(tmp_path, ALL_REAL)

    assert lacks() == []
    assert refusal_of(tmp_path) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_goes_with_its_torch(tmp_path, lacks, family):
    versions = {"torch": f"{family}.0", "torch-neuronx": f"{family}.3.0.1"}
    install(tmp_path, ALL_REAL | versions)

    assert lacks() == []


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch-neuronx", "1.0"), ("neuronx-cc", "1.0.post1"), ("nki", "0.0.1"), ("nki", "0.9.9")],
)
def test_empty_packages_are_recognised_by_their_text(tmp_path, lacks, name, version):
    install(tmp_path, {k: v for k, v in ALL_REAL.items() if k != name})
    install(tmp_path, {name: version}, empty=True)

    uninstall, reinstall = lacks()

    assert installed_packages([str(tmp_path)])[name].kind is Kind.EMPTY
    assert f"{name} {version} is an empty package" in uninstall.text
    assert uninstall.lines == (f"python -m pip uninstall -y {name}",)
    assert reinstall.text == f"{name} of AWS's package index is not installed"
    assert reinstall.lines == (install_line("2.13"),)


@pytest.mark.parametrize(
    ("name", "version"), [("torch-neuronx", "1.0"), ("neuronx-cc", "1.0.post1"), ("nki", "0.0.1")]
)
def test_empty_packages_are_recognised_by_their_version_where_the_text_is_gone(
    tmp_path, name, version
):
    install(tmp_path, {name: version})

    assert installed_packages([str(tmp_path)])[name].kind is Kind.EMPTY


def test_all_empty_packages_go_by_one_line(tmp_path, lacks):
    install(tmp_path, {"torch": "2.13.0"})
    install(tmp_path, {"torch-neuronx": "1.0", "nki": "0.0.1"}, empty=True)

    uninstall, reinstall = lacks()

    assert uninstall.text.startswith("torch-neuronx 1.0 and nki 0.0.1 are empty packages")
    assert uninstall.lines == ("python -m pip uninstall -y torch-neuronx nki",)
    assert reinstall.text.startswith("torch-neuronx, neuronx-cc and nki of AWS's")


@pytest.mark.parametrize(
    ("change", "text", "family"),
    [
        ({"torch": "2.14.0+cpu"}, "torch-neuronx 2.13.3.0.1234 is for torch 2.13", "2.14"),
        ({"torch-neuronx": "2.14.3.0.7"}, "2.14.3.0.7 is for torch 2.14, and torch is", "2.13"),
        ({"torch": "2.15.0"}, "torch 2.15.0: torch-neuronx is for torch 2.13 and 2.14", "2.13"),
        ({"torch-neuronx": "2.9.0.2.15.32035"}, "2.9.0.2.15.32035 is the XLA-based", "2.13"),
        ({"neuronx-cc": "2.22.1.0"}, "neuronx-cc 2.22.1.0: must be at least 2.28", "2.13"),
        ({"neuronx-cc": "3.0"}, "neuronx-cc 3.0: must be at least 2.28 and below 3", "2.13"),
        ({"nki": "0.6.0"}, "nki 0.6.0: must be at least 0.7 and below 0.8", "2.13"),
        ({"nki": "0.8.0"}, "nki 0.8.0: must be at least 0.7 and below 0.8", "2.13"),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_named_and_replaced(tmp_path, lacks, change, text, family):
    install(tmp_path, ALL_REAL | change)

    (lack,) = lacks()

    assert text in lack.text
    assert lack.lines == (install_line(family),)


def test_a_native_build_of_a_low_number_is_not_taken_for_the_old_kind(tmp_path):
    install(tmp_path, {"torch-neuronx": "0.1.0"}, entry_points=DYNAMO)

    assert installed_packages([str(tmp_path)])["torch-neuronx"].kind is Kind.REAL


@pytest.mark.parametrize("python", [(3, 11), (3, 15)])
def test_another_python_comes_first_and_gets_an_environment_of_its_own(tmp_path, lacks, python):
    install(tmp_path, {"torch": "2.13.0"})
    install(tmp_path, {"nki": "0.0.1"}, empty=True)

    environment, packages = lacks(python, on_path="python3.13")

    assert environment.text == (
        f"Python 3.{python[1]}: torch-neuronx is for 3.12, 3.13 and 3.14 only"
    )
    assert environment.lines[0].startswith("python3.13 -m venv .venv-neuron && . .venv-neuron/")
    assert packages.lines[0] == install_line()
    assert packages.lines[1].startswith("python -m pip install -e .")


def test_a_python_that_is_nowhere_is_installed_first(lacks):
    assert lacks((3, 11), on_path="")[0].text.endswith(
        "none of which is on PATH: install one first"
    )


def test_the_refusal_is_one_line_that_says_what_to_install(tmp_path):
    install(tmp_path, {"torch": "2.13.0"})

    text = refusal_of(tmp_path)

    assert text is not None
    assert text.startswith("backend: neuron: ")
    assert "torch-neuronx, neuronx-cc and nki of AWS's package index are not installed" in text
    assert text.endswith("`noria doctor` prints the lines to run")
    assert "\n" not in text


def test_the_extra_asks_for_what_the_line_installs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["optional-dependencies"]["neuron"] == list(requirements())
    assert all(f'"{one}"' in install_line() for one in requirements())
    assert f"--extra-index-url {INDEX}" in install_line()


def test_the_extra_fits_the_torch_that_noria_is_tested_with():
    (pinned,) = re.findall(
        r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )

    assert pinned == WRITTEN_FOR


def test_words_are_enumerated():
    assert [listed("a"), listed("ab"), listed("abc")] == ["a", "a and b", "a, b and c"]


def refusal_of(folder: Path) -> str | None:
    return refusal(installed_packages([str(folder)]), (3, 12))
