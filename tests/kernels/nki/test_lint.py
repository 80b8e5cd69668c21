"""Every rule of the lint refuses one snippet and accepts its neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

from noria.kernels.nki.lint import kernel_sources, lint_file, lint_source, main

FOLDER = Path(__file__).resolve().parents[3] / "kernels" / "nki"
HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject

"""
# rule: what it refuses as the body of a kernel, and what it accepts there
BODIES = {
    "statement": ("try:\n    pass\nfinally:\n    pass", "if True:\n    pass\nelse:\n    pass"),
    "statement-raise": ("raise x", "assert x.shape[0] < 128, f'{x.shape}'"),
    "statement-global": ("global y", "y = 1"),
    "statement-import": ("import math", "pass"),
    "statement-delete": ("del x", "x = None"),
    "expression": ("y = [i for i in range(2)]", "y = []\nfor i in range(2):\n    y.append(i)"),
    "expression-lambda": ("y = lambda i: i", "y = [0, (1, 2), {'a': 3}]"),
    "expression-starred": ("y = [*x.shape]", "y = x.shape[1:]"),
    "expression-walrus": ("print(y := 1)", "print(1 if True else 2)"),
    "expression-kwargs": ("nisa.memset(**x)", "nisa.memset(dst=x, value=0)"),
    "expression-set": ("y = {1, 2}", "y = -1 + 2 ** 3 % 4"),
    "operator": ("y = x @ x", "y = 2 * 3"),
    "operator-is": ("y = x is None", "y = x == None"),
    "builtin": ("y = getattr(x, 'shape')", "y = max(len(x.shape), 2)"),
    "builtin-shadowed": ("y = input", "input = 2\ny = input"),
    "dictionary": ("y = {1: 2}", "y = {'one': 2}"),
    "loop": ("for a, b in x:\n    pass", "for a in nl.affine_range(4):\n    continue"),
    "loop-else": ("while x:\n    break\nelse:\n    pass", "while x:\n    break"),
    "with": ("with x:\n    pass", "with nl.no_reorder():\n    pass"),
    "nested-function": (
        "def body(i):\n    pass",
        "def body(i):\n    pass\nnl.fori_loop(0, 4, body)",
    ),
    "nested-function-return": (
        "def body(i):\n    return i\nnl.fori_loop(0, 4, body)",
        "def body(i):\n    return i\nnl.while_loop(x, body)",
    ),
    "nested-function-parameters": (
        "def body(i, j):\n    pass\nnl.fori_loop(0, 4, body)",
        "def body(i):\n    pass\nnl.fori_loop(lower=0, upper=4, body_fun=body)",
    ),
    "kernel-call": ("kernel(x)", "helper(x)"),
    "unknown-name": ("nisa.tensor_sum(x)", "nisa.reciprocal(x, x)"),
    "unknown-name-member": ("y = nisa.oob_mode.wrap", "y = nisa.oob_mode.skip"),
    "unknown-name-value": ("y = nl.tile_size.rows", "y = nl.tile_size.pmax"),
    "arguments": ("nisa.memset(x)", "nisa.memset(x, 0.0)"),
    "arguments-unknown": ("nisa.memset(x, value=0, fill=1)", "nisa.memset(x, value=0, name='m')"),
    "arguments-twice": ("nisa.dma_copy(x, x, dst=x)", "nisa.dma_copy(x, src=x)"),
    "arguments-method": ("y = x.ap(offset=0)", "y = x.ap([[1, 2]], offset=0)"),
    "removed": ("y = nl.arange(4)", "y = nl.ds(0, 4)"),
    "removed-function": ("nisa.tensor_copy_dynamic_src(x, x)", "nisa.tensor_copy(x, x)"),
    "removed-parameter": (
        "nisa.dma_copy(dst=x, src=x, dst_rmw_op=nl.add)",
        "nisa.dma_compute(dst=x, srcs=[x], reduce_op=nl.add)",
    ),
    "removed-mask": ("nisa.iota(x, [[1, 2]], mask=x)", "nisa.iota(x, [[1, 2]])"),
    "removed-loop": ("for i in nl.dynamic_range(2):\n    pass", "for i in range(2):\n    pass"),
    "removed-on-device": ("y = nl.divide(x, x)", "nisa.tensor_tensor(x, x, x, op=nl.divide)"),
    "enum": (
        "nisa.dma_copy(x, x, oob_mode=1)",
        "nisa.dma_copy(x, x, oob_mode=nisa.oob_mode.skip)",
    ),
    "enum-buffer": ("y = nl.ndarray((1, 2), nl.int32, 'sbuf')", "y = nl.ndarray((1, 2), nl.int32)"),
}
# rule: what it refuses as a module, and what it accepts
MODULES = {
    "import": ("import numpy as np", "import nki.isa"),
    "import-from": ("from nki.typing import tensor", "from nki import isa"),
    "import-legacy": ("import neuronxcc.nki as old", "from nki.language import ndarray"),
    "import-parent": ("from ..contract import PAD_SLOT_ID", "from .masks import cache_mask"),
    "unknown-name": ("from nki.language import range", "from nki.language import affine_range"),
    "module": ("print('loaded')", "'''Docstring.'''"),
    "module-global": ("CACHE = {}", "LOWEST = -3.4028235e38"),
    "class": ("class Tile:\n    pass", "class Tile(NKIObject):\n    size: int = 1"),
    "class-body": (
        "class Tile(NKIObject):\n    for i in range(2):\n        pass",
        "class Tile(NKIObject):\n    def half(self):\n        return self.size // 2",
    ),
    "decorator": (
        "import functools\n@functools.cache\ndef part(x):\n    pass",
        "@nki.jit\ndef part(x):\n    pass",
    ),
    "parameters": ("def part(x, *, y):\n    pass", "def part(x, y=(1, 2)):\n    pass"),
    "parameters-default": ("def part(y=[1]):\n    pass", "def part(y: list[int]):\n    pass"),
    "removed": (
        "@nki.jit(platform_target='trn2')\ndef part(x):\n    pass",
        "@nki.jit\ndef part(x):\n    pass",
    ),
}


def in_kernel(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return (
        f"{HEAD}\ndef helper(x):\n    return x\n\n@nki.jit\ndef kernel(x):\n{lines}    return x\n"
    )


def rules(source: str) -> set[str]:
    return {finding.rule for finding in lint_source(source)}


def rule_of(case: str, names: set[str]) -> str:
    return max((name for name in names if case.startswith(name)), key=len)


RULES = {
    *("statement", "expression", "operator", "builtin", "dictionary", "loop", "with"),
    *("nested-function", "kernel-call", "unknown-name", "arguments", "removed", "enum"),
    *("import", "module", "class", "decorator", "parameters"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_kernel_that_breaks_a_rule_is_refused(case: str) -> None:
    refused, accepted = BODIES[case]

    assert rule_of(case, RULES) in rules(in_kernel(refused))
    assert lint_source(in_kernel(accepted)) == []


@pytest.mark.parametrize("case", MODULES)
def test_a_module_that_breaks_a_rule_is_refused(case: str) -> None:
    refused, accepted = MODULES[case]

    assert rule_of(case, RULES) in rules(HEAD + refused)
    assert lint_source(HEAD + accepted) == []


def test_a_finding_names_file_line_and_rule() -> None:
    source = "import nki.language as nl\n\ny = nl.arange(4)\n"

    (finding,) = lint_source(source, "kernel.py")

    assert str(finding).startswith("kernel.py:3: removed: nki.language.arange: ")


def test_findings_of_files_are_printed_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(in_kernel("pass"))
    bad.write_text(in_kernel("del x"))

    status = main([str(good)]), main([str(good), str(bad)])

    assert status == (0, 1)
    assert capsys.readouterr().out == f"{bad}:13: statement: no delete in a kernel\n"


def test_sources_are_the_kernels_and_what_they_import_beside_them(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(f"from .part import half\n{in_kernel('pass')}")
    (tmp_path / "part.py").write_text("from .deeper import x\n")
    (tmp_path / "deeper.py").write_text("x = 1\n")
    (tmp_path / "host.py").write_text("import json\n")

    found = {path.stem for path in kernel_sources(tmp_path)}

    assert found == {"kernel", "part", "deeper"}


@pytest.mark.parametrize("path", kernel_sources(FOLDER), ids=lambda path: path.stem)
def test_our_kernels_pass(path: Path) -> None:
    assert [str(finding) for finding in lint_file(path)] == []
