"""Folders with the metadata of packages, as pip leaves them: nothing in them can be imported."""

from __future__ import annotations

import shutil
from pathlib import Path

EMPTY_TEXT = (
    "Maintainer: Amazon Web Services, Inc.\n"
    "Description-Content-Type: text/markdown\n\n"
    "WRONG PACKAGE. Please install the package from Neuron Repository\n"
)
DYNAMO = "[torch_dynamo_backends]\nneuron = torch_neuronx.some.module:backend\n"
ALL_REAL = {
    "torch": "2.13.0+cpu",
    "torch-neuronx": "2.13.3.0.1234",
    "neuronx-cc": "2.28.7631.0",
    "nki": "0.7.0",
}


def install(
    folder: Path, versions: dict[str, str], *, empty: bool = False, entry_points: str = ""
) -> None:
    """Leave the metadata of packages in a folder, in place of other versions there.

    With ``empty`` it is that of the general index's.
    """
    for name, version in versions.items():
        stem = name.replace("-", "_")
        for other in folder.glob(f"{stem}-*.dist-info"):
            shutil.rmtree(other)
        info = folder / f"{stem}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text + (EMPTY_TEXT if empty else ""))
        if entry_points:
            (info / "entry_points.txt").write_text(entry_points)
