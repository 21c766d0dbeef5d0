"""Flows as a log of Zeek: tab-separated, one connection a line, with its delays in columns of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from wirelag.packets.filters import PROTOCOLS

if TYPE_CHECKING:
    from wirelag.render.flow_records import Delays, FlowRecord

UNSET: Final = "-"
_NAMED: Final = {6: "tcp", 17: "udp", **dict.fromkeys(PROTOCOLS["icmp"], "icmp")}
_LEG: Final = {"samples": "count", **dict.fromkeys(("mean", "min", "max", "mean_low", "mean_high"), "interval")}
FIELDS: Final = {  # the first seven as in conn.log
    "ts": "time",
    "uid": "string",
    "id.orig_h": "addr",
    "id.orig_p": "port",
    "id.resp_h": "addr",
    "id.resp_p": "port",
    "proto": "enum",
    "duration": "interval",
    "pkts": "count",
    "bytes": "count",
    **{f"{leg}_{name}": kind for leg in ("delay", "reverse_delay") for name, kind in _LEG.items()},
}
_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def lines(records: Iterator[FlowRecord]) -> Iterator[str]:
    """The log: its head, and a line for each flow."""
    head = {"set_separator": ",", "empty_field": "(empty)", "unset_field": UNSET, "path": "wirelag"}
    yield "#separator \\x09\n"
    yield from (f"#{name}\t{value}\n" for name, value in head.items())
    yield "\t".join(["#fields", *FIELDS]) + "\n"
    yield "\t".join(["#types", *FIELDS.values()]) + "\n"
    for record in records:
        yield "\t".join(_cells(record)) + "\n"
    yield "#close\n"


def _cells(record: FlowRecord) -> list[str]:
    ends = record.ends
    own = record.packets is not None  # else times are not the flow's own
    length = (record.end_ns or 0) - (record.start_ns or 0) if own else None
    return [
        UNSET if record.start_ns is None else f"{record.start_ns / 1e9:.6f}",
        _uid(record),
        str(ends.client),
        str(ends.client_port),
        str(ends.server),
        str(ends.server_port),
        _NAMED.get(ends.protocol, "unknown_transport"),
        _seconds(None if length is None else length / 1e9),
        *(UNSET if count is None else str(count) for count in (record.packets, record.bytes)),
        *_leg(record.forward),
        *_leg(record.reverse),
    ]


def _leg(delays: Delays | None) -> list[str]:
    if delays is None:
        return [UNSET] * len(_LEG)
    return [str(delays.samples), *(_seconds(value) for value in delays[1:])]


def _seconds(value: float | None) -> str:
    return UNSET if value is None else f"{value:.9f}"


def _uid(record: FlowRecord) -> str:
    """The name of a connection, in Zeek's form; the same capture gives the same names."""
    text = "|".join(map(str, (*record.ends, record.start_ns)))
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=12).digest())
    letters = []
    for _ in range(17):
        number, digit = divmod(number, 62)
        letters.append(_LETTERS[digit])
    return "C" + "".join(letters)
