"""The ``noria`` command. Its modules import torch only inside the commands that run a model."""

from .group import main

__all__ = ["main"]
