"""`wirelag collect` with a stopwatch: what arrived, was asked and was sent, and when, as one line of JSON each.

`python stopwatch.py LOG collect ...` is the command itself; LOG gets the lines. Times are ns since 1970.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from wirelag import cli
from wirelag.collector import loop, serve
from wirelag.collector.store import Kept
from wirelag.protocol.messages import Message, encode, peek
from wirelag.protocol.results import Outcome


class Timed(loop.Collector):
    """Logs all events."""

    log: TextIO

    def _note(self, what: str, **more: Any) -> None:
        self.log.write(json.dumps({"what": what, "at_ns": time.time_ns(), **more}) + "\n")
        self.log.flush()

    def _take_one(self, data: bytes, place: int, now_ns: int) -> list[Outcome]:
        about = peek(data)
        self._note(
            "message",
            type=about.type,
            point=about.point,
            start_ns=about.interval.start_ns,
            sent_ns=about.sent_ns,
            bytes=len(data),
        )
        return super()._take_one(data, place, now_ns)

    def _into_rounds(self, message: Message) -> list[Outcome]:
        began_ns = time.perf_counter_ns()
        found = super()._into_rounds(message)
        self._note("rounds", start_ns=message.interval.start_ns, took_ns=time.perf_counter_ns() - began_ns)
        return found

    def _kept(self, work: Callable[[int, list[Outcome]], None]) -> list[Kept] | None:
        began_ns = time.perf_counter_ns()
        found = super()._kept(work)
        self._note("kept", took_ns=time.perf_counter_ns() - began_ns)
        return found

    def _count(self, kept: list[Kept]) -> None:
        for one in kept:
            result = one.result
            crossing, loss = result.crossings.get(None), result.losses.get(None)
            self._note(
                "result",
                segment=result.segment,
                start_ns=result.interval.start_ns,
                end_ns=result.interval.end_ns,
                rank=int(result.rank),
                complete=result.complete,
                used=crossing.used if crossing else 0,
                sum_ns=crossing.sum_ns if crossing else 0,
                mean_ns=crossing.mean_ns if crossing else None,
                std_ns=crossing.std_ns if crossing else None,
                bound_ns=crossing.moments.bound_ns(0.05) if crossing else None,
                unlike_rows=crossing.details.get("unlike_rows") if crossing else None,
                sent=crossing.sent if crossing else 0,
                checked=crossing.order.checked if crossing else 0,
                overtaken=crossing.order.overtaken if crossing else 0,
                lost=loss.lost if loss else None,
                reason=result.reason or (crossing.reason if crossing else None),
            )
        super()._count(kept)

    def _ask_for(self, asks: list[Message]) -> None:
        for ask in asks:
            known = {name for record in ask.records for name in record}
            kind = next((name for name in ("symbols", "wanted", "ids", "whole") if name in known), ask.type)
            self._note("ask", start_ns=ask.interval.start_ns, point=ask.point, asks=kind, bytes=len(encode(ask)))
        super()._ask_for(asks)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as Timed.log:
        setattr(serve, "Collector", Timed)  # noqa: B010
        sys.argv = ["wirelag", *sys.argv[2:]]
        cli.main()
