"""Groups of samples or packets by flow, host, network, port or class: what tells them apart, and their names.

`tags` numbers the first `most` groups seen, for meters of which each class has its own; the rest is "other". Where
intervals follow each other, `revise` makes room for the groups with the most packets, so that many small ones hide none
of them for long. Delays by group are in `synopses/group_delays.py`, which keeps the groups that matter.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from wirelag.packets.address import to_address
from wirelag.packets.heaviest import Heaviest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.packets.batch import PacketBatch

    Ints: TypeAlias = npt.NDArray[Any]

By = Literal["flow", "client", "server", "subnet", "port", "prefix", "dscp"]
OTHER: Final = 1  # tag of groups that did not fit; 0 means no group
OTHER_KEY: Final = "other"
_OF_SAMPLES: Final = ("flow", "client", "server", "subnet", "port")  # as the kernel numbers them, from 1 on
_FLOW_WORDS: Final = 6  # of a flow's key, client, server, protocol and ports
PING: Final = 1 << 63  # in place of ports: the rest is an identifier


def kept_of(most: int) -> int:
    """How many groups stay known when others come: the rest of the room is left for these."""
    return max(1, 3 * most // 4)


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
    _numbered: int = OTHER
    _others: Heaviest | None = None  # those that have no tag, where `revise` is called

    def tags(self, packets: PacketBatch, rows: Ints, legs: Ints) -> Ints:
        """The tag of each sample, from the row of its response and its leg."""
        import numpy as np

        words = self.words(packets, rows, legs)
        distinct, first, inverse = self._unique(words)
        found = np.empty(len(distinct), np.int64)
        counts = np.bincount(inverse, minlength=len(distinct)) if self._others is not None else found
        for i in np.argsort(first):  # in order of appearance, so that the split into batches does not matter
            key = tuple(distinct[i].tolist())
            tag = self._tags.get(key)
            if tag is None and len(self._tags) < self.most:
                tag = self._number(key)
            if tag is not None and tag not in self.keys:
                self.keys[tag] = self.name(words[first[i]].tolist())
            if tag is None and self._others is not None:
                self._others.add(key, tuple(words[first[i]].tolist()), int(counts[i]))
            found[i] = OTHER if tag is None else tag
        return found[inverse]

    def _number(self, key: tuple[int, ...]) -> int:
        self._numbered += 1
        self._tags[key] = self._numbered
        return self._numbered

    def keep(self, words: Sequence[int]) -> None:
        """Number a group before its packets come: the first of them names it, in its direction."""
        if (key := tuple(words[: self.key_words])) not in self._tags:
            self._number(key)

    # ---- intervals that follow each other ----

    def watch_others(self) -> None:
        """Count the packets of groups without a tag, in bounded memory, from now on."""
        self._others = Heaviest(self.most)

    @property
    def tagged(self) -> frozenset[int]:
        """The tags in use."""
        return frozenset(self._tags.values())

    @property
    def known(self) -> frozenset[int] | None:
        """The same, if some groups have none; None: all have one."""
        return self.tagged if self._others else None

    def revise(self, packets: Mapping[int, int]) -> None:
        """If some groups had no tag: the ones with the most packets have one from now on. `packets`: by tag.

        A quarter of the tags is left for groups that come.
        """
        others, counted = self._others, {tag: key for key, tag in self._tags.items()}
        if not others:
            return
        ranked = [(packets.get(tag, 0), key, ()) for tag, key in counted.items()] + others.heaviest()
        before, self._tags = self._tags, {}
        names = dict(self.keys)
        for _, key, words in sorted(ranked, key=lambda one: -one[0])[: kept_of(self.most)]:
            if key in before:
                self._tags[key] = before[key]
            else:
                names[self._number(key)] = self.name(words)
        recent = list(names)[-4 * self.most :]  # what was cut before still has these names
        self.keys = {tag: names[tag] for tag in (OTHER, *recent, *self._tags.values()) if tag in names}
        self.watch_others()

    def add(self, packets: PacketBatch, rows: Ints, legs: Ints, delays_ns: Ints, weights: Ints | None = None) -> Ints:
        """The tag of each sample. Delays are not kept here: see `GroupDelays`."""
        return self.tags(packets, rows, legs)

    def distinct(self, packets: PacketBatch) -> tuple[Ints, Ints]:
        """One row per group, and the group of each row, for any number of groups. Assigns no tags."""
        import numpy as np

        rows = np.arange(len(packets))
        _, first, inverse = self._unique(self.words(packets, rows, np.ones(len(rows), np.uint8)))
        return first, inverse

    @property
    def key_words(self) -> int:
        """How many words of a row of `words` tell groups apart; the others only belong to the name."""
        return {"client": 2, "server": 2, "subnet": 2, "prefix": 4}.get(self.by, 1)

    @property
    def name_words(self) -> int:
        """How many words a row of `words` has: for most groups, the key is the name."""
        return _FLOW_WORDS if self.by == "flow" else self.key_words

    @property
    def as_numbers(self) -> tuple[int, int, int, int, tuple[int, int]]:
        """What a kernel needs to find the words (kernels/group_words.h), for groups of samples."""
        mask4, *mask6 = self._masks
        return 1 + _OF_SAMPLES.index(self.by), self.name_words, self.key_words, mask4, (mask6[0], mask6[1])

    def _unique(self, words: Ints) -> tuple[Ints, Ints, Ints]:
        """Distinct keys, the first row of each, and the key of each row."""
        import numpy as np

        keys = words[:, : self.key_words]
        distinct, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return distinct, first, inverse.reshape(-1)

    def words(self, packets: PacketBatch, rows: Ints, legs: Ints) -> Ints:
        """What `name` needs, one row of `name_words` per sample: first the key, which tells groups apart."""
        import numpy as np

        from wirelag.packets.batch import Kind

        from_server = legs == 0  # a response comes from the side that the delay is to
        if self.by == "server":
            return self._side(packets.src, packets.dst, rows, from_server)
        if self.by == "client":
            return self._side(packets.dst, packets.src, rows, from_server)
        if self.by == "subnet":
            return self._subnets(packets.src[rows])
        found = np.empty((len(rows), self.name_words), np.uint64)
        if self.by == "flow":
            found[:, 0] = packets.flow_key[rows]
            found[:, 1:3] = self._side(packets.dst, packets.src, rows, from_server)
            found[:, 3:5] = self._side(packets.src, packets.dst, rows, from_server)
            client, server = (
                np.where(from_server, one[rows], other[rows]).astype(np.uint64)
                for one, other in ((packets.dst_port, packets.src_port), (packets.src_port, packets.dst_port))
            )
            found[:, 5] = _protocols(packets)[rows] << np.uint64(32) | client << np.uint64(16) | server
            if (pings := np.flatnonzero(packets.kind[rows] == Kind.ICMP)).size:  # they have an identifier, and no ports
                found[pings, 5] = np.uint64(PING) | packets.transaction[rows[pings]]
        elif self.by == "dscp":
            found[:, 0] = packets.dscp[rows]
        elif self.by == "prefix":
            found[:, :2], found[:, 2:4] = self._subnets(packets.src[rows]), self._subnets(packets.dst[rows])
        else:
            found[:, 0] = np.where(from_server, packets.src_port[rows], packets.dst_port[rows])
        return found

    @staticmethod
    def _side(one: Ints, other: Ints, rows: Ints, chosen: Ints) -> Ints:
        import numpy as np

        return np.where(chosen.reshape(-1, 1), one[rows], other[rows])

    def _subnets(self, addresses: npt.NDArray[np.uint64]) -> Ints:
        import numpy as np

        high, low = addresses[:, 0], addresses[:, 1]
        ipv4 = (high == 0) & (low >> np.uint64(32) == 0xFFFF)
        mask4, mask6_high, mask6_low = map(np.uint64, self._masks)
        return np.column_stack((np.where(ipv4, high, high & mask6_high), np.where(ipv4, low & mask4, low & mask6_low)))

    @property
    def _masks(self) -> tuple[int, int, int]:
        """Of the lower word of IPv4 networks, and of both words of IPv6 networks."""
        mask6 = 2**128 - 2 ** (128 - self.ipv6_prefix)
        return 2**64 - 2 ** (32 - self.ipv4_prefix), mask6 >> 64, mask6 & 2**64 - 1

    def name(self, words: Sequence[int]) -> str:
        """The name of a group, from its row of `words`."""
        if self.by == "port":
            return str(words[0]) if words[0] else "no port"
        if self.by in ("client", "server"):
            return str(to_address(*words[:2]))
        if self.by == "dscp":
            return f"dscp {words[0]}"
        if self.by == "subnet":
            return self._network(*words[:2])
        if self.by == "prefix":
            return f"{self._network(*words[:2])} > {self._network(*words[2:4])}"
        client, server = to_address(*words[1:3]), to_address(*words[3:5])
        if words[5] & PING:
            return f"{client} > {server} icmp {words[5] ^ PING}"
        return f"{_end(client, words[5] >> 16 & 0xFFFF)} > {_end(server, words[5] & 0xFFFF)}"

    def _network(self, high: int, low: int) -> str:
        address = to_address(high, low)
        prefix = self.ipv4_prefix if address.version == 4 else self.ipv6_prefix
        return str(ipaddress.ip_network((address, prefix), strict=False))


def _end(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    if not port:
        return str(address)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _protocols(packets: PacketBatch) -> npt.NDArray[np.uint64]:
    import numpy as np

    from wirelag.packets.batch import Kind

    known: Ints | None = getattr(packets, "protocol", None)
    if known is not None:
        return known.astype(np.uint64)
    found = np.full(256, 17, np.uint64)  # of kinds: batches of summaries have no column `protocol`
    found[[Kind.OTHER, Kind.TCP, Kind.ICMP, Kind.ESP]] = 0, 6, 1, 50
    return found[packets.kind]
