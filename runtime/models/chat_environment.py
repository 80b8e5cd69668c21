"""The Jinja environment of chat templates: a sandbox, with the functions of Hugging Face's.

A template comes with a model and is a program. It cannot leave the sandbox, change its input or run
for ever: loop items and calls are counted.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
CALL_STEPS = 10
"""A call takes about as long as this many loop items."""
STEPS = "steps left"
"""Variable with the rendering's budget: no name that a template could write."""


class StepBudget:
    """Counts the steps of one rendering."""

    def __init__(self, num_steps: int = MAX_STEPS) -> None:
        """Allow ``num_steps``."""
        self.num_steps = self.num_left = num_steps

    def spend(self, num_steps: int) -> None:
        """Count steps.

        Raises:
            TemplateError: there were too many.
        """
        self.num_left -= num_steps
        if self.num_left < 0:
            raise jinja2.TemplateError(
                f"takes more than {self.num_steps} steps; is a loop endless?"
            )


class CountedLoops(CodeGenerator):
    """Compiles ``{% for x in items %}`` as ``{% for x in items | counted %}``."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Compile a template whose loops are counted."""
        for loop in node.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter, "counted", [], [], None, None, lineno=loop.lineno
            ).set_environment(self.environment)
        super().visit_Template(node, frame)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; each rendering needs a variable ``STEPS`` with its budget."""

    code_generator_class = CountedLoops

    def __init__(self) -> None:
        """Have what Hugging Face's templates use."""
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
        )
        self.filters["counted"] = _counted
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _strftime_now

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        context[STEPS].spend(CALL_STEPS)
        return super().call(context, obj, *args, **kwargs)


class GenerationBlock(Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 prescribes

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _counted(context: Context, items: Iterable[object]) -> Iterator[object]:
    budget: StepBudget = context[STEPS]
    for item in items:
        budget.spend(1)
        yield item


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Write JSON as it is: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
