"""NKIObject: the base of the classes that kernels may define."""

from __future__ import annotations

import inspect
from typing import Any

from .errors import fail


class NKIObject:
    """Its fields are a class's annotated names and its plain values, as the compiler sees them.

    A field without a default that no argument sets is None. ``@dataclass`` is optional.
    """

    def __init_subclass__(cls) -> None:
        """Annotate the plain values, so that a dataclass has them as fields."""
        annotations = inspect.get_annotations(cls)
        for name, value in list(vars(cls).items()):
            if not (name.startswith("__") or callable(value) or hasattr(value, "__get__")):
                annotations.setdefault(name, Any)
        cls.__annotations__ = annotations

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set the fields, in their order, then call ``__post_init__``."""
        names = [name for base in type(self).__mro__[::-1] for name in _fields(base)]
        given = dict(zip(names, args, strict=False)) | kwargs
        unknown = sorted(set(given) - set(names))
        if unknown or len(args) > len(names):
            fail(f"{type(self).__name__} has no fields {unknown or args[len(names) :]}")
        for name in names:
            setattr(self, name, given[name] if name in given else getattr(self, name, None))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Do nothing; classes may override it."""


def _fields(cls: type) -> list[str]:
    return list(inspect.get_annotations(cls))
