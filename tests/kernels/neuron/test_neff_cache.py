"""Archives of compiled graphs: the same files give the same bytes, nothing leaves its folder."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from noria.kernels.neuron.neff_cache import NeffCache, pack, unpack

FILES = {"ab/cd/abcd.neff": b"one\n" * 9, "00/11/0011.neff": b"", "x.neff": bytes(range(256))}


def test_archives_do_not_depend_on_the_order_of_files() -> None:
    turned = dict(reversed(FILES.items()))

    assert pack(FILES) == pack(turned)
    assert unpack(pack(FILES)) == FILES
    assert unpack(pack({})) == {}


def test_files_go_from_one_folder_to_another(tmp_path: Path) -> None:
    first, second = (NeffCache(tmp_path / name) for name in ("first", "second"))
    for name, data in FILES.items():
        (first.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (first.folder / name).write_bytes(data)
    (first.folder / "ab" / "lock").touch()
    second.folder.mkdir()
    (second.folder / "x.neff").write_bytes(b"is there")

    second.put(first.archive(first.names()))

    assert first.names() == second.names() == FILES.keys()
    assert (second.folder / "ab/cd/abcd.neff").read_bytes() == FILES["ab/cd/abcd.neff"]
    assert (second.folder / "x.neff").read_bytes() == b"is there"
    assert [path for path in second.folder.rglob("*") if path.name.startswith(".")] == []


@pytest.mark.parametrize("at", [0, 20, 90, 300, -1])
def test_damaged_archives_are_refused(at: int) -> None:
    data = bytearray(pack(FILES))
    data[at] ^= 1

    with pytest.raises(ValueError, match=r"no archive|damaged|more than"):
        unpack(bytes(data))


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_cut_archives_are_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"no archive|damaged"):
        unpack(pack(FILES)[:-cut])


@pytest.mark.parametrize(
    "name", ["../x.neff", "/x.neff", "a/../../x.neff", "./x.neff", "a//x.neff", "x.sh", "a\\x.neff"]
)
def test_names_outside_of_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no NEFF file inside a folder"):
        unpack(pack({name: b""}))


@pytest.mark.parametrize("head", [b"7", b"[[1, 2]]", b'[["x.neff", null, ""]]', b"{"])
def test_strange_lists_are_refused(head: bytes) -> None:
    magic = pack({}).split(b"\n")[0] + b"\n"

    with pytest.raises(ValueError, match=r"strange list"):
        unpack(magic + sha256(head).hexdigest().encode() + b"\n" + head + b"\n")
