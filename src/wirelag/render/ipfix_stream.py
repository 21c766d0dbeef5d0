"""IPFIX while it is measured: intervals of flows or segments, sent by a thread of its own.

Law: who measures never waits. What waits is bounded: beyond that the oldest intervals are lost, and so is what the
receiver does not take; both are told. Over UDP it is one session, over a connection one for each sending; templates
come each time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wirelag.errors import WirelagError
from wirelag.render.ipfix import Exporter

if TYPE_CHECKING:
    from wirelag.measure.live import LiveInterval
    from wirelag.render.flow_records import FlowRecord
    from wirelag.transport.exports import Target

MOST_WAITING: Final = 64  # intervals
LAST_S: Final = 10.0  # to send what waits at the end

Make = Callable[[Exporter], Iterator[bytes]]


class IpfixStream:
    """Sends what is put into it, in order."""

    def __init__(self, target: Target, name: str, tell: Callable[[str], None]) -> None:
        """`name`: of what measures, as in `observationDomainName`."""
        self._target, self._name, self._tell = target, name, tell
        self._exporter = Exporter(target.domain, refresh=target.refresh)
        self._waiting: deque[Make] = deque()
        self._told = ""  # the last line
        self._some = threading.Condition()
        self._over = False
        self.sent = self.lost = 0  # intervals
        self._thread = threading.Thread(target=self._run, name="ipfix", daemon=True)
        self._thread.start()

    @classmethod
    def to(cls, url: str, name: str, tell: Callable[[str], None]) -> IpfixStream:
        """To an address as a person writes it, which was checked before."""
        from wirelag.transport.exports import Target

        return cls(Target.parse(url), name, tell)

    def beside(self, show: Callable[[LiveInterval, int], None]) -> Callable[[LiveInterval, int], None]:
        """Show an interval, and send its flows."""
        from wirelag.render.flow_records import of_samples

        def both(part: LiveInterval, dropped: int) -> None:
            show(part, dropped)
            self.flows(of_samples(part.samples, part.interval))

        return both

    def flows(self, flows: Iterable[FlowRecord]) -> None:
        """Send the flows of an interval."""
        known = list(flows)
        if known:
            self._put(lambda exporter: exporter.flows(known, self._name))

    def segments(self, intervals: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Send intervals of segments."""
        known = list(intervals)
        if known:
            self._put(lambda exporter: exporter.segments(known, self._name))

    def close(self) -> None:
        """Send what waits, for a while, and end."""
        with self._some:
            self._over = True
            self._some.notify()
        self._thread.join(LAST_S)

    def _put(self, make: Make) -> None:
        with self._some:
            if len(self._waiting) == MOST_WAITING:
                self._waiting.popleft()
                self.lost += 1
                self._say(f"{self._target.shown}: takes flows too slowly; intervals are left out")
            self._waiting.append(make)
            self._some.notify()

    def _run(self) -> None:
        while True:
            with self._some:
                self._some.wait_for(lambda: self._waiting or self._over)
                if not self._waiting:
                    return
                make = self._waiting.popleft()
            try:
                self._target.send(lambda most, make=make: self._messages(make, most))  # type: ignore[misc]
                self.sent += 1
            except WirelagError as error:
                self.lost += 1
                self._say(str(error))

    def _say(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell(line)

    def _messages(self, make: Make, most: int) -> Iterator[bytes]:
        self._exporter.most = most
        if not self._target.refresh:
            self._exporter.sequence = 0
        return make(self._exporter)
