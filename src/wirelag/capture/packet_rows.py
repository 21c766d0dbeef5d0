"""Packets seen at two points, and exchanges of requests and responses, as columns for `RowFile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wirelag.capture.sample_file import address_texts
from wirelag.capture.table import Coded, Table
from wirelag.packets.batch import Array
from wirelag.packets.frames import BITS, NUMBER, Frames
from wirelag.synopses.cache import Crossed
from wirelag.synopses.request_response import EXCHANGE, FLAGS, NOT_SINGLE

if TYPE_CHECKING:
    import polars as pl

_PROTOCOLS: Final = {6: "tcp", 17: "udp", 1: "icmp", 58: "icmpv6", 50: "esp", 132: "sctp"}


class PacketDelays:
    """One-way delays in memory, 120 bytes each.

    `upstream_ns` and `downstream_ns` are the times at each point, on the upstream clock; `delay_ns` is their
    difference, as the report has it. `source`, `destination`, ports and `protocol` are those upstream. A packet is
    `upstream_number` in the file `upstream_capture`, and the same downstream. Each represents `weight` packets.
    """

    def __init__(self, up: Frames, down: Frames) -> None:
        self.rows = 0
        self._up, self._down = up, down
        self._batches: list[Crossed] = []

    def add(self, crossed: Crossed) -> None:
        """Keep packets."""
        self._batches.append(crossed)
        self.rows += len(crossed.delays_ns)

    def clear(self) -> None:
        """Forget the packets."""
        self._batches, self.rows = [], 0

    def to_polars(self) -> pl.DataFrame:
        """A row for each packet."""
        return self.table().to_polars()

    def table(self) -> Table:
        """A row for each packet."""
        if not self._batches:
            return Table(_PACKET, dict.fromkeys(_PACKET, ()))
        sent_ns, delays_ns, up, down = (
            np.concatenate([getattr(one, name) for one in self._batches])
            for name in ("sent_ns", "delays_ns", "up_about", "down_about")
        )
        weights = [np.full(len(one.delays_ns), one.stands_for, np.int64) for one in self._batches]
        return Table(
            _PACKET,
            {
                "upstream_ns": sent_ns,
                "downstream_ns": sent_ns + delays_ns,
                "delay_ns": delays_ns,
                **_ends(up[:, 1:], ("source", "destination")),
                **_places(up[:, 0], self._up, "upstream"),
                **_places(down[:, 0], self._down, "downstream"),
                "weight": np.concatenate(weights),
            },
        )


class ExchangeRows:
    """Exchanges in memory, 144 bytes each.

    `begin_ns` and `request_ns` are the first and the last packet of the request, `first_ns` and `response_ns` those of
    the response; `delay_ns` is the response time, from `request_ns` to `response_ns`. `request_number` is the number of
    the request's first packet in `request_capture`, `response_number` that of the response's last packet.
    `excluded` says why an exchange is in no figure; null where it is. Several reasons are joined by `+`.
    """

    def __init__(self, frames: Frames) -> None:
        self.rows = 0
        self._frames = frames
        self._batches: list[Array] = []

    def add(self, rows: Array) -> None:
        """Keep exchanges."""
        self._batches.append(rows)
        self.rows += len(rows)

    def clear(self) -> None:
        """Forget the exchanges."""
        self._batches, self.rows = [], 0

    def to_polars(self) -> pl.DataFrame:
        """A row for each exchange."""
        return self.table().to_polars()

    def table(self) -> Table:
        """A row for each exchange."""
        rows = np.concatenate([np.empty(0, EXCHANGE), *self._batches])
        if not len(rows):
            return Table(_EXCHANGE, dict.fromkeys(_EXCHANGE, ()))
        flags, place = np.unique(rows["flags"] & NOT_SINGLE, return_inverse=True)
        why = [_reasons(flag) for flag in flags.tolist()]
        return Table(
            _EXCHANGE,
            {
                "begin_ns": rows["begin_ns"],
                "request_ns": rows["request_ns"],
                "first_ns": rows["first_ns"],
                "response_ns": rows["last_ns"],
                "delay_ns": rows["last_ns"] - rows["request_ns"],
                **_ends(rows["ends"], ("client", "server")),
                **_places(np.ascontiguousarray(rows["begin_frame"]), self._frames, "request"),
                **_places(np.ascontiguousarray(rows["last_frame"]), self._frames, "response"),
                "request_bytes": rows["request_bytes"].astype(np.int64),
                "response_bytes": rows["response_bytes"].astype(np.int64),
                "retransmitted": (rows["flags"] & np.uint64(FLAGS["retransmitted"])) != 0,
                "excluded": Coded(why, place.reshape(-1)),
            },
        )


def _reasons(flags: int) -> str | None:
    return "+".join(name for name, flag in FLAGS.items() if flags & flag) or None


def _ends(words: Array, names: tuple[str, str]) -> dict[str, Any]:
    """Addresses, ports and protocol from five words each."""
    ports = words[:, 4]
    known, place = np.unique(ports & np.uint64(0xFF), return_inverse=True)
    protocols = [_PROTOCOLS.get(number, str(number)) for number in known.tolist()]
    return {
        names[0]: address_texts(words[:, 0:2]),
        names[1]: address_texts(words[:, 2:4]),
        f"{names[0]}_port": (ports >> np.uint64(32)).astype(np.uint16),
        f"{names[1]}_port": (ports >> np.uint64(16)).astype(np.uint16),
        "protocol": Coded(protocols, place.reshape(-1)),
    }


def _places(places: Array, frames: Frames, name: str) -> dict[str, Any]:
    return {
        f"{name}_capture": Coded(frames.captures or [""], (places >> np.uint64(BITS)).astype(np.int64)),
        f"{name}_number": (places & np.uint64(NUMBER)).astype(np.int64),
    }


def _schema(times: tuple[str, ...], ends: tuple[str, str], places: tuple[str, str]) -> dict[str, str]:
    schema = dict.fromkeys(times, "Int64")
    schema |= dict.fromkeys(ends, "String") | {f"{end}_port": "UInt16" for end in ends} | {"protocol": "String"}
    for place in places:
        schema |= {f"{place}_capture": "String", f"{place}_number": "Int64"}
    return schema


_PACKET: Final = {
    **_schema(("upstream_ns", "downstream_ns", "delay_ns"), ("source", "destination"), ("upstream", "downstream")),
    "weight": "Int64",
}
_EXCHANGE: Final = {
    **_schema(
        ("begin_ns", "request_ns", "first_ns", "response_ns", "delay_ns"),
        ("client", "server"),
        ("request", "response"),
    ),
    "request_bytes": "Int64",
    "response_bytes": "Int64",
    "retransmitted": "Boolean",
    "excluded": "String",
}
