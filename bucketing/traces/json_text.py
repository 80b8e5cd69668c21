"""JSON of traces, with errors that people can use."""

from __future__ import annotations

import json
from typing import Any


class NotJson(ValueError):
    """A text is no JSON.

    Attributes:
        line: where, counted from 1; None: not known.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        """Say what is wrong with it."""
        super().__init__(problem)
        self.line = line


def parse_json(data: bytes) -> Any:
    """Return the value of a text.

    Raises:
        NotJson: it has none, or one nested too deep or with a number of too many digits.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise NotJson("is nested too deep") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"is no JSON: {error.msg}, column {error.colno}", error.lineno) from None
    except ValueError:  # Python's own limit, whose text speaks of Python
        raise NotJson("holds a number of too many digits") from None
