"""Digests of keys, and the lines that say how two keys differ."""

import json
import subprocess
import sys

import pytest

from noria.runtime.compiled_set.key import MAX_TEXT, key_differences, key_digest

LAYER = {"type": "LayerKind", "window": None, "rope": {"theta": 10000.0}}


def test_equal_keys_differ_in_nothing_and_share_a_digest():
    key = {"b": [1, {"c": None}], "a": "text"}
    other = json.loads(json.dumps({"a": "text", "b": [1, {"c": None}]}))

    assert key_differences(key, other) == []
    assert key_digest(key) == key_digest(other)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ({"a": {"b": {"c": 4}}}, {"a": {"b": {"c": 8}}}, "a.b.c: 4 in the set, 8 here"),
        ({"a": {"b": 1}}, {"a": {}}, "a.b: 1 in the set, missing here"),
        ({}, {"a": [1]}, "a: missing in the set, [1] here"),
        ({"a": None}, {"a": {"b": 1}}, 'a: null in the set, {"b":1} here'),
        ({"a": 1}, {"a": True}, "a: 1 in the set, true here"),
        ({"a": 1}, {"a": 1.0}, "a: 1 in the set, 1.0 here"),
        ({"a": 0}, {"a": None}, "a: 0 in the set, null here"),
        ({"a": [1, 2, 3]}, {"a": [1, 5, 3]}, "a[1]: 2 in the set, 5 here"),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "a: [1,2] in the set, [1,2,3] here"),
        ({"a": [LAYER] * 2}, {"a": [LAYER] * 30}, "a: 2 entries in the set, 30 entries here"),
        ({"a": [[1], [2]]}, {"a": [[1], [3]]}, "a[1][0]: 2 in the set, 3 here"),
        ({"a\nb": 1}, {"a\nb": 2}, "'a\\nb': 1 in the set, 2 here"),
        ({"a": "x\ny"}, {"a": "z"}, 'a: "x\\ny" in the set, "z" here'),
    ],
    ids=str,
)
def test_a_difference_is_one_line_with_path_and_both_values(old, new, line):
    assert key_differences(old, new) == [line]
    assert key_digest(old) != key_digest(new)


def test_only_what_differs_is_listed_by_path():
    old = {"same": {"x": 1}, "z": 1, "model": {"heads": 4, "bias": True, "size": 64}}
    new = {"same": {"x": 1}, "z": 2, "model": {"heads": 8, "bias": False, "size": 64}}

    assert key_differences(old, new) == [
        "model.bias: true in the set, false here",
        "model.heads: 4 in the set, 8 here",
        "z: 1 in the set, 2 here",
    ]


def test_layers_that_differ_alike_share_a_line():
    changed = {**LAYER, "rope": {"theta": 500000.0}}
    old, mixed = {"layers": [LAYER] * 30}, {"layers": [*[changed] * 3, LAYER, *[changed] * 26]}
    every_other = {"layers": [LAYER, {**LAYER, "window": 8}] * 15}

    assert key_differences(old, mixed) == [
        "layers[0-2,4-29].rope.theta: 10000.0 in the set, 500000.0 here"
    ]
    assert key_differences(old, every_other) == [
        "layers[1,3,5,7 and 11 more].window: null in the set, 8 here"
    ]


def test_a_list_that_differs_everywhere_is_one_line():
    old = {"scales": [{"k": 1.0, "v": 1.0} for _ in range(30)], "short": [0.0, 1.0]}
    new = {"scales": [{"k": 1.5 + i, "v": 1.0} for i in range(30)], "short": [2.0, 3.0]}

    assert key_differences(old, new) == [
        "scales[0 and 29 more].k: 1.0 in the set, 1.5 here",
        "short[0]: 0.0 in the set, 2.0 here",
        "short[1]: 1.0 in the set, 3.0 here",
    ]


def test_long_values_are_cut_around_what_differs():
    old, new = "-O3 " * 50 + "-mavx2 " + "-g " * 50, "-O3 " * 50 + "-mavx512f " + "-g " * 50

    (line,) = key_differences({"flags": old}, {"flags": new})
    (extra,) = key_differences({}, {"flags": old})

    assert "-mavx2 " in line
    assert "-mavx512f " in line
    assert len(line) < 2 * MAX_TEXT + 50
    assert extra == f'flags: missing in the set, "{old[: MAX_TEXT - 1]}... here'


def test_a_value_that_only_goes_on_is_told_from_the_shorter_one():
    old, new = "a" * 200, "a" * 201

    (line,) = key_differences({"x": old}, {"x": new})

    shorter, longer = line.removeprefix("x: ").removesuffix(" here").split(" in the set, ")
    assert shorter != longer


def test_values_without_a_text_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        key_digest({"a": float("nan")})
    with pytest.raises(TypeError):
        key_digest({"a": {1, 2}})


def test_a_set_is_checked_without_loading_torch():
    code = "import sys, noria.runtime.compiled_set.key; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
