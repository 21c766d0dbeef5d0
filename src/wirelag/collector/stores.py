"""Which store a collector uses, and that nobody else writes to it unless they share.

Law: a file has one writer, which holds a lock beside it; the lock ends with the process. A database locks by itself.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from wirelag.collector.settings import Settings
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.sqlite_file import passes
from wirelag.collector.store import Store, StoreUnavailable, is_postgres
from wirelag.errors import WirelagError


def opened(settings: Settings, stack: ExitStack, name: str, session: str) -> Store:
    """The store of these settings; `stack` keeps its lock. `name` and `session` are as in postgres.py."""
    if is_postgres(settings.store):
        from wirelag.collector.postgres import PostgresStore

        return PostgresStore(settings.store, settings.retention, name, session)
    stack.enter_context(alone(settings.store))
    return SqliteStore(settings.store, settings.retention)


def name_of(host: str, port: int) -> str:
    """A name for this process: one word of a subject, and new with every start."""
    return f"wirelag-{re.sub('[^A-Za-z0-9-]', '-', host)[:30]}-{port}-{secrets.token_hex(4)}"


def shown(store: str) -> str:
    """A store without secrets."""
    if not is_postgres(store):
        return store
    from wirelag.collector.postgres_tables import shown

    return shown(store)


@contextmanager
def alone(store: str) -> Iterator[None]:
    """Lock the store against other collectors; the lock ends with the process."""
    path = f"{store}.lock"
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        kind = StoreUnavailable if passes(error, path) else WirelagError
        raise kind(f"{path}: cannot be written ({error.strerror}); name another store with --store") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.read(file, 20).decode(errors="replace").strip()
            raise WirelagError(
                f"{store}: another collector (process {who}) writes to it; stop it, or name another store with --store"
            ) from None
        with suppress(OSError):  # the disk is full: the lock holds all the same
            os.truncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        yield
    finally:
        os.close(file)


def holder(store: str) -> str | None:
    """The process of the collector that has locked the store; None if there is none."""
    try:
        file = os.open(f"{store}.lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.read(file, 20).decode(errors="replace").strip()
    finally:
        os.close(file)
    return None
