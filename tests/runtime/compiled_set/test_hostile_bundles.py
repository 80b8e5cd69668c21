"""Bundles that nobody wrote: refused in one line, with nothing left behind."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sets import KEY, NUM_BLOCKS, small_set

from noria.runtime.compiled_set import bundle
from noria.runtime.compiled_set.bundle import read_bundle, write_bundle
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST, FileEntry, Manifest
from noria.runtime.errors import SetError

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    write_bundle(small_set(tmp_path / "packed"), tmp_path / "set.tar")
    return tmp_path / "set.tar"


def members_of(path: Path) -> Members:
    with tarfile.open(path) as archive:
        return [(m, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]


def write_members(path: Path, members: Members, kind: int = tarfile.USTAR_FORMAT) -> Path:
    whole = (m.tobuf(kind) + data + bytes(-len(data) % 512) for m, data in members)
    path.write_bytes(b"".join(whole) + bytes(1024))
    return path


def member(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, to: str = "") -> Members:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, to
    return [(info, data)]


def test_the_members_of_a_bundle_make_that_bundle(packed: Path, tmp_path: Path) -> None:
    """So what is refused below is refused for what was changed."""
    path = write_members(tmp_path / "again.tar", members_of(packed))

    assert path.read_bytes() == packed.read_bytes()
    read_bundle(path, tmp_path / "target")


def refused(path: Path, target: Path, match: str) -> None:
    """Assert that a bundle is refused in one line that names it, and that nothing is made."""
    before = sorted(target.parent.rglob("*"))

    with pytest.raises(SetError, match=match) as caught:
        read_bundle(path, target)

    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(target.parent.rglob("*")) == before


EXTRAS = {
    "traversal": member("../evil.txt"),
    "deep traversal": member("graphs/../../evil.txt"),
    "absolute": member("/evil.txt"),
    "extra": member("graphs/evil.graph"),
    "again": member("plan.json"),
    "a second manifest": member(MANIFEST),
    "folder": member("graphs", b"", tarfile.DIRTYPE),
    "link": member("plan2.json", b"", tarfile.SYMTYPE, to="../evil.txt"),
    "link of a folder": member("kernels", b"", tarfile.SYMTYPE, to=".."),
    "hard link": member("plan2.json", b"", tarfile.LNKTYPE, to="config.yaml"),
    "device": member("null", b"", tarfile.CHRTYPE),
    "pipe": member("pipe", b"", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("place", [0, 1, 3, None])
@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
def test_a_member_that_is_not_listed_is_refused(
    packed: Path, tmp_path: Path, extra: Members, place: int | None
) -> None:
    members = members_of(packed)
    at = len(members) if place is None else place
    path = write_members(tmp_path / "evil.tar", members[:at] + extra + members[at:])

    refused(
        path,
        tmp_path / "target",
        r"it holds .* where|is not the manifest of|its end is missing, or there",
    )
    assert not (tmp_path.parent / "evil.txt").exists()


def same_but(members: Members, index: int, change: Callable[[tarfile.TarInfo], None]) -> Members:
    changed = tarfile.TarInfo.frombuf(members[index][0].tobuf(), "utf-8", "strict")
    change(changed)
    return [*members[:index], (changed, members[index][1]), *members[index + 1 :]]


@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../plan.json"),
        ("type", tarfile.SYMTYPE),
        ("mode", 0o4755),
        ("uid", 1),
        ("uname", "root"),
        ("mtime", 1),
        ("linkname", "x"),
    ],
)
def test_a_member_with_another_header_is_refused(
    packed: Path, tmp_path: Path, index: int, field: str, value: object
) -> None:
    members = members_of(packed)
    at = index % len(members)
    changed = same_but(members, at, lambda info: setattr(info, field, value))
    path = write_members(tmp_path / "evil.tar", changed)

    refused(path, tmp_path / "target", "it holds .* where .* should be$")


def test_a_missing_member_is_refused(packed: Path, tmp_path: Path) -> None:
    members = members_of(packed)
    for index in range(len(members)):
        path = write_members(tmp_path / "evil.tar", members[:index] + members[index + 1 :])
        refused(path, tmp_path / "target", "it holds .* where .* should be$")


def test_members_in_another_order_are_refused(packed: Path, tmp_path: Path) -> None:
    members = members_of(packed)
    path = write_members(tmp_path / "evil.tar", [members[0], members[2], members[1], *members[3:]])

    refused(path, tmp_path / "target", "it holds .* where .* should be$")


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_other_kinds_of_tar_are_refused(packed: Path, tmp_path: Path, kind: int) -> None:
    members = same_but(members_of(packed), 1, lambda info: setattr(info, "name", "x" * 200))
    path = write_members(tmp_path / "evil.tar", members, kind)

    refused(path, tmp_path / "target", "it holds .* where .* should be$")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b", bytes(2048), b"PK\x03\x04" * 300])
def test_other_files_are_no_bundles(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "other").write_bytes(data)

    refused(tmp_path / "other", tmp_path / "target", "is no bundle of a compiled set|is damaged")


def test_a_bundle_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    refused(tmp_path / "set.tar", tmp_path / "target", "cannot be read: No such file or directory$")
    refused(tmp_path, tmp_path / "target", "cannot be read: Is a directory$")


def with_manifest(packed: Path, manifest: Manifest) -> Members:
    data = manifest.to_bytes()
    return member(MANIFEST, data) + members_of(packed)[1:]


def test_a_newer_format_is_refused_by_its_number(packed: Path, tmp_path: Path) -> None:
    manifest = replace(SetFolder.open(tmp_path / "packed").manifest, format=2)
    path = write_members(tmp_path / "newer.tar", with_manifest(packed, manifest))

    refused(path, tmp_path / "target", "is of format 2,")


@pytest.mark.parametrize("path", ["../evil.txt", "/evil.txt", "graphs/..", ".lock", MANIFEST])
def test_a_manifest_that_lists_another_place_is_refused(
    packed: Path, tmp_path: Path, path: str
) -> None:
    """Manifest and member agree with each other, and both are hostile."""
    entry = FileEntry(path, 1, FileEntry.of("x", b"x").sha256)
    manifest = Manifest(KEY, NUM_BLOCKS, files={path: entry})
    members = member(MANIFEST, manifest.to_bytes()) + member(path)
    bundle_path = write_members(tmp_path / "evil.tar", members)

    refused(bundle_path, tmp_path / "target", "is no path of a file in a compiled set")


@pytest.mark.parametrize("size", [2**30 + 1, 2**33, 2**80])
def test_sizes_that_nobody_can_hold_are_refused(packed: Path, tmp_path: Path, size: int) -> None:
    entry = FileEntry("config.yaml", size, "0" * 64)
    manifest = Manifest(KEY, NUM_BLOCKS, files={"config.yaml": entry})
    path = write_members(tmp_path / "evil.tar", with_manifest(packed, manifest))

    refused(path, tmp_path / "target", f"config.yaml of {size} bytes is more than")


def test_a_large_size_that_is_not_there_takes_no_memory(packed: Path, tmp_path: Path) -> None:
    header = tarfile.TarInfo(MANIFEST)
    header.size = bundle.MAX_MEMBER_BYTES
    (tmp_path / "evil.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + b"{}")

    refused(tmp_path / "evil.tar", tmp_path / "target", "manifest.json is not whole in it$")


@pytest.mark.parametrize("name", ["set.tar", "set.tgz"])
def test_every_flip_and_truncation_of_a_bundle_is_found(tmp_path: Path, name: str) -> None:
    """The header of gzip has bytes that say nothing: those 10 are not flipped."""
    folder = small_set(tmp_path / "set")
    write_bundle(folder, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    draws = random.Random(3)
    first = 10 if name.endswith("gz") else 0
    for number in range(100):
        index = draws.randrange(first, len(data))
        flipped = data[:index] + bytes([data[index] ^ draws.randrange(1, 256)]) + data[index + 1 :]
        (tmp_path / name).write_bytes(data[:index] if number % 4 == 0 else flipped)
        with pytest.raises(SetError):
            read_bundle(tmp_path / name, tmp_path / "target")
        assert not (tmp_path / "target").exists()
    (tmp_path / name).write_bytes(data + b"\x01")
    with pytest.raises(SetError):
        read_bundle(tmp_path / name, tmp_path / "target")


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_hostile_bytes_give_an_error_of_a_user(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("hostile")
    start = data.draw(st.sampled_from([b"", b"\x1f\x8b\x08", header_of(data)]))
    (path / "evil").write_bytes(start + data.draw(st.binary(max_size=600)))

    refused(path / "evil", path / "target", "evil")


def header_of(data: st.DataObject) -> bytes:
    """Return a header of a tar in which one stretch is anything."""
    header = bytearray(tarfile.TarInfo(MANIFEST).tobuf(tarfile.USTAR_FORMAT))
    at = data.draw(st.integers(0, 500))
    header[at : at + 12] = data.draw(st.binary(min_size=12, max_size=12))
    header[148:156] = b"%06o\x00 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
    return bytes(header[:512])
