"""RLI live: references over a real wire, compared with a join of captures at both agents; the page."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from lab.live import Done, Setting, run
from lab.wire import Direction
from tests.support.browser import Browser
from tests.support.collector_process import Running, surely
from tests.support.in_lab import IN_LAB
from tests.support.rli_agent import arrived, measured, message_of, parts_of
from wirelag.collector.openapi import REPORT
from wirelag.collector.sqlite import SqliteStore
from wirelag.protocol.messages import Message
from wirelag.transport import Address, sender

SECOND_NS = 10**9
QUEUE = Direction(delay_us=2000, jitter_us=200, loss=0.01, mbit=33)


def arrived_mean_ns(done: Done, start_ns: int, end_ns: int) -> tuple[int, float]:
    """The mean delay of packets that arrived in this interval."""
    truth = done.truth
    assert truth is not None
    came_ns = truth.sent_ns + truth.delays_ns
    delays_ns = truth.delays_ns[(truth.delays_ns >= 0) & (came_ns >= start_ns) & (came_ns < end_ns)]
    return len(delays_ns), float(np.mean(delays_ns))


@IN_LAB
@pytest.mark.acceptance
def test_the_mean_is_within_its_interval_and_reference_loss_is_counted(tmp_path: Path) -> None:
    setting = Setting("rli", references="10ms", by="flow", seconds=20, rate=4000, payload=900, wire=QUEUE)
    done = run(setting, tmp_path)
    store = SqliteStore(str(tmp_path / "store.db"))
    first_ns, last_ns = done.began_ns + 2 * SECOND_NS, done.ended_ns - SECOND_NS
    rows = [r for r in store.rows("client>server1", None, SECOND_NS, (first_ns, last_ns), 100) if r.start_ns < last_ns]
    classes = [key for _, key in store.series() if key]
    of_class = {r.start_ns: r.to_json() for r in store.rows("client>server1", classes[0], SECOND_NS, (0, 2**62), 100)}
    store.close()
    assert len(rows) >= 16
    held, errors, came, lost = 0, [], 0, 0
    for row in rows:
        report = row.to_json()
        count, mean_ns = arrived_mean_ns(done, row.start_ns, row.start_ns + SECOND_NS)
        low, high = report["ci95"]["mean"]
        held += low <= mean_ns / 1e9 <= high
        errors.append(report["mean"] * 1e9 / mean_ns - 1)
        came, lost = came + report["references"]["received"], lost + report["references"]["lost"]
        assert report["received"] == pytest.approx(count, rel=0.05)  # packets after the last reference follow later
        assert report["used"] == report["received"]
        assert report["sent"] is report["loss"] is None
        assert report["clock"]["error"] < 1e-3
        assert of_class[row.start_ns]["mean"] == pytest.approx(report["mean"], rel=1e-6)  # one flow
    print(f"\n{len(rows)} intervals, {held} hold the mean; error {np.mean(errors):+.2%} "
          f"(at most {np.max(np.abs(errors)):.2%}); references {came} came, {lost} lost; "
          f"clock {rows[-1].tally.clock_error_ns} ns; "
          f"half of 95%: {(high - low) / 2 * 1e6:.0f} us of {mean_ns / 1e3:.0f} us")  # fmt: skip
    # A busy host sends references late or not at all, exactly when delays are long.
    assert held >= 0.8 * len(rows), errors
    assert abs(np.mean(errors)) < 0.05
    assert len(classes) == 1
    assert 0 < lost < 0.05 * came  # the wire loses 1%


async def send(url: str, messages: Sequence[Message]) -> None:
    line = sender(Address(url), "B")
    for message in messages:
        await surely(line, message)
    await line.close()


@pytest.mark.acceptance
def test_the_page_shows_rli_results(tool: Callable[[str], str], tmp_path: Path) -> None:
    packets = arrived(began_s=int(time.time()) - 5)
    messages = [message_of(part) for part in parts_of(packets, measured("client/24/48/8"))]
    with Running(tmp_path, "--segment", "A>B") as running, Browser(tool("chromium"), tmp_path) as browser:
        asyncio.run(send(running.url, messages))
        running.until(lambda: len(running.reports()) == len(messages))
        jsonschema.Draft202012Validator(REPORT | {"$schema": "https://json-schema.org/draft/2020-12/schema"}).validate(
            running.reports()[0]
        )
        (segment,) = running.json("/api/v1/segments")["segments"]
        assert len(segment["classes"]) >= 9
        browser.open(running.url)
        browser.until("document.body.dataset.ready === 'yes'")
        browser.until("document.getElementById('about').innerText.includes('between references')")
        about = browser.ask("document.getElementById('about').innerText")
        assert "references received, 0 lost" in about
        assert "loss unknown: rli sees only what arrives" in about
        assert browser.ask("document.querySelectorAll('#loss .series.line').length") == 3
        assert browser.problems == []
        assert "wirelag_references_received_total" in running.get("/metrics")[1]
