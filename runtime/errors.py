"""Errors that a user can cause.

NoriaError
    ConfigError     a setting is wrong; names its path, value and what would fit
    ModelError      a model's configuration, weights or tokenizer do not fit
    BackendError    a target cannot run here
    RequestError    one request can never run; others are unaffected
"""

from __future__ import annotations


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
