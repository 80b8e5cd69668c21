"""Registers this target's operators with torch as ``noria_cpu::<name>``.

Torch keeps one table of operators per process, so this happens once, when the module is imported.
Only their shapes are registered: a graph names them, a kernel set's own library runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from . import attention, blocks, elementwise, experts, linear, sampler
from .operators import NAMESPACE, Operator


def _register(operators: Mapping[str, Operator]) -> object:
    library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    for name, operator in operators.items():
        library.define(name + operator.schema)
        torch.library.register_fake(f"{NAMESPACE}::{name}", operator.fake, lib=library)
    return library


OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        operator.name: operator
        for module in (attention, blocks, elementwise, experts, linear, sampler)
        for operator in module.OPERATORS
    }
)
_LIBRARY = _register(OPERATORS)
