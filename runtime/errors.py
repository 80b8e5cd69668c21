"""Errors that a user can cause.

NoriaError
    ConfigError     a setting is wrong; names its path, value and what would fit
    ModelError      a model's configuration, weights or tokenizer do not fit
    BackendError    a target cannot run here
    RequestError    one request can never run; others are unaffected
    SetError        a compiled set does not fit, cannot be read or cannot be written
        DamagedFile     a file of it is missing, or not what was written
        ForeignFile     a file of its name has never been one of it
"""

from __future__ import annotations

PANIC = "PanicException"
"""Name of what libraries in Rust raise where they break; it is no Exception, and not importable."""


class NoriaError(ValueError):
    """Base of the errors that a user can cause; its text is one line for the user."""


class ConfigError(NoriaError):
    """A setting is unknown, of the wrong type or impossible."""


class ModelError(NoriaError):
    """A model's configuration, weights or tokenizer are missing or do not fit."""


class BackendError(NoriaError):
    """A target cannot run on this machine."""


class RequestError(NoriaError):
    """A request is invalid or larger than the engine can ever run."""


class SetError(NoriaError):
    """A compiled set is of another format or key, or cannot be read or written."""


class DamagedFile(SetError):
    """A file of a compiled set is missing, cut short or changed."""


class ForeignFile(SetError):
    """What has the name of a set's file looks like something else."""


def is_fault(error: BaseException) -> bool:
    """Tell whether work failed, as opposed to somebody stopping the process."""
    return isinstance(error, Exception) or type(error).__name__ == PANIC


def fault_text(error: BaseException) -> str:
    """Return one line that says what failed, and how."""
    return " ".join(f"{type(error).__name__}: {error}".split())
