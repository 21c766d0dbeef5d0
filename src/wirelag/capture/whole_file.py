"""Files that are written as a whole, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from wirelag.errors import WirelagError


@contextmanager
def whole_file(path: str, mode: str, option: str) -> Iterator[IO[Any]]:
    """A file that is written to its end, or removed; an error names it, and the option that chose it."""
    is_open = is_whole = False
    try:
        with open(path, mode) as file:
            is_open = True
            yield file
        is_whole = True
    except OSError as error:
        raise WirelagError(f"{path}: cannot write ({error.strerror}); choose another file with {option}") from None
    finally:
        if is_open and not is_whole and os.path.isfile(path):  # a device stays
            os.unlink(path)
