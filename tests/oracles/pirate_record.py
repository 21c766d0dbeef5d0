"""The state of one flow for the method `auto`, in plain Python: it counts requests and dates completions.

Follows `docs/reference/pirate.md` from "A packet" to "k requests"; `pirate_auto.py` has the rest. Names are the law's:
`n` is the number outstanding (N), `w` the number in flight (W), `knows_response` is R and `knows_request` Q.
"""

from collections import Counter

from tests.oracles.pirate_clocks import UNKNOWN, Clock, circle, units
from tests.oracles.pirate_modes import ACK, FIN, SYN, ClientPacket, clamp
from tests.oracles.pirate_modes import behind as apart
from tests.oracles.pirate_parts import Crowds, Hole, Opening, Seen, Sums, Turn
from tests.oracles.pirate_sizes import TRUSTED, Mean, Size, believed

PSH = 8
HAS_TIMESTAMPS, HAS_IP_ID, HAS_TRAVELLED = 2, 4, 8
MOST_OUTSTANDING = 1024
LARGEST_PAYLOAD = 2**18
TOLD_BY_SYN = 255  # votes


class Record:
    """The state of a flow. Its first packet creates it (Open); the first that is not a SYN begins it (Begin)."""

    def __init__(self, row: ClientPacket) -> None:
        t = circle(row.time_ns >> 10)
        is_syn = row.flagged(SYN)
        self.sums = Sums()
        self.start_ns = row.time_ns
        self.last = self.requested = t
        self.next_seq = self.counted_seq = circle(row.seq + is_syn)
        self.last_id = row.ip_id
        self.id_order = self.id_steps = 0
        self.in_step = self.is_absolute = is_syn
        self.mss = Size(row.mss if is_syn else 0)
        self.is_far = is_syn and bool(row.has & HAS_TRAVELLED)
        self.clock = Clock()
        self.is_open = self.is_stamped = False
        self.strays = 0
        # Requests
        self.n = self.deferred = self.flight = 0
        self.w = self.last_flight = self.largest_flight = 1
        self.turn, self.turn_before = Turn(), Turn()
        self.forced = self.unread = 0
        self.crowds = Crowds()
        # Times
        self.advanced = self.completed = self.busy_since = self.deferred_at = self.hole_at = 0
        self.flight_at = self.flight_before_at = 0
        self.has_advanced = self.is_done = self.is_busy = False
        # Bytes
        self.acked = self.first_ack = self.origin = self.boundary = 0
        self.fresh = 0
        self.hole: Hole | None = None
        self.is_full = self.pushes = False
        self.opening = Opening()
        # Sizes
        self.response, self.request, self.mean = Size(), Size(), Mean()
        self.knows_response = self.knows_request = self.is_missized = False
        self.total = 0
        # Latency
        self.handshake = self.latency = self.steady = 0

    @property
    def is_exact(self) -> bool:
        return self.knows_response and self.is_absolute

    @property
    def is_sized(self) -> bool:
        return self.is_exact or (self.knows_response and (self.latency == 0 or self.latency >= units(256)))

    @property
    def segment(self) -> int:
        """MSS."""
        return self.mss.bytes if self.mss.votes >= 4 else 1448 if self.is_stamped else 1460

    # A packet

    def is_stray(self, row: ClientPacket) -> bool:
        if not (row.is_tcp and self.is_open):
            return False
        too_far = abs(apart(row.seq, self.next_seq)) > 2**22
        return too_far or row.payload > LARGEST_PAYLOAD or (row.flagged(ACK) and apart(row.ack, self.acked) > 2**28)

    def packet(self, row: ClientPacket, elapsed_ns: int) -> None:
        """Steps of time and what follows them."""
        t = circle(row.time_ns >> 10)
        if abs(elapsed_ns) > 2**38:
            self.afresh(t)
            self.in_step, self.last, self.start_ns = True, t, row.time_ns
        if apart(t, self.last) < -units(100_000):
            self.step_back(t, row.time_ns)
        t = self.last if apart(t, self.last) < 0 else t
        dt = circle(t - self.last)
        if not self.is_open:
            self.begin(row, t, dt)
        if row.is_tcp:
            advance = apart(row.ack, self.acked) if row.flagged(ACK) else 0
            payload = min(row.payload, LARGEST_PAYLOAD)
            self.take(Seen(row, t, dt, payload, advance, apart(row.seq, self.next_seq)))
        else:
            self.sums.requests += 1
            self.sums.not_tcp = True
        self.last = t

    def begin(self, row: ClientPacket, t: int, dt: int) -> None:
        if self.is_absolute and dt <= 2**20:
            self.handshake = max(1, dt)
        self.is_open = True
        self.is_stamped = bool(row.has & HAS_TIMESTAMPS and row.tsecr)
        if self.mss.bytes >= 88:
            self.mss = Size(self.mss.bytes - (12 if self.is_stamped else 0), TOLD_BY_SYN)
        self.acked = self.first_ack = self.boundary = self.origin = row.ack
        self.start_ns, self.last = row.time_ns, t
        self.clock.begin(row, t)
        self.clock.begin_measure(row, t, dt)

    def step_back(self, t: int, time_ns: int) -> None:
        outstanding = self.n + self.deferred
        self.afresh(t)
        self.n, self.last, self.start_ns = outstanding, t, time_ns
        self.sums.spoilt = True

    def afresh(self, t: int) -> None:
        self.sums.area -= self.ages(self.last)
        self.crowds = Crowds()
        self.n = self.deferred = self.flight = self.fresh = 0
        self.requested = t
        self.has_advanced = self.is_busy = self.is_done = self.is_full = False
        self.hole = None

    def ages(self, t: int) -> int:
        """The sum of the ages of outstanding requests."""
        return self.crowds.ages(self.n + self.deferred, t)

    def begin_epoch(self, t: int) -> None:
        lone = 0 if self.is_stamped and self.clock.is_sure else self.sums.doubt("lone") >> 1
        self.sums = Sums(self.ages(t), doubts=Counter(lone=lone, spontaneous=self.sums.doubt("spontaneous") >> 1))

    # Take

    def take(self, p: Seen) -> None:
        row, clock, sums = p.row, self.clock, self.sums
        self.time_passes(p)
        if self.is_stamped and row.has & HAS_TIMESTAMPS:
            if clock.measure(row, p.t, p.dt, p.advance):
                sums.spoilt = True
            if clock.echo_tick.number != UNKNOWN:
                p.late = clock.lateness(row, p.t, p.dt)
                p.is_timed = clock.is_sure
        p.patience = max(1464, 3 * clock.echo_tick.ns >> 11, self.steady >> 2, self.handshake >> 1)
        if row.has & HAS_IP_ID:
            self.identify(p)
        if p.payload == 0 and not row.flagged(FIN) and 0 < p.ahead <= 65535:
            p.ghost = p.ahead
            p.ghost_at = self.advanced if self.advanced_since_request else self.requested
        if row.flagged(PSH) and p.payload > 0:
            self.pushes = True
        if p.advance > 0:
            self.advance(p)
        self.take_payload(p)
        if row.flagged(FIN):
            end = circle(row.seq + p.payload + 1)
            if apart(end, self.next_seq) > 0:
                self.next_seq = end
            if self.n > 0 and self.advanced_since_request:
                self.complete(self.n, self.advanced, p.t)

    def identify(self, p: Seen) -> None:
        ahead = (p.row.ip_id - self.last_id) % 2**16
        is_older = ahead >= 2**15
        p.id_ahead = ahead if self.id_steps >= TRUSTED else 1
        p.is_older = is_older and self.id_order >= 4
        self.id_order = believed(self.id_order, 1 <= ahead <= 1024, 2)
        if not is_older:
            self.id_steps = believed(self.id_steps, ahead == 1, 4)
        if not p.is_older:
            self.last_id = p.row.ip_id
        elif p.payload > 0:
            self.sums.doubts["reordered"] += 1

    @property
    def advanced_since_request(self) -> bool:
        return self.has_advanced and apart(self.advanced, self.requested) > 0

    def time_passes(self, p: Seen) -> None:
        t, dt, sums = p.t, p.dt, self.sums
        if circle(t - self.requested) > 2**30:
            self.afresh(t)
        if not self.in_step and p.payload > 0 and dt > units(500_000) and dt > 8 * self.latency:
            self.afresh(t)
            self.in_step = True
            self.w = self.largest_flight = 1
            self.opening = Opening()
        sums.area += (self.n + self.deferred) * dt
        if self.deferred > 0 and dt > units(64):
            waited = circle(t - self.deferred_at)
            most = 2 * self.latency if self.latency else waited
            if waited > most:
                sums.area -= self.deferred * (waited - most)
                waited = most
            sums.completions += self.deferred
            self.deferred = 0
            self.completed, self.is_done = circle(self.deferred_at + waited), True
            self.busy_period_ends(self.completed)

    def complete(self, c: int, instant: int, t: int) -> None:
        self.sums.area -= c * circle(t - instant)
        self.n -= c
        self.sums.completions += c
        self.completed, self.is_done = instant, True
        self.unread = min(c, 255)
        self.busy_period_ends(instant)

    def busy_period_ends(self, instant: int) -> None:
        if self.n == 0 and self.deferred == 0 and self.is_busy:
            self.sums.busy_sum += apart(instant, self.busy_since)
            self.sums.busy_count += 1

    # Advance

    def advance(self, p: Seen) -> None:
        at, spread = self.dated(p)
        if self.mss.votes != TOLD_BY_SYN and self.flight == 0 and 1200 <= p.advance <= 16384:
            self.mss.vote(p.advance, 1200)
        self.fresh = circle(self.fresh + p.advance)
        self.acked = circle(self.acked + p.advance)
        self.respond(p, self.responses(), at, spread)
        self.advanced, self.has_advanced = at, True
        if self.steady == 0 and self.is_busy and apart(at, self.busy_since) > 0:
            self.steady = apart(at, self.busy_since)
        if self.flight > 0:
            self.last_flight = self.flight
            self.sums.waits.append((max(0, apart(at, self.flight_at)), p.payload > 0))
        elif p.advance > 1:
            self.sums.more += 1
            self.sums.trailing += apart(at, self.flight_at) > self.handshake + (self.handshake >> 2)
        self.flight = 0

    def dated(self, p: Seen) -> tuple[int, int]:
        """When responses ended, and the uncertainty of that time."""
        at, spread = p.t, 0
        is_one = self.n <= 1 or (p.advance <= self.response.bytes if self.knows_response else p.advance >= self.segment)
        if p.ghost and self.n == 1 and self.deferred == 0 and self.latency > 0:
            at = circle(self.requested + self.latency)
            if apart(at, p.t) > 0:
                at = p.t
            if apart(at, p.t - p.dt) < 0:
                at = circle(p.t - p.dt)
            p.ghost_at = at
        if p.late is not None and p.is_timed and p.late > p.patience and at == p.t:
            excess = clamp(p.late - self.clock.usual, 0, p.dt)
            if is_one or (p.payload == 0 and p.late > units(30_000)):
                at = circle(p.t - excess)
            else:
                spread = excess
        if p.late is not None and p.late <= p.patience and p.payload == 0:
            self.clock.usual += (p.late - self.clock.usual) >> 3
        return at, spread

    def responses(self) -> int:
        """The number that ended with this advance."""
        new = circle(self.acked - self.boundary)
        if self.is_sized:
            c = new // self.response.bytes
            self.boundary = circle(self.boundary + c * self.response.bytes)
            if self.is_exact and c > self.n + self.deferred:
                self.missized()
        elif new % self.segment:
            c = 1
            self.boundary = self.acked
        else:
            c = 0
        return min(c, self.n)

    def respond(self, p: Seen, c: int, at: int, spread: int) -> None:
        sums = self.sums
        longer = apart(at, self.completed)
        if self.n == 0 and self.deferred == 0:
            if self.is_done and p.advance != 1 and longer <= max(units(200_000), 4 * self.steady):
                sums.area += longer
                sums.busy_sum += longer
                self.completed = at
        elif c == 0:
            pass
        elif (
            not self.is_sized and self.flight == 0 and self.is_done and 0 <= longer <= max(units(500), self.steady >> 4)
        ):
            sums.area += longer
            self.completed = at
        elif self.w > 1 and p.payload > 0 and circle(p.t - self.requested) <= units(64) and at == p.t:
            if self.deferred == 0:
                self.deferred_at = p.t
            self.deferred += c
            self.n -= c
        else:
            if c > 1:
                sums.area -= c * spread >> 1
            self.complete(c, at, p.t)

    def missized(self) -> None:
        self.knows_response = self.is_absolute = False
        self.is_missized = self.sums.spoilt = True
        self.n, self.w = self.flight, self.largest_flight
        self.boundary = self.acked

    # Sizes

    def take_payload(self, p: Seen) -> None:
        row = p.row
        if p.ghost:
            p.payload, p.id_ahead = p.ghost, 1
        if p.payload == 0:
            return
        if not self.is_new(p):
            self.sums.doubts["lost"] += 1
            return
        is_full = p.payload + 48 >= self.segment
        if p.payload >= 500 and self.pushes and not row.flagged(PSH) and not p.ghost:
            is_full = True
        if p.is_behind and is_full:
            continues = True
        else:
            continues = self.is_full and self.fresh == 0
            self.is_full = is_full or continues
        if not continues and self.opening.ends_handshake(p.payload, self.flight == 0):
            return
        k = self.requests_in(p, continues, is_full)
        if self.fresh > 0 and not continues:
            self.size_responses(k)
        self.old_totals()
        if p.is_older and p.is_behind and self.w == 1 and self.n > 0:
            k = 0
        if k > 0:
            self.requests(p, k)

    def is_new(self, p: Seen) -> bool:
        end = circle(p.row.seq + p.payload)
        if p.ghost:
            self.next_seq = p.row.seq
            self.sums.doubts["lost"] += 1
            return True
        if apart(end, self.next_seq) > 0:
            if 0 < p.ahead <= 65535 and self.hole is None:
                self.hole = Hole(self.next_seq, p.ahead)
                self.hole_at = circle(p.t - p.dt)
            self.next_seq = end
            return True
        p.is_behind = True
        if self.hole is not None:
            into = circle(p.row.seq - self.hole.start)
            if into < self.hole.length:
                filled = into + p.payload
                if filled >= self.hole.length:
                    self.hole = None
                else:
                    self.hole.start = circle(self.hole.start + filled)
                    self.hole.length -= filled
                return True
        return p.is_older

    def requests_in(self, p: Seen, continues: bool, is_full: bool) -> int:
        k = 0 if continues else 1
        if not continues and not is_full and not p.ghost:
            verdict = self.request.vote(p.payload, 4)
            if verdict:
                self.knows_request = False
            if verdict == "given up" or (verdict == "changed" and self.knows_response):
                self.is_absolute = False
            if self.request.votes >= TRUSTED:
                self.knows_request = True
            multiple = self.mean.multiple(p.payload) if p.payload <= 8191 else None
            if multiple is not None and not self.knows_request and multiple <= self.w:
                k = multiple
        if self.knows_request and self.is_exact:
            k = self.uncounted
            self.counted_seq = circle(self.counted_seq + k * self.request.bytes)
            return k if k <= 64 else 1
        if self.knows_request and not continues and p.payload % self.request.bytes == 0:
            k = p.payload // self.request.bytes
            return k if k <= min(self.w, 64) else 1
        return k

    @property
    def uncounted(self) -> int:
        """Requests that were sent and not counted, if they have one size."""
        return circle(self.next_seq - self.counted_seq) // self.request.bytes

    def size_responses(self, k: int) -> None:
        if self.is_exact:
            self.still_sized()
            return
        size, value = self.response.bytes, self.fresh
        if not self.knows_response and self.response.votes > 0 and value % size and size % value:
            total = circle(self.acked - self.origin)
            if self.w > 1 and total % size == 0:
                value = total
            elif self.w > 1 and abs(total - self.total * size) < size:
                return
            else:
                self.response.votes = 0
        if self.response.vote(value, 16) and self.knows_response:
            self.missized()
        if self.response.votes == 1:
            self.origin, self.total = self.acked, 0
        known = self.knows_response or self.is_missized
        if self.response.votes >= TRUSTED and not known and self.total >= max(16, 4 * self.w):
            self.adopt(k)

    def still_sized(self) -> None:
        if self.acked == self.boundary:
            self.response.votes = min(self.response.votes + 8, 32)
            return
        self.response.votes -= 1
        if self.response.votes == 0:
            self.missized()

    def adopt(self, k: int) -> None:
        """Adopt the size of k responses per round and, if all bytes since the start are known, set the outstanding."""
        response, acked = self.response, circle(self.acked - self.origin)
        if acked == 0:
            return
        parts = max(1, (response.bytes * self.total + acked // 2) // acked)
        if response.bytes % parts or response.bytes // parts < 2:
            return
        one = response.bytes // parts
        if abs(acked - self.total * one) > (self.w + 1) * one:
            return
        response.bytes = one
        self.knows_response = True
        self.boundary = self.acked
        if not (self.is_absolute and self.knows_request):
            self.is_absolute = False
            return
        sent = self.uncounted
        finished = circle(self.acked - self.first_ack) // response.bytes
        outstanding = apart(sent - k, finished)
        if not 0 <= outstanding <= min(8 * self.w + 8, MOST_OUTSTANDING):
            self.is_absolute = False
            return
        self.counted_seq = circle(self.counted_seq + sent * self.request.bytes)
        self.boundary = circle(self.first_ack + finished * response.bytes)
        self.w = max(self.w, outstanding)
        if outstanding != self.n + self.deferred:
            self.n, self.deferred = outstanding, 0
            self.sums.spoilt = True

    def old_totals(self) -> None:
        if circle(self.acked - self.origin) >= 2**31:
            self.origin = circle(self.origin + 2**30)
            self.total >>= 1
        far = max(circle(self.acked - self.first_ack), circle(self.next_seq - self.counted_seq))
        if not self.is_exact and far >= 2**31:
            self.is_absolute = False

    # k requests

    def requests(self, p: Seen, k: int) -> None:
        t, sums = p.t, self.sums
        opens, swapped = self.flight == 0, p.is_older and p.is_behind
        p.is_behind = p.is_behind or bool(p.ghost)
        sums.requests += k
        over = max(0, self.n + k - MOST_OUTSTANDING)
        if over > 0:
            k -= over
            sums.doubts["spontaneous"] += 1
            if k == 0:
                return
        if opens or not swapped:
            self.flight = min(self.flight + k, MOST_OUTSTANDING)
        self.largest_flight = max(self.largest_flight, self.flight)
        if opens and not swapped:
            self.forced = 0
            self.turn_before, self.turn = self.turn, Turn(min(self.n, 255), self.advanced, min(self.fresh >> 4, 65535))
        s = self.sent(p, opens)
        self.read(s)
        self.doubts(p, k, opens)
        self.make_room(p, k, opens)
        if opens:
            self.flight_before_at, self.flight_at = self.flight_at, t
        if self.flight == self.w > 1:
            self.whole_flight()
        if self.n == 0:
            thought = apart(s, self.completed)
            if self.is_done and self.deferred == 0 and thought >= 0:
                sums.think_count += 1
                if thought <= units(128):
                    sums.busy_sum += thought
                else:
                    sums.think_sum += thought
            self.is_done, self.is_busy, self.busy_since = False, True, s
        self.crowds.remember(k, s, self.w)
        self.n += k
        self.total += k
        sums.area += k * circle(t - s)
        self.requested = t
        self.fresh = 0
        if self.knows_response and not self.is_absolute:
            self.boundary = self.acked
        if self.knows_response and self.n > 8 * self.largest_flight + 8:
            self.missized()

    def silence(self, t: int) -> int:
        """Time since the last advance; -1: there was none."""
        return circle(t - self.advanced) if self.has_advanced else -1

    def sent(self, p: Seen, opens: bool) -> int:
        """When the client sent them."""
        s = p.t
        if p.ghost:
            s = p.ghost_at
        elif 2 <= p.id_ahead < 64 and opens and self.silence(p.t) > units(150_000):
            s = circle(p.t - units(200_000) - 2 * self.handshake)
            self.sums.doubts["lost"] += 1
        elif p.is_behind and not p.is_older:
            s = self.hole_at
        if self.has_advanced and s != p.t and apart(s, self.advanced) < 0:
            s = self.advanced
        return circle(p.t - min(circle(p.t - s), 2**24))

    def read(self, s: int) -> None:
        """Responses that ended with the last advance have been read by then, if that was recent."""
        later = apart(s, self.completed)
        if self.is_done and 0 < later <= units(128):
            self.sums.area += self.unread * later
        self.unread = 0

    def doubts(self, p: Seen, k: int, opens: bool) -> None:
        doubts = self.sums.doubts
        if k > 1 and not p.ghost:
            doubts["coalesced"] += 1
        if not p.is_timed and opens and self.has_advanced:
            doubts["lone"] += self.silence(p.t) > p.patience or p.dt > units(500_000)
        since = self.advanced if opens and self.has_advanced and self.w > 1 else self.requested
        gap = circle(p.t - since)
        is_long = gap > max(units(200), self.handshake, self.latency >> 4)
        if (not opens or self.w > 1) and self.n > 0 and is_long and not p.is_behind:
            doubts["spontaneous"] += 1

    def make_room(self, p: Seen, k: int, opens: bool) -> None:
        waited = self.silence(p.t)
        is_long = self.steady > 0 and waited > max(2 * self.steady, p.patience)
        if self.n > 0 and opens and is_long and not self.knows_response:
            self.complete(self.n, self.advanced, p.t)
            self.turn.n = 0
        over = self.n + self.deferred + k - self.w
        if self.deferred > 0 and over > 0:
            x = min(self.deferred, over)
            self.deferred -= x
            self.sums.completions += x
        if self.n + k > self.w:
            if self.is_sized or self.flight > self.w or not self.has_advanced:
                self.w = self.n + k
            else:
                x = min(self.n, self.n + k - self.w)
                self.forced = min(255, self.forced + x)
                self.complete(x, self.advanced, p.t)

    def whole_flight(self) -> None:
        lasted = apart(self.advanced, self.flight_before_at)
        if self.last_flight == self.w and lasted > 0:
            self.sums.flight_sum += lasted
            self.sums.flight_count += 1
        if self.last_flight == 1 and self.turn_before.fresh > self.turn.fresh:
            earlier = apart(self.advanced, self.turn_before.at)
            self.sums.area -= min(self.forced, self.turn_before.n) * earlier
