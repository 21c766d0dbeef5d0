"""The stores that tests of the store run on."""

from collections.abc import Callable

from wirelag.collector.postgres import PostgresStore
from wirelag.collector.sqlite import SqliteStore

AnyStore = SqliteStore | PostgresStore
Open = Callable[..., AnyStore]  # opens one again, with this retention
