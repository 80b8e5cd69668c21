from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.runtime.compiled_set.manifest import (
    FORMAT,
    MAX_PATH,
    FileEntry,
    GraphEntry,
    Manifest,
    check_path,
)
from noria.runtime.errors import DamagedFile, SetError

PLAN = FileEntry.of("plan.json", b"{}")
DECODE = GraphEntry(
    name="decode_s8_c256",
    status="done",
    key={"rows": 8, "inputs": {"ids": [8]}},
    file=FileEntry.of("graphs/decode_s8_c256.graph", b"graph"),
    seconds=1.25,
    peak_bytes=4096,
)
FAILED = GraphEntry(
    name="sampler_r8",
    status="failed",
    key={"rows": 8},
    file=FileEntry.of("errors/sampler_r8.txt", b"boom"),
    seconds=0.5,
    peak_bytes=0,
    error="boom",
)
MANIFEST = Manifest(
    key={"target": "cpu", "layers": [1, None, True, 1.5, "\u00e9\ud800"]},
    num_blocks=(64, 8),
    graphs={"sampler_r8": FAILED, "decode_s8_c256": DECODE},
    files={"plan.json": PLAN},
    facts={"bits": {"equal": True}},
)

WORD = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32) | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "inf" not in repr(value))
KEYS = st.dictionaries(WORD, VALUES, max_size=3)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    graphs = {}
    for name in names:
        done = draw(st.booleans())
        path = f"graphs/{name}.graph" if done else f"errors/{name}.txt"
        graphs[name] = GraphEntry(
            name=name,
            status="done" if done else "failed",
            key=draw(KEYS),
            file=FileEntry.of(path, draw(st.binary(max_size=8))),
            seconds=draw(st.floats(0, 1e6)),
            peak_bytes=draw(st.integers(0, 2**60)),
            error=None if done else draw(WORD),
        )
    files = [FileEntry.of(f"kernels/{name}", b"x") for name in draw(st.lists(NAMES, max_size=2))]
    return Manifest(
        key=draw(KEYS),
        num_blocks=tuple(draw(st.lists(st.integers(0, 2**40), max_size=3))),
        graphs=graphs,
        files={file.path: file for file in files},
        facts=draw(KEYS),
    )


def signed(body: bytes) -> bytes:
    """Return a manifest of this beginning with a hash that is right."""
    digest = hashlib.sha256(body).hexdigest()
    return body + b',\n "sha256": "' + digest.encode() + b'"\n}\n'


def edited(old: str, new: str) -> bytes:
    """Return the manifest with one text in place of another, and a hash that is right."""
    body = MANIFEST.to_bytes().rsplit(b',\n "sha256"', 1)[0].decode()
    assert old in body
    return signed(body.replace(old, new, 1).encode())


@given(manifests())
@settings(max_examples=60, deadline=None)
def test_what_was_written_is_read(manifest: Manifest) -> None:
    data = manifest.to_bytes()

    assert Manifest.from_bytes(data) == manifest
    assert Manifest.from_bytes(data).to_bytes() == data


def test_the_manifest_is_json_and_ends_with_its_hash() -> None:
    data = MANIFEST.to_bytes()

    value = json.loads(data)
    body = data[: data.rindex(b',\n "sha256"')]
    assert value["sha256"] == hashlib.sha256(body).hexdigest()
    assert [*value][:: len(value) - 1] == ["format", "sha256"]
    assert value["graphs"]["sampler_r8"]["error"] == "boom"


def test_order_and_kinds_of_mappings_change_no_byte() -> None:
    shuffled = replace(
        MANIFEST,
        key=dict(reversed(MANIFEST.key.items())),
        graphs=dict(reversed(MANIFEST.graphs.items())),
    )
    as_tuples = replace(MANIFEST, key={**MANIFEST.key, "layers": tuple(MANIFEST.key["layers"])})  # type: ignore[arg-type]

    assert shuffled.to_bytes() == MANIFEST.to_bytes()
    assert as_tuples.to_bytes() == MANIFEST.to_bytes()
    assert as_tuples == MANIFEST


@pytest.mark.parametrize("seed", ["0", "1"])
def test_bytes_are_the_same_in_every_process(seed: str) -> None:
    code = (
        "from noria.runtime.compiled_set.manifest import *\n"
        "files = {n: FileEntry.of(n, n.encode()) for n in {'a', 'b', 'c', 'd'}}\n"
        "print(Manifest(dict.fromkeys({'x', 'y', 'z'}), (1,), files=files).to_bytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        timeout=600,
    )

    files = {n: FileEntry.of(n, n.encode()) for n in "abcd"}
    here = Manifest(dict.fromkeys("xyz"), (1,), files=files).to_bytes()
    assert done.stdout.decode().strip() == repr(here)


@pytest.mark.parametrize("mask", [1, 0x80, 0xFF])
def test_every_byte_counts(mask: int) -> None:
    data = MANIFEST.to_bytes()

    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= mask
        with pytest.raises(DamagedFile):
            Manifest.from_bytes(bytes(changed))


def test_every_truncation_and_extension_is_found() -> None:
    data = MANIFEST.to_bytes()

    for size in range(len(data)):
        with pytest.raises(DamagedFile):
            Manifest.from_bytes(data[:size])
    for more in (b"\n", b" ", data):
        with pytest.raises(DamagedFile):
            Manifest.from_bytes(data + more)


@pytest.mark.parametrize("data", [b"{}", b'{"name": "web app"}\n', b"[1]", b"\xff\xfe", b"\n"])
def test_files_of_others_are_no_manifests(data: bytes) -> None:
    with pytest.raises(SetError, match="is not the manifest of a compiled set") as caught:
        Manifest.from_bytes(data)

    assert not isinstance(caught.value, DamagedFile)


def test_a_newer_format_is_named_with_the_one_that_is_read() -> None:
    newer = edited(f'"format": {FORMAT},', f'"format": {FORMAT + 6},')

    with pytest.raises(SetError, match=f"format {FORMAT + 6}.* formats up to {FORMAT}$") as caught:
        Manifest.from_bytes(newer)
    assert not isinstance(caught.value, DamagedFile)


def test_a_newer_format_may_hold_anything_else() -> None:
    with pytest.raises(SetError, match="is of format 2,"):
        Manifest.from_bytes(signed(b'{\n "format": 2,\n "parts": []'))


def test_a_damaged_newer_format_is_damaged() -> None:
    with pytest.raises(DamagedFile):
        Manifest.from_bytes(edited('"format": 1', '"format": 2').replace(b"cpu", b"cpv"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 1', '"format": 0'),
        ('"format": 1', '"format": true'),
        ('"format": 1', '"format": "2"'),
        ('"files": {', '"others": {'),
        ("[64, 8]", "[64, true]"),
        ("[64, 8]", '"64"'),
        ('"status": "done"', '"status": "fine"'),
        ('"status": "done"', '"status": []'),
        ('"seconds": 1.25', '"seconds": NaN'),
        ('"seconds": 1.25', '"seconds": 1e999'),
        ('"seconds": 1.25', '"seconds": "1"'),
        ('"peak_bytes": 4096', '"peak_bytes": null'),
        ('"size": 5', '"size": -5'),
        ('"size": 5', '"size": ' + "9" * 5000),
        ('"sha256": "', '"sha256": "A'),
        ('"name": "decode_s8_c256"', '"name": "decode"'),
        ('"path": "plan.json"', '"path": "plan2.json"'),
        ('"path": "errors/sampler_r8.txt"', '"path": "graphs/decode_s8_c256.graph"'),
        ('"error": null', '"error": 3'),
        ('"target": "cpu"', '"target": "cpu", "target": "cpu"'),
        ('"target": "cpu"', '"target":  "cpu"'),
        ('"facts": {', '"facts": ' + '{"a":' * 5000 + "1" + "}" * 5000 + ', "b": {'),
        ('"facts": {', '"facts": [{'),
    ],
)
def test_what_no_writer_writes_is_refused(old: str, new: str) -> None:
    with pytest.raises(SetError, match="is not as format 1 has it"):
        Manifest.from_bytes(edited(old, new))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../plan.json",
        "graphs/../../x",
        "graphs/..",
        "./plan.json",
        ".lock",
        "graphs/.staged-x",
        "graphs//x",
        "graphs/",
        "a/b/c",
        "a\\b",
        "a b",
        "a\n",
        "a\x00",
        "\u00e9",
        "-rf",
        "manifest.json",
        "x" * (MAX_PATH + 1),
    ],
)
def test_paths_stay_in_the_folder(path: str) -> None:
    with pytest.raises(SetError, match="is no path of a file in a compiled set"):
        check_path(path)
    with pytest.raises(SetError):
        Manifest.from_bytes(edited('"path": "plan.json"', f'"path": {json.dumps(path)}'))


@pytest.mark.parametrize("path", ["plan.json", "graphs/decode_s8.graph", "x" * MAX_PATH, "a/b"])
def test_plain_paths_fit(path: str) -> None:
    assert check_path(path) == path


def test_values_that_json_does_not_give_back_are_no_keys() -> None:
    with pytest.raises(AssertionError):
        Manifest({"path": object()}, ())
    with pytest.raises(ValueError, match="JSON compliant"):
        Manifest({"scale": float("nan")}, ()).to_bytes()
