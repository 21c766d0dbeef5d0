"""Groups of samples or packets by flow, host, network, port or class. The first seen are kept; the rest is "other"."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import PacketBatch, to_address

By = Literal["flow", "client", "server", "subnet", "port", "prefix", "dscp"]
OTHER: Final = 1  # tag of groups that did not fit; 0 means no group
OTHER_KEY: Final = "other"

Ints = npt.NDArray[Any]


@dataclass(slots=True)
class Grouping:
    """Maps each sample to a group: a small number (its tag) and a key (its name).

    `subnet` is the network of the side that the delay is to; `prefix` is both networks, with the given prefix lengths
    for IPv4 and IPv6. Packets of one direction are grouped as samples of leg 1: their source is the client.
    """

    by: By
    ipv4_prefix: int = 24
    ipv6_prefix: int = 48
    most: int = 1000
    keys: dict[int, str] = field(default_factory=lambda: {OTHER: OTHER_KEY})
    _tags: dict[tuple[int, ...], int] = field(default_factory=dict)

    def tags(self, packets: PacketBatch, rows: Ints, legs: Ints) -> Ints:
        """The tag of each sample, from the row of its response and its leg."""
        columns = self._columns(packets, rows, legs)
        distinct, first, inverse = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        found = np.empty(len(distinct), np.int64)
        for i in np.argsort(first):  # in order of appearance, so that the split into batches does not matter
            key = tuple(distinct[i].tolist())
            tag = self._tags.get(key)
            if tag is None and len(self._tags) < self.most:
                tag = self._tags[key] = len(self._tags) + OTHER + 1
                self.keys[tag] = self._text(packets, int(rows[first[i]]), int(legs[first[i]]), key)
            found[i] = OTHER if tag is None else tag
        return found[inverse.reshape(-1)]

    def distinct(self, packets: PacketBatch) -> tuple[Ints, Ints]:
        """One row per group, and the group of each row, for any number of groups. Assigns no tags."""
        rows = np.arange(len(packets))
        columns = self._columns(packets, rows, np.ones(len(rows), np.uint8))
        _, first, inverse = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        return first, inverse.reshape(-1)

    def _columns(self, packets: PacketBatch, rows: Ints, legs: Ints) -> Ints:
        """The values that distinguish groups: one row per sample."""
        if self.by == "flow":
            return packets.flow_key[rows].reshape(-1, 1)
        if self.by == "dscp":
            return packets.dscp[rows].reshape(-1, 1)
        if self.by == "prefix":
            return np.column_stack((self._subnets(packets.src[rows]), self._subnets(packets.dst[rows])))
        # A response comes from the side that the delay is to.
        from_server = (legs == 0).reshape(-1, 1)
        if self.by == "port":
            return np.where(from_server[:, 0], packets.src_port[rows], packets.dst_port[rows]).reshape(-1, 1)
        if self.by == "server":
            return np.where(from_server, packets.src[rows], packets.dst[rows])
        if self.by == "client":
            return np.where(from_server, packets.dst[rows], packets.src[rows])
        return self._subnets(packets.src[rows])

    def _subnets(self, addresses: npt.NDArray[np.uint64]) -> Ints:
        high, low = addresses[:, 0], addresses[:, 1]
        ipv4 = (high == 0) & (low >> np.uint64(32) == 0xFFFF)
        mask4 = np.uint64(2**64 - 2 ** (32 - self.ipv4_prefix))
        mask6 = 2**128 - 2 ** (128 - self.ipv6_prefix)
        mask6_high, mask6_low = np.uint64(mask6 >> 64), np.uint64(mask6 & 2**64 - 1)
        return np.column_stack((np.where(ipv4, high, high & mask6_high), np.where(ipv4, low & mask4, low & mask6_low)))

    def _text(self, packets: PacketBatch, row: int, leg: int, key: tuple[int, ...]) -> str:
        if self.by == "port":
            return str(key[0])
        if self.by in ("client", "server"):
            return str(to_address(*key))
        if self.by == "dscp":
            return f"dscp {key[0]}"
        if self.by == "subnet":
            return self._network(*key)
        if self.by == "prefix":
            return f"{self._network(*key[:2])} > {self._network(*key[2:])}"
        ends = [
            _end(packets.address(column, row), int(ports[row]))
            for column, ports in ((packets.src, packets.src_port), (packets.dst, packets.dst_port))
        ]
        client, server = ends if leg else reversed(ends)
        return f"{client} > {server}"

    def _network(self, high: int, low: int) -> str:
        address = to_address(high, low)
        prefix = self.ipv4_prefix if address.version == 4 else self.ipv6_prefix
        return str(ipaddress.ip_network((address, prefix), strict=False))


def _end(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    if not port:
        return str(address)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
