"""Checksums for rows of an older version, which had none: a bit that changes from then on is seen."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from threading import Lock
from typing import Any

from wirelag.collector.pruning import Pruner
from wirelag.collector.sqlite_check import checksum
from wirelag.collector.sqlite_file import UNCHECKED, connected, is_damage
from wirelag.collector.sqlite_reading import Told, result_in


def seal(path: str, turn: Lock, pruner: Pruner, told: Told, table: str, rows: list[tuple[Any, ...]]) -> None:
    """Give rows of the file without a checksum theirs; not if the disk fails, or once `pruner` has ended.

    Whoever writes such a row meanwhile gives it one. `turn`: of those who write.
    """
    if table == "results":
        where, kept = "series = ? and length_ns = ? and start_ns = ?", list[tuple[Any, ...]]()
        for series, segment, key, length_ns, *row in rows:  # one that is impossible was damaged before
            if result_in((segment, key), length_ns, row, told) is not None:
                kept.append((checksum((segment, key, length_ns, *row[:-1])), series, length_ns, row[0]))
    else:
        where, kept = "key = ?", [(checksum(row), row[0]) for *row, _ in rows]
    if not kept:
        return
    with turn:
        if pruner.ended:
            return
        try:
            with closing(connected(path)) as base:
                base.execute("begin immediate")
                base.executemany(f"update {table} set crc = ? where {where} and crc = {UNCHECKED}", kept)
                base.execute("commit")
        except sqlite3.Error as error:
            if is_damage(error):
                raise
            # else the next check tries again


def pause(pruner: Pruner, took_s: float) -> None:
    """Leave the processor to others for as long as a step of the check took."""
    if not pruner.ended:
        time.sleep(took_s)
