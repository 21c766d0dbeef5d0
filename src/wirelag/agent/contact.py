"""Whether the collector would take what this agent sends: `wirelag agent --check` asks it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from wirelag.agent.config import Config
from wirelag.errors import WirelagError
from wirelag.units import format_duration

APART_S: Final = 1.0  # a difference of clocks that no way to a collector explains


def contacted(config: Config) -> Iterator[str]:
    """What the collector says, line by line; a WirelagError if it would not take this agent's messages."""
    address = config.collector
    assert address is not None
    if urlsplit(address.url).scheme in ("tls", "nats"):
        from wirelag.transport.nats_check import has_stream

        found = asyncio.run(has_stream(address, config.point))
        if found is False:
            raise WirelagError(f"{address.shown}: the broker has no wirelag stream yet; start the collector")
        more = ", and has the collector's stream" if found else "; it does not let this agent ask for the stream"
        yield f"the broker answers, accepts the secret{more}"
        return
    from wirelag.transport.http import told

    names = [one.segment for one in config.measured if one.segment is not None] + list(config.referred)
    before = time.time()
    said = told(address, config.point, names)
    if said is None:
        yield "the collector answers; it is older than this, and cannot tell whether it accepts token and segments"
        return
    yield f"the collector answers (wirelag {said['version']}), and accepts the token of {config.point}"
    yield from _clocks(said, before, time.time())
    yield from _segments(config, said, names)


def _clocks(said: Mapping[str, Any], before: float, after: float) -> Iterator[str]:
    apart = max(before - said["now"], said["now"] - after)
    if apart > APART_S:
        yield f"its clock and this host's differ by {format_duration(round(apart * 1e9))}: start chrony on both"
    if not said.get("ready", True):
        yield "it cannot store messages now; its log says why"


def _segments(config: Config, said: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    ends = said.get("segments", {})
    for name in names:
        if ends.get(name) is None:
            known = ", ".join(said.get("known", [])) or "none"
            raise WirelagError(
                f"segment {name}: {config.point} is not one of its ends at the collector, or it does not measure it; "
                f"it measures of this point: {known}"
            )
        yield f"segment {name}: this point is its {ends[name]} end"
    if not names and config.m_set is None and config.inside is None:
        known = said.get("known", [])
        if not known:
            raise WirelagError(
                f"{config.point} is no end of a segment at the collector: name the point there, or give segments here"
            )
        yield f"this point is an end of {', '.join(known)}"
