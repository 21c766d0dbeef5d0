"""What a collector would do, in words: `wirelag collect --check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wirelag.collector.following import Follow, called, pointed
from wirelag.collector.serve import encryption, listening
from wirelag.collector.settings import Settings
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.store import HOUR_NS, MINUTE_NS, SECOND_NS
from wirelag.network.topology import Topology, read_topology
from wirelag.units import format_duration

SINGLE_BYTES, MINUTE_BYTES, HOUR_BYTES = 420, 1100, 4800  # of a row, with 500 delays a second behind it


def told(settings: Settings) -> Iterator[str]:
    """Line by line; a WirelagError where it would not start."""
    listening(settings).close()
    scheme = "http" if encryption(settings) is None else "https"
    who = "whoever is on this host" if settings.tokens is None else f"who has one of {len(settings.tokens)} tokens"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    yield f"listens on {scheme}://{host}:{settings.port}/ for {who}"
    if settings.nats is not None:
        import asyncio

        from wirelag.transport.nats import problem

        yield f"takes messages from {settings.nats.shown}, too"
        if (wrong := asyncio.run(problem(settings.nats))) is not None:
            yield f"  now it could not: {wrong}"
    if settings.ends:
        yield f"measures {len(settings.ends)} segments:"
        for one in settings.ends:
            yield f"  {one.segment}: from {one.upstream} to {one.downstream}"
    else:
        yield "measures the segments that agents name (A>B, with points A and B)"
    if settings.topology is not None:
        net = read_topology(settings.topology)
        yield f"adds paths up over {len(net.routers)} routers of {settings.topology}"
        if settings.follow is not None:
            yield from _followed(settings.follow, net)
    there = Path(settings.store).exists()
    if there:
        SqliteStore(settings.store).close()
    yield f"keeps results in {settings.store} ({'goes on with what is there' if there else 'new'})"
    keep = settings.retention
    ages = (("intervals", keep.single_ns), ("minutes", keep.minutes_ns), ("hours", keep.hours_ns))
    yield "  " + ", ".join(f"{name} for {format_duration(age)}" for name, age in ages)
    size, most = budget(settings) >> 20, keep.most_bytes >> 20
    yield f"  about {size} MiB for a segment with intervals of 1 s; {most} MiB in all at most"
    yield settings.given


def _followed(follow: Follow, net: Topology) -> Iterator[str]:
    network = pointed(net, follow.names)
    for router in follow.upgraded or ():
        network.check(called(router, follow.names))
    who = f"{len(follow.upgraded)} routers measure" if follow.upgraded else "routers measure whose agents are alive"
    yield (
        f'reads it every {format_duration(follow.every_ns)}: {who}; agents with m_set.by = "collector" are told '
        f"what to measure, and old and new segments overlap for {format_duration(follow.overlap_ns)}"
    )
    if missing := sorted(set(network.routers) - network.addresses.keys()):
        yield (
            f"  {len(missing)} routers have no address of their own in it (a loopback's, /32), {missing[0]} for one: "
            f"virtual links to them are not measured"
        )


def budget(settings: Settings, interval_ns: int = SECOND_NS) -> int:
    """Bytes that a segment takes once everything is kept for as long as it may be."""
    keep = settings.retention
    rows = (
        (keep.single_ns // interval_ns, SINGLE_BYTES),
        (keep.minutes_ns // MINUTE_NS, MINUTE_BYTES),
        (keep.hours_ns // HOUR_NS, HOUR_BYTES),
    )
    return sum(count * size for count, size in rows)
