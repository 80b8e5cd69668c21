"""Opens texts of users, compressed or not, which their first bytes tell and not their name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from .errors import NoriaError

_GZIP = b"\x1f\x8b"
GZIP_SUFFIX = ".gz"


@contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """Open the bytes of a text, decompressed if they are gzip.

    Raises:
        OSError: it cannot be opened or read.
        NoriaError: while it is read: it is gzip, but damaged or cut short.
    """
    with path.open("rb") as file:
        is_gzip = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not is_gzip:
            yield file
            return
        try:
            with gzip.open(file) as stream:
                yield cast("IO[bytes]", stream)
        except EOFError:
            raise NoriaError(f"{path}: the gzip file is cut short") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise NoriaError(f"{path}: the gzip file is damaged: {error}") from None


def text_suffix(path: Path) -> str:
    """Return the suffix that tells the format of a text, in lower case.

    >>> text_suffix(Path("a/Prompts.JSONL.gz"))
    '.jsonl'
    """
    is_compressed = path.suffix.lower() == GZIP_SUFFIX
    return (path.with_suffix("") if is_compressed else path).suffix.lower()
