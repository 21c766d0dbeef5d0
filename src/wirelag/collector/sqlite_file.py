"""The file of the store: its tables, its version, and how an older one is brought up to date.

Laws. `version_of` reads, and changes nothing. Before an older file is changed it is copied to `FILE.version1` (its
version); the change is one transaction. A newer file is refused and stays as it is. Results and messages carry a
checksum (sqlite_check.py); those of version 2 and before get theirs from the first check, beside the work. Version 4
has `blocks`, into which results go once they are settled (sqlite_packing.py).
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from wirelag.collector.columns import COLUMNS, LATER
from wirelag.collector.store import StoreUnavailable
from wirelag.errors import WirelagError

VERSION: Final = 4  # raised with every change of a table: a program that does not know it must not write
UNCHECKED: Final = -1  # the checksum of rows that older versions wrote, until the first check; without any: damaged
_BLOCKS: Final = """
create table blocks (series integer not null, length_ns integer not null, start_ns integer not null,
    count integer not null, body blob not null, crc integer, primary key (series, length_ns, start_ns)) without rowid;
"""
_SCHEMA: Final = f"""
create table series (id integer primary key, segment text not null, class text not null, unique (segment, class));
create table results (series integer not null, length_ns integer not null, start_ns integer not null,
    rank integer not null, {", ".join(COLUMNS)}, crc integer,
    primary key (series, length_ns, start_ns)) without rowid;
create table stale (length_ns integer not null, start_ns integer not null, series integer not null,
    primary key (length_ns, start_ns, series)) without rowid;
create table messages (key text primary key, point text not null, start_ns integer not null,
    arrived_ns integer not null, body blob not null, bytes integer not null default 0, crc integer) without rowid;
create index messages_by_place on messages (start_ns, point, bytes);
create table agents (point text primary key, said text not null) without rowid;
create table changes (at_ns integer primary key, said text not null);
create table facts (name text primary key, value text not null) without rowid;
{_BLOCKS}"""
_HEADER: Final = b"SQLite format 3\0"
_VERSION_AT: Final = 60  # of the header, 4 bytes (SQLite's file format, 1.3)
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PASSING: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY}
_PASSING_ERRNO: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def version_of(path: str) -> int | None:
    """The version of a file, or None if it is new; a WirelagError if no collector of this version can use it."""
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WirelagError(f"{path}: cannot read the collector's store ({error.strerror})") from None
    if not header:
        return None
    version = int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4])
    if not header.startswith(_HEADER) or version == 0:
        raise WirelagError(f"{path}: not a database of wirelag; name another file")
    return _known(path, version)


def opened(path: str) -> sqlite3.Connection:
    """A connection to a file of this version; a new file is made, an older one copied and brought up to date.

    The error of a store whose tables cannot be found is passed on.
    """
    try:
        if not Path(path).exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        base = connected(path)
        try:
            (version,) = base.execute("pragma user_version").fetchone()
            if version == 0:
                _create(base, path)
            elif _known(path, version) < VERSION:
                _copy(base, f"{path}.version{version}")
                _update(base, version)
        except BaseException:
            base.close()
            raise
        return base
    except (OSError, sqlite3.Error) as error:
        if is_damage(error) and _is_store(path):
            raise
        raise cannot_open(path, error) from None


def cannot_open(path: str, error: Exception) -> WirelagError:
    """The error of a file that cannot be the store, or not now."""
    if passes(error, path):
        return StoreUnavailable(f"{path}: cannot open it as the collector's store now ({error}); still trying")
    return WirelagError(f"{path}: cannot open it as the collector's store ({error}); name another file")


def connected(path: str, mode: str = "rw") -> sqlite3.Connection:
    """A connection that commits to disk; with the mode `ro` one that only reads."""
    name = f"{Path(path).absolute().as_uri()}?mode={mode}"
    base = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False, timeout=10.0)
    base.text_factory = as_text
    base.execute("pragma synchronous = full")
    base.execute("pragma journal_size_limit = 67108864")
    return base


def is_damage(error: Exception) -> bool:
    """Whether an error means that the file itself is damaged."""
    return isinstance(error, sqlite3.Error) and _code(error) in _DAMAGED


def passes(error: Exception, path: str) -> bool:
    """Whether an error may pass by itself: a full disk, a file system that is read-only for now, no descriptors."""
    if isinstance(error, sqlite3.Error):
        cannot_open = _code(error) == sqlite3.SQLITE_CANTOPEN and Path(path).is_file()  # its journal cannot be made
        return _code(error) in _PASSING or cannot_open
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNO


# ---- steps ----


def _known(path: str, version: int) -> int:
    if not 0 < version <= VERSION:
        raise WirelagError(
            f"{path}: has store version {version}, this wirelag writes {VERSION}; "
            f"use a newer wirelag, or name another file"
        )
    return version


def _is_store(path: str) -> bool:
    """Whether a file is one of wirelag, by its header."""
    with suppress(WirelagError):
        return version_of(path) is not None
    return False


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _create(base: sqlite3.Connection, path: str) -> None:
    if base.execute("select count(*) from sqlite_master").fetchone()[0]:
        raise WirelagError(f"{path}: not a database of wirelag; name another file")
    base.execute("pragma auto_vacuum = incremental")
    base.executescript(f"pragma journal_mode = wal; begin; {_SCHEMA} pragma user_version = {VERSION}; commit;")
    base.execute("pragma wal_checkpoint(truncate)")  # so that the header has the version


def _copy(base: sqlite3.Connection, path: str) -> None:
    """Copy a file before it is changed: whole under its name, or not at all."""
    unfinished = f"{path}.unfinished"
    Path(unfinished).unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(unfinished)) as copy:
            base.backup(copy)
            copy.execute("pragma journal_mode = delete")
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    sync_folder(path)


def _update(base: sqlite3.Connection, version: int) -> None:
    """From an older version to this one."""
    base.execute("begin immediate")
    try:
        if version == 1:
            _to_version2(base)
        for table in ("results", "messages") if version <= 2 else ():
            base.execute(f"alter table {table} add column crc integer default {UNCHECKED}")
        base.execute(_BLOCKS)
        base.execute(f"pragma user_version = {VERSION}")
        base.execute("commit")
    except BaseException:
        base.execute("rollback")
        raise
    base.execute("pragma wal_checkpoint(truncate)")


def _to_version2(base: sqlite3.Connection) -> None:
    there = {row[1] for row in base.execute("pragma table_info(results)")}
    for name in LATER:
        if name not in there:
            base.execute(f"alter table results add column {name} default 0")
    base.execute("create table if not exists changes (at_ns integer primary key, said text not null)")
    base.execute("create table facts (name text primary key, value text not null) without rowid")
    base.execute("alter table messages add column bytes integer not null default 0")
    base.execute("update messages set bytes = length(body)")
    base.execute("drop index messages_by_place")
    base.execute("create index messages_by_place on messages (start_ns, point, bytes)")


def as_text(data: bytes) -> str:
    """Text as it is stored; a flipped bit must not stop reading."""
    return data.decode(errors="replace")


def sync_folder(path: str) -> None:
    """Flush what the folder of a file has on disk: names."""
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
