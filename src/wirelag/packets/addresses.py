"""Address keys (numbers that stand for addresses), and directions between networks."""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import Filter

Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_ADDRESSES: Final = 12  # the purpose of a coin that only hashes
_SPREAD: Final = np.uint64(0xC2B2AE3D27D4EB4F)


def address_keys(addresses: Words) -> Words:
    """One number per address of the column `src` or `dst`."""
    return _kernels.coins(addresses[:, 0] * _SPREAD + addresses[:, 1], 0, _ADDRESSES)


def pair_keys(source: Words, destination: Words) -> Words:
    """One number per ordered pair of address keys; the two directions differ."""
    return _kernels.coins(source + destination * _SPREAD, 0, _ADDRESSES)


def words_of(packets: PacketBatch) -> tuple[Words, Words]:
    """The words of sources and destinations, one after the other."""
    return np.ascontiguousarray(packets.src).reshape(-1), np.ascontiguousarray(packets.dst).reshape(-1)


class Direction(NamedTuple):
    """Source and destination networks of packets; an empty side matches all addresses."""

    source: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    destination: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Direction:
        """Read `SRC>DST`: addresses or networks, several joined by commas; an empty side means all.

        >>> Direction.parse("10.0.0.0/8>192.0.2.1").destination
        (IPv4Network('192.0.2.1/32'),)
        """
        source, arrow, destination = text.partition(">")
        if not arrow or ">" in destination or not (source.strip() or destination.strip()):
            raise ValueError(
                f"{text!r} is not a direction: write SRC>DST, for example '10.0.0.0/8>192.0.2.1' or '10.1.2.3>'"
            )
        return cls(
            *(
                Filter.parse(nets=tuple(part.split(","))).nets if part.strip() else ()
                for part in (source.strip(), destination.strip())
            )
        )

    def matches(self, source: Words, destination: Words) -> Bools:
        """Mask of the address rows that match this direction."""
        return _within(source, self.source) & _within(destination, self.destination)

    def rows(self, packets: PacketBatch) -> Bools:
        """Mask of the packets that match this direction."""
        return self.matches(packets.src, packets.dst)


def _within(addresses: Words, nets: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]) -> Bools:
    inside = np.full(len(addresses), not nets)
    for high, low, high_mask, low_mask in Filter(nets=nets).kernel_arguments()["nets"]:
        inside |= ((addresses[:, 0] & np.uint64(high_mask)) == np.uint64(high)) & (
            (addresses[:, 1] & np.uint64(low_mask)) == np.uint64(low)
        )
    return inside


def to_one_host(batch: PacketBatch) -> npt.NDArray[np.bool_]:
    """Packets that are not to a group or to all."""
    high, low = batch.dst[:, 0], batch.dst[:, 1]
    version_4 = (high == 0) & (low >> np.uint64(32) == np.uint64(0xFFFF))
    group_4 = (low & np.uint64(0xFFFFFFFF)) >= np.uint64(0xE0000000)  # multicast, reserved, broadcast
    group_6 = high >> np.uint64(56) == np.uint64(0xFF)
    return np.asarray(np.where(version_4, ~group_4, ~group_6))
