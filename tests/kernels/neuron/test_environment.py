"""What the environment of the vendor's packages is set to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from noria.kernels.neuron.environment import CacheFolders, EnvironmentConflict, needed, prepare
from noria.runtime.device_packages import AUTOLOAD, load_devices_on_demand

FOLDERS = CacheFolders(Path("of-this-process"))
NEEDED = needed("trn2", FOLDERS)


def test_what_is_needed_is_set_and_one_core_is_asked_for() -> None:
    environ = {"PATH": "/bin"}

    prepare("trn2", FOLDERS, environ, imported=())

    assert environ == {"PATH": "/bin", **NEEDED, "NEURON_RT_NUM_CORES": "1"}


@pytest.mark.parametrize("name", NEEDED)
def test_every_variable_of_the_user_that_differs_is_named_with_what_is_needed(name: str) -> None:
    with pytest.raises(EnvironmentConflict) as caught:
        prepare("trn2", FOLDERS, {name: "other"}, imported=())

    assert str(caught.value) == (
        f"{name}=other is set, but {name}={NEEDED[name]} is needed; unset it"
    )


@pytest.mark.parametrize("cores", [{"NEURON_RT_VISIBLE_CORES": "3"}, {"NEURON_RT_NUM_CORES": "2"}])
def test_cores_that_the_user_names_stay(cores: dict[str, str]) -> None:
    environ = dict(cores)

    prepare("trn2", FOLDERS, environ, imported=())

    assert environ == {**NEEDED, **cores}


def test_it_is_too_late_once_the_package_is_imported_unless_all_is_set() -> None:
    with pytest.raises(EnvironmentConflict, match=r"imported before NEURON_LOGICAL_NC_CONFIG=1"):
        prepare("trn2", FOLDERS, {}, imported={"torch_neuronx"})

    prepare("trn2", FOLDERS, dict(NEEDED), imported={"torch_neuronx"})


@pytest.mark.parametrize(("flags", "is_right"), [("--lnc 2", 0), ("-O1 --lnc=1", 1), ("-O2", 1)])
def test_flags_of_the_compiler_cannot_choose_other_cores(flags: str, is_right: int) -> None:
    environ = {"NEURON_CC_FLAGS": flags}
    if is_right:
        prepare("trn2", FOLDERS, environ, imported=())
        return
    with pytest.raises(EnvironmentConflict, match=r"--lnc=1 is needed"):
        prepare("trn2", FOLDERS, environ, imported=())


def test_torch_loads_no_device_package_by_itself_where_there_is_one(tmp_path, monkeypatch) -> None:
    environ: dict[str, str] = {}
    load_devices_on_demand(environ, imported=())
    assert environ == {}

    (tmp_path / "torch_neuronx.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    load_devices_on_demand(environ, imported={"torch"})
    assert environ == {}
    load_devices_on_demand(environ, imported=())
    assert environ == {AUTOLOAD: "0"}
