"""The plain twin of the balancer's memory of connections (docs/concepts/balancing.md, "Connections").

Written from that page: dictionaries and lists instead of hashed places, whole numbers instead of packed words.
"""

from dataclasses import dataclass, field

from tests.oracles.hashing import endpoint, mix

UNIT_NS = 1 << 24
PLACES = 8
SETTLED_NS = 4 * 10**9
NOBODY = -1
AHEAD = 1 << 16
HEARD = 1 << 18


def client_hash(seed: int, client: int, port: int, service_port: int) -> int:
    """The hash of an IPv4 client of a port of the service."""
    return mix(endpoint(seed, 0, 0xFFFF << 32 | client, port | service_port << 16))


@dataclass
class Confirmed:
    key: int
    backend: int
    since: int  # times in units
    seen: int
    next_seq: int
    closed: bool = False
    acked: int = 0  # 0: not known

    def follow(self, seq: int, payload: int, ends: bool, ack: int | None) -> None:
        """`ack`: None without an acknowledgement."""
        ahead = (seq - self.next_seq) % 2**32
        if ack is not None and self.acked and (ack - self.acked) % 2**32 > HEARD:
            return
        self.closed = self.closed or (ends and ahead == 0)
        if ack is not None and ahead <= (0 if ends else AHEAD):
            self.next_seq, self.acked = (seq + payload) % 2**32, ack


@dataclass
class Unconfirmed:
    key: int
    backend: int
    time_ns: int
    marked: bool


@dataclass
class Twin:
    """`tables`: the active and the previous one, and since when, in units; `gone`, `down`: numbers of backends."""

    groups: int
    idle: int
    closing: int
    most_new: int
    seed: int
    table_seed: int
    active: list[int]
    previous: list[int]
    changed: int = 0
    gone: set[int] = field(default_factory=set)
    down: set[int] = field(default_factory=set)
    unit: int = -1
    used: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.confirmed: list[list[Confirmed | None]] = [[None] * PLACES for _ in range(self.groups)]
        self.sets: list[list[Unconfirmed | None]] = [[None] * PLACES for _ in range(4 * self.groups)]

    def packet(
        self,
        client: int,
        port: int,
        service_port: int,
        syn: bool,
        ends: bool,
        now_ns: int,
        seq: int,
        payload: int,
        ack: int | None,
    ) -> int:
        """The backend of a TCP packet."""
        key, now = client_hash(self.seed, client, port, service_port), now_ns // UNIT_NS
        entry = int(client_hash(self.table_seed, client, port, service_port) >> 32) * len(self.active) >> 32
        found = self._find(key)
        if found is not None:
            if syn and (found.closed or found.backend in self.down):
                found.backend, found.closed, found.next_seq = self.active[entry], False, (seq + 1) % 2**32
                found.acked = 0
            elif found.backend in self.gone:
                if not found.closed:
                    self._count("orphaned")
                found.backend = self._choose(entry, syn, now)
            found.seen = now
            if not syn:
                found.follow(seq, payload, ends, ack)
            return found.backend
        places = self.sets[(key >> 39) % len(self.sets)]
        known = next((one for one in places if one is not None and one.key == key), None)
        limit = self.closing if syn else self.idle
        if known is not None and ((now_ns // 8 * 8 - known.time_ns) >> 24) <= limit:
            anew = syn and known.backend in self.down
        else:
            anew = True
            if not syn:
                self._count("unknown")
        if anew or known is None or known.backend in self.gone:
            backend = self._choose(entry, syn, now)
        else:
            backend = known.backend
        if known is not None and not anew and not syn:
            new = Confirmed(key, backend, now, now, seq)
            new.follow(seq, payload, ends, ack)
            if self._confirm(new):
                known.marked = False
            else:
                known.time_ns, known.backend = now_ns // 8 * 8, backend
            return backend
        opened = Unconfirmed(key, backend, now_ns // 8 * 8, syn)
        if known is not None:
            places[places.index(known)] = opened
        elif None in places:
            places[places.index(None)] = opened
        else:
            oldest = min((one for one in places if one is not None), key=lambda one: one.time_ns)
            places[places.index(oldest)] = opened
        return backend

    def _find(self, key: int) -> Confirmed | None:
        for group in self._groups(key):
            for one in group:
                if one is not None and one.key == key:
                    return one
        return None

    def _groups(self, key: int) -> tuple[list[Confirmed | None], list[Confirmed | None]]:
        return self.confirmed[key % self.groups], self.confirmed[(key >> 24) % self.groups]

    def _choose(self, entry: int, syn: bool, now: int) -> int:
        if not syn and now - self.changed <= self.idle:
            before = self.previous[entry]
            if before not in self.gone | self.down | {NOBODY}:
                return before
        return self.active[entry]

    def _confirm(self, new: Confirmed) -> bool:
        if new.seen >> 3 != self.unit:
            self.unit, self.used = new.seen >> 3, 0
        self.used += 1
        if self.used > self.most_new:
            self._count("limited")
            return False
        for group in self._groups(new.key):
            for place, one in enumerate(group):
                if one is None or new.seen - one.seen > (self.closing if one.closed else self.idle):
                    group[place] = new
                    return True
        unsettled = [
            (one.seen, which, place)
            for which, group in enumerate(self._groups(new.key))
            for place, one in enumerate(group)
            if one is not None and one.seen - one.since < SETTLED_NS // UNIT_NS
        ]
        if not unsettled:
            self._count("table_full")
            return False
        _, which, place = min(unsettled)
        self._groups(new.key)[which][place] = new
        self._count("pushed_out")
        return True

    def _count(self, what: str) -> None:
        self.faults[what] = self.faults.get(what, 0) + 1
