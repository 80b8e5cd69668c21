"""Who serves ``import nki``: the simulator, or the real package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from noria.kernels.nki.simulator import install


def test_installing_twice_changes_nothing() -> None:
    assert install()
    before = sys.modules["nki.isa"]

    assert install()
    assert sys.modules["nki.isa"] is before


@pytest.mark.parametrize(("has_isa", "serves"), [(True, False), (False, True)])
def test_the_simulator_gives_way_to_the_real_nki(
    tmp_path: Any, has_isa: bool, serves: bool
) -> None:
    """A placeholder without ``isa``, as on the general index, is no real one."""
    package = tmp_path / "nki"
    package.mkdir()
    (package / "__init__.py").write_text("NAME = 'installed'\n")
    if has_isa:
        (package / "isa.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from noria.kernels.nki.simulator import install\n"
        "served = install()\n"
        "import nki\n"
        "print(served, hasattr(nki, 'simulate'))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.split() == [str(serves), str(serves)]
