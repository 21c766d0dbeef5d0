"""A clock that is set, by any amount and in any direction, stops no packets that an agent sends."""

import socket
import time
from typing import Any

import pytest

from tests.support.agent_messages import SECOND_NS
from tests.support.waiting import PATIENCE_S, until
from wirelag.agent.config import Reference
from wirelag.agent.references import Emitter
from wirelag.packets.injection import Injection

LENGTH_NS = SECOND_NS // 100
STEPS_NS = (-30 * 86400 * SECOND_NS, 400 * 86400 * SECOND_NS, -LENGTH_NS // 2)


class SetClock:
    """The module `time`, with a clock that can be set."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ns

    def clock_gettime_ns(self, clock: int) -> int:
        return time.clock_gettime_ns(clock) + self.ahead_ns * (clock == time.CLOCK_REALTIME)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    made = SetClock()
    for module in ("clock", "references"):
        monkeypatch.setattr(f"wirelag.agent.{module}.time", made)
    return made


def test_control_packets_go_on_after_a_step(clock: SetClock) -> None:
    """Each has the number of the interval that begins, by the clock as it is now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))
        heard.settimeout(PATIENCE_S)
        emitter = Emitter((), heard.getsockname(), LENGTH_NS, print)
        emitter.start()
        try:
            for step_ns in (0, *STEPS_NS):
                clock.ahead_ns += step_ns
                for _ in range(30):  # those before the step among them
                    data = heard.recv(200)
                behind = (clock.time_ns() // LENGTH_NS - int.from_bytes(data[-4:])) & 0xFFFFFFFF
                assert behind < PATIENCE_S * SECOND_NS // LENGTH_NS
        finally:
            emitter.close()


def test_references_go_on_after_a_step(clock: SetClock) -> None:
    injection = Injection(125_000_000, "1-in-tau", tau_ns=LENGTH_NS, most_share=0.005, depth_ns=SECOND_NS, size=92)
    emitter = Emitter((Reference("127.0.0.1", 0, 0, injection),), None, SECOND_NS, print)
    emitter.start()
    try:
        for step_ns in (0, *STEPS_NS):
            sent = emitter.sent
            clock.ahead_ns += step_ns
            until(lambda sent=sent: emitter.sent > sent + 5, "references after a step")  # type: ignore[misc]
    finally:
        emitter.close()
