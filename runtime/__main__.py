"""``python -m noria.runtime`` is the ``noria`` command."""

from .cli import main

main(prog_name="noria")
