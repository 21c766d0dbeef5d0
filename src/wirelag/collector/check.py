"""What a collector would do, in words: `wirelag collect --check`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from wirelag.collector.following import Follow, called, pointed
from wirelag.collector.serve import encryption, listening
from wirelag.collector.settings import Settings
from wirelag.collector.sqlite_check import looked_over
from wirelag.collector.sqlite_file import VERSION, version_of
from wirelag.collector.store import HOUR_NS, MINUTE_NS, SECOND_NS, is_postgres
from wirelag.collector.stores import holder
from wirelag.errors import WirelagError
from wirelag.network.topology import Topology, read_topology
from wirelag.units import format_duration

SINGLE_BYTES, MINUTE_BYTES, HOUR_BYTES = 280, 780, 1500  # bytes of a packed result, at 500 delays per second


def told(settings: Settings) -> Iterator[str]:
    """The forecast, line by line; a WirelagError if it would not start."""
    try:
        listening(settings).close()
    except WirelagError as error:
        process = holder(settings.store)
        if process is None or os.strerror(errno.EADDRINUSE) not in str(error):
            raise
        yield f"a collector with this store is running (process {process}): what follows is after a reload or a restart"
    scheme = "http" if encryption(settings) is None else "https"
    who = "any user of this host" if settings.tokens is None else f"holders of one of {len(settings.tokens)} tokens"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    certified = f" with a certificate of {settings.client_ca}, which names the point of an agent"
    yield f"listens on {scheme}://{host}:{settings.port}/ for {who}{certified if settings.client_ca else ''}"
    for path in filter(None, (settings.token_file, settings.key)):
        if os.stat(path).st_mode & 0o007:
            yield f"  every user of this host may read {path}: chmod o= {path}"
    if settings.nats is not None:
        import asyncio

        from wirelag.transport.nats_check import problem

        also = "shares the work by way of" if settings.shares else "also receives messages from"
        yield f"{also} {settings.nats.shown}"
        if (wrong := asyncio.run(problem(settings.nats))) is not None:
            yield f"  {wrong}"
    if settings.ends:
        yield f"measures {len(settings.ends)} segments:"
        for one in settings.ends:
            yield f"  {one.segment}: from {one.upstream} to {one.downstream}"
    else:
        yield "measures the segments that agents name (A>B, with points A and B)"
    if settings.topology is not None:
        net = read_topology(settings.topology)
        yield f"sums paths over {len(net.routers)} routers of {settings.topology}"
        if settings.follow is not None:
            yield from _followed(settings.follow, net)
    yield from _kept(settings)
    keep = settings.retention
    ages = (("intervals", keep.single_ns), ("minutes", keep.minutes_ns), ("hours", keep.hours_ns))
    yield "  " + ", ".join(f"{name} for {format_duration(age)}" for name, age in ages)
    size, most = budget(settings) >> 20, keep.most_bytes >> 20
    yield f"  about {size} MiB per segment with intervals of 1 s; at most {most} MiB in total"
    yield settings.given


def _kept(settings: Settings) -> Iterator[str]:
    """Where results are kept."""
    if is_postgres(settings.store):
        from wirelag.collector import postgres_tables as tables

        version, name = tables.version_of(settings.store), tables.shown(settings.store)
        yield f"keeps results in {name} ({'new' if version is None else 'existing'})"
        newest = len(tables.STEPS)
        if version not in (None, newest):
            yield f"  which has version {version}: the start brings it to version {newest}; make a backup before"
        return
    version = version_of(settings.store)
    yield f"keeps results in {settings.store} ({'new' if version is None else 'existing'})"
    if version not in (None, VERSION):
        copy = f"{settings.store}.version{version}"
        yield f"  which has version {version}: the start copies it to {copy}, and brings it to version {VERSION}"
    if version is not None and (wrong := looked_over(settings.store, holder(settings.store) is not None)) is not None:
        yield f"  which {wrong}"


def _followed(follow: Follow, net: Topology) -> Iterator[str]:
    network = pointed(net, follow.names)
    for router in follow.upgraded or ():
        network.check(called(router, follow.names))
    who = f"{len(follow.upgraded)} routers measure" if follow.upgraded else "routers with live agents measure"
    yield (
        f'reads it every {format_duration(follow.every_ns)}: {who}; agents with m_set.by = "collector" get '
        f"their m-sets, and old and new segments overlap for {format_duration(follow.overlap_ns)}"
    )
    if missing := sorted(set(network.routers) - network.addresses.keys()):
        yield (
            f"  {len(missing)} routers have no address of their own in it (a loopback, /32), such as {missing[0]}: "
            f"virtual links to them are not measured"
        )


def budget(settings: Settings, interval_ns: int = SECOND_NS) -> int:
    """Bytes of a segment once the retention times are reached."""
    keep = settings.retention
    rows = (
        (keep.single_ns // interval_ns, SINGLE_BYTES),
        (keep.minutes_ns // MINUTE_NS, MINUTE_BYTES),
        (keep.hours_ns // HOUR_NS, HOUR_BYTES),
    )
    return sum(count * size for count, size in rows)
