"""Captures that are not on this machine: s3://bucket/key, gs://..., https://..., sftp://host/path, by fsspec.

A scheme needs its own package beside the extra `scale` (s3fs, gcsfs, aiohttp, paramiko). Credentials come from where
that package finds them: the environment, a file of the user, the machine's role. Nothing is read that nobody asks for:
bytes are fetched in blocks of 8 MiB, in order.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

from wirelag.capture.streams import is_remote
from wirelag.errors import MissingExtraError, WirelagError

T = TypeVar("T")

BLOCK: Final = 8 << 20
_NO_PARTS: Final = "its server does not give parts of files (HTTP ranges): copy it here, or use one that does, as nginx"


def matching(pattern: str) -> list[str]:
    """The names that match a pattern, in order; a name without a wildcard stands for itself."""

    def listed(system: Any, path: str) -> list[str]:
        before = pattern.removesuffix(path)  # the scheme; for hosts with files, as sftp, also the host
        return sorted(found if found.startswith(before) else before + found for found in system.glob(path))

    return _asked(pattern, listed) if re.search(r"[*?\[]", pattern) else [pattern]


def size_of(path: str) -> int:
    """How many bytes it has."""
    return _asked(path, lambda system, name: int(system.size(name)))


def stamp_of(path: str) -> str:
    """What changes whenever the file does; empty if that is not known."""
    import os

    try:
        if not is_remote(path):
            found = os.stat(path)
            return f"{found.st_size} {found.st_mtime_ns}"
        about = _asked(path, lambda system, name: dict(system.info(name)))
    except (OSError, WirelagError):
        return ""
    marks = (str(about.get(name)) for name in ("ETag", "etag", "LastModified", "mtime") if about.get(name))
    return f"{about.get('size')} {next(marks, '')}"


def open_remote(path: str) -> RemoteFile:
    """Open it for reading."""

    def opened(system: Any, name: str) -> RemoteFile:
        file = system.open(name, "rb", block_size=BLOCK, cache_type="readahead")
        return RemoteFile(path, file, int(getattr(file, "size", None) or system.size(name)))

    return _asked(path, opened)


class RemoteFile(io.RawIOBase):
    """A file elsewhere, as a raw file; what fails while it is read is an OSError."""

    def __init__(self, path: str, file: Any, size: int) -> None:
        self.name, self.size = path, size
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of the buffer."""
        try:
            data = self._file.read(len(buffer))
        except Exception as error:  # each file system raises its own
            raise OSError(5, _NO_PARTS if "range requests" in str(error) else _one_line(error)) from None
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)  # that of sftp returns nothing
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _asked(path: str, ask: Callable[[Any, str], T]) -> T:
    """What a file system says; its errors as one line each."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError(path, "the extra scale", "scale") from None
    try:
        system, name = fsspec.core.url_to_fs(path)
        return ask(system, name)
    except ImportError as error:
        raise WirelagError(f"{path}: {_one_line(error)}") from None
    except FileNotFoundError as error:
        why = error.__cause__  # that of HTTP says so whatever failed: refused, forbidden, no such host
        if why is None or isinstance(why, FileNotFoundError) or getattr(why, "status", None) == HTTPStatus.NOT_FOUND:
            raise WirelagError(f"{path}: there is no such file") from None
        raise WirelagError(f"{path}: cannot be opened ({_one_line(why)})") from None
    except PermissionError:
        raise WirelagError(f"{path}: permission denied; check the credentials of {path.split(':')[0]}") from None
    except Exception as error:  # each file system raises its own
        raise WirelagError(f"{path}: cannot be opened ({_one_line(error)})") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
