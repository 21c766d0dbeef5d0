"""What the beginning of each of many captures tells, and which of them belong together.

Captures that begin at the same time and share connections are read as one (two directions of a link, say). A capture
that follows another of the same name but for its numbers continues it: a rotated set of `tcpdump -G`, `tcpdump -C` or
`dumpcap -b`. All others are independent. Nothing here opens more than the beginning and the end of a file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, zip_longest
from typing import TYPE_CHECKING, Final, TypeVar

from wirelag.errors import WirelagError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.parts import Part
    from wirelag.packets.batch import PacketBatch

BATCHES: Final = 2  # of the beginning of a capture
MOST_KEYS: Final = 256  # flow keys that are compared, the smallest: a key is a hash
MOST_SHARING: Final = 64  # captures with the same flow key that are compared with each other
OPEN_ENDS: Final = 64  # captures, the latest, of which one may continue
EDGE: Final = 64  # two that have less than this part of the shorter one's time in common follow one another
WARM_NS: Final = 10_000_000_000  # how much earlier a part begins to be read
_NUMBER: Final = re.compile(r"\d+")
Name = TypeVar("Name", int, str)


@dataclass(frozen=True, eq=False)
class Look:
    """The beginning of a capture, and where it can be split."""

    path: str
    name: str
    size: int = 0
    first_ns: int = 0
    until_ns: int = 0  # of the packets that were looked at
    keys: npt.NDArray[np.uint64] | None = None
    parts: tuple[Part, ...] = ()
    tail: Part | None = None  # the end of the file, if it can be read alone
    last_ns: int | None = None  # the time of its last packet, if that is so
    problem: str = ""  # why it cannot be read
    stamp: str = ""  # changes with the file
    whole: bool = False  # whether all of it was looked at

    @property
    def template(self) -> str:
        """The name without its numbers; the first file of `tcpdump -C` has none."""
        return _NUMBER.sub("", self.path)


class KeySample:
    """The smallest flow keys of packets to one host, and the times of packets: what captures have in common.

    Broadcasts are left out: all networks have the same ones.
    """

    def __init__(self) -> None:
        import numpy as np

        self.keys: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self.first_ns, self.last_ns = (1 << 63) - 1, -(1 << 63)

    def add(self, packets: PacketBatch) -> None:
        """Add packets."""
        import numpy as np

        from wirelag.packets.addresses import to_one_host

        if not len(packets):
            return
        self.first_ns = min(self.first_ns, int(packets.time_ns.min()))
        self.last_ns = max(self.last_ns, int(packets.time_ns.max()))
        keys = packets.flow_key
        rows = np.flatnonzero(keys < self.keys[-1]) if len(self.keys) == MOST_KEYS else np.arange(len(keys))
        rows = rows[np.unique(keys[rows], return_index=True)[1]]
        if len(rows):
            rows = rows[to_one_host(packets[rows])]
            self.keys = np.union1d(self.keys, keys[rows])[:MOST_KEYS]

    @classmethod
    def of_all(cls, several: Iterable[KeySample]) -> KeySample:
        """The packets of several."""
        import numpy as np

        total = cls()
        for one in several:
            total.keys = np.union1d(total.keys, one.keys)[:MOST_KEYS]
            total.first_ns, total.last_ns = min(total.first_ns, one.first_ns), max(total.last_ns, one.last_ns)
        return total


def look(path: str, name: str, tunnels: bool, length: int | None) -> Look:
    """Look at one capture; `length` is how many bytes a part should have, None: it is read whole."""
    import os

    from wirelag.capture.parts import PartFile
    from wirelag.capture.pcap import CaptureFile
    from wirelag.capture.remote import size_of
    from wirelag.capture.splitting import Splitter
    from wirelag.capture.streams import is_remote

    try:
        file, sample = CaptureFile(path, tunnels=tunnels, name=name), KeySample()
        batches = iter(file)
        for batch in islice(batches, BATCHES):
            sample.add(batch)
        whole = next(batches, None) is None
        size = size_of(path) if is_remote(path) else os.path.getsize(path)
        splitter, tail, last_ns = Splitter(path, size), None, None
        most = most_warm(length or 0)
        if end := splitter.last():
            if length is not None:
                tail = splitter.from_place(splitter.before(end, WARM_NS, most))
            last = PartFile(path, splitter.from_place(end), tunnels=tunnels)
            for _ in last:
                pass
            last_ns = last.statistics.last_ns
        parts = () if length is None or size < 2 * length else tuple(splitter.parts(length, WARM_NS, most))
    except (WirelagError, OSError) as error:
        return Look(path, name, problem=_readable(error, name))
    first_ns = file.statistics.first_ns or 0
    until_ns = max(first_ns, sample.last_ns)
    return Look(path, name, size, first_ns, until_ns, sample.keys, parts, tail, last_ns, whole=whole)


def most_warm(length: int) -> int:
    """How many bytes before a part are read to warm up, if parts have this length."""
    return max(length, 4 << 20) // 4


def _readable(error: Exception, name: str) -> str:
    return str(error) if isinstance(error, WirelagError) else f"{name}: cannot be opened ({error})"


@dataclass
class Related:
    """Captures that belong together."""

    merged: list[list[Look]] = field(default_factory=list)  # read as one, by time
    chains: list[list[Look]] = field(default_factory=list)  # each continues the one before


def related(looks: Sequence[Look]) -> Related:
    """Which captures are read as one, and which follow one another."""
    found = Related()
    groups = _together(looks, {id(one) for chain in _chains(looks) if len(chain) > 1 for one in chain})
    found.merged = [group for group in groups if len(group) > 1]
    found.chains = _chains([group[0] for group in groups if len(group) == 1])
    found.chains.sort(key=lambda chain: chain[0].first_ns)
    return found


def _together(looks: Sequence[Look], chained: set[int]) -> list[list[Look]]:
    """Groups of captures that share connections, though none follows another of its name.

    A connection that is there again long after is no reason to tear a chain apart.
    """
    parent = list(range(len(looks)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    templates = [one.template for one in looks]
    having: dict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(looks):
        for key in () if one.keys is None else one.keys.tolist():
            having[key].append(i)
    # Many keys are in the same captures: these are compared once.
    for several in dict.fromkeys(tuple(places[:MOST_SHARING]) for places in having.values() if len(places) > 1):
        for i, j in combinations(several, 2):
            if root(i) == root(j) or (templates[i] == templates[j] and not _at_once(looks[i], looks[j])):
                continue
            if not (_far_apart(looks[i], looks[j]) and chained & {id(looks[i]), id(looks[j])}):
                parent[root(j)] = root(i)
    groups: dict[int, list[Look]] = defaultdict(list)
    for i, one in enumerate(looks):
        groups[root(i)].append(one)
    return list(groups.values())


def _far_apart(one: Look, other: Look) -> bool:
    """Whether one of two captures surely ended long before the other began."""
    first, later = (one, other) if one.first_ns <= other.first_ns else (other, one)
    end_ns = first.until_ns if first.whole else first.last_ns
    return end_ns is not None and later.first_ns - end_ns > WARM_NS


def _at_once(one: Look, other: Look) -> bool:
    """Whether two captures begin at the same time: neither then continues the other.

    Of two small ones, all is looked at. One may then begin when the other ends: at the same instant, or a little
    before, since times of packets may go back.
    """
    first, later = (one, other) if one.first_ns <= other.first_ns else (other, one)
    if first.first_ns == later.first_ns:
        return True
    both_ns = min(first.until_ns, later.until_ns) - later.first_ns
    least_ns = min(one.until_ns - one.first_ns, other.until_ns - other.first_ns)
    return later.first_ns < first.until_ns and both_ns * EDGE >= least_ns


def _chains(looks: Sequence[Look]) -> list[list[Look]]:
    """Captures that continue one another, each of which may be alone."""
    by_template: dict[str, list[Look]] = defaultdict(list)
    for one in sorted(looks, key=lambda one: (one.first_ns, one.path)):
        by_template[one.template].append(one)
    return [chain for several in by_template.values() for chain in _chains_of(several)]


def _chains_of(several: Sequence[Look]) -> list[list[Look]]:
    """Captures of one template, in order of time: each continues the one whose name is most like its own."""
    chains: list[list[Look]] = []
    for one in several:
        ends = [chain for chain in chains[-OPEN_ENDS:] if _may_follow(chain[-1], one)]
        if ends:
            best = min(ends, key=lambda chain: (_unlike(chain[-1], one), -chain[-1].first_ns))
            best.append(one)
            chains.remove(best)
            chains.append(best)
        else:
            chains.append([one])
    return chains


def _may_follow(before: Look, one: Look) -> bool:
    if _at_once(before, one):
        return False
    return before.last_ns is None or -WARM_NS <= one.first_ns - before.last_ns <= WARM_NS


def _unlike(one: Look, other: Look) -> int:
    """How many numbers of two names differ."""
    pairs = zip_longest(_NUMBER.findall(one.path), _NUMBER.findall(other.path))
    return sum(mine != theirs for mine, theirs in pairs)


def sharing(
    samples: Iterable[tuple[Name, KeySample]], group: Mapping[Name, int], near_ns: int = WARM_NS
) -> list[tuple[Name, Name]]:
    """What shares connections at the same time, or not much later, and is not of the same group."""
    having: dict[int, list[tuple[Name, KeySample]]] = defaultdict(list)
    found: dict[tuple[Name, Name], None] = {}
    for name, sample in samples:
        for key in sample.keys.tolist():
            for other, theirs in having[key][-MOST_SHARING:]:
                near = sample.first_ns - near_ns <= theirs.last_ns and theirs.first_ns - near_ns <= sample.last_ns
                if near and group[other] != group[name]:
                    found[(name, other) if name < other else (other, name)] = None
            having[key].append((name, sample))
    return list(found)
