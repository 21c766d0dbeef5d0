"""`wirelag watch`: round-trip delay or response latency at an interface, while it happens."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wirelag.cli.options import (
    ANSWER,
    FILTERS,
    METHOD,
    Hosts,
    Nets,
    Ports,
    Protocols,
    Tunnels,
    duration_ns,
    make_filter,
    one_of,
    ranged,
    size_of,
    speed_of,
)
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.capture.live import Source
    from wirelag.cli.watch_measures import Part, Responses, RoundTrips
    from wirelag.packets.filters import Filter
    from wirelag.packets.intervals import Interval

    Measure = RoundTrips | Responses

QUANTITIES: Final = ("rtt", "response")
GROUPS: Final = {"rtt": ("flow", "client", "server", "subnet", "port"), "response": ("server", "flow", "client")}
METHODS: Final = ("auto", "pairs", "blind", "modes", "gap", "ack", "window", "syn")
LEAST_INTERVAL_NS: Final = 100 * 10**6
INTERFACE: Final = "Where"


def watch(
    words: Annotated[
        list[str], typer.Argument(metavar="[IFACE] rtt|response", help="Where to listen (not with -r), and for what.")
    ],
    read: Annotated[
        list[str] | None,
        typer.Option("-r", "--read", metavar="CAPTURE", help="Replay this capture instead.", rich_help_panel=INTERFACE),
    ] = None,
    speed: Annotated[
        str, typer.Option(metavar="Nx|max", help="How fast a capture is replayed.", rich_help_panel=INTERFACE)
    ] = "1x",
    expression: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="EXPRESSION",
            help="As tcpdump takes it; the kernel applies it.",
            rich_help_panel=FILTERS,
        ),
    ] = None,
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    tunnels: Tunnels = False,
    direction: Annotated[
        str, typer.Option(metavar="both|in|out", help="Packets that come in, go out, or both.", rich_help_panel=FILTERS)
    ] = "both",
    promiscuous: Annotated[
        bool, typer.Option("--promiscuous", help="Also what is for other hosts.", rich_help_panel=INTERFACE)
    ] = False,
    clock: Annotated[
        str, typer.Option(metavar="kernel|hardware", help="Who stamps packets.", rich_help_panel=INTERFACE)
    ] = "kernel",
    ring: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for packets that wait.", rich_help_panel=INTERFACE)
    ] = "64MiB",
    cores: Annotated[int, typer.Option(metavar="N", help="That take packets in.", rich_help_panel=INTERFACE)] = 1,
    in_kernel: Annotated[
        bool,
        typer.Option(
            "--in-kernel", help="Measure inside the kernel (eBPF), not from copies.", rich_help_panel=INTERFACE
        ),
    ] = False,
    then: Annotated[
        str | None,
        typer.Option(metavar="PINNED", help="An XDP program to run after ours.", rich_help_panel=INTERFACE),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX[:PORT]", help="response: where servers are.", rich_help_panel=METHOD),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="|".join(METHODS), help="response: as in wirelag response.", rich_help_panel=METHOD),
    ] = None,
    table_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for connections.", rich_help_panel=METHOD)
    ] = "64MiB",
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="rtt: a fridge of this size, not exact matching.", rich_help_panel=METHOD),
    ] = None,
    interval: Annotated[str, typer.Option(metavar="D", help="An answer each.", rich_help_panel=ANSWER)] = "1s",
    by: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(GROUPS["rtt"]), help="Groups; response: server, flow or client.", rich_help_panel=ANSWER
        ),
    ] = None,
    most_groups: Annotated[
        int, typer.Option(metavar="N", help="Groups to keep; the rest is 'other'.", rich_help_panel=ANSWER)
    ] = 100,
    length: Annotated[
        str | None, typer.Option("--for", metavar="D", help="End after this long.", rich_help_panel=ANSWER)
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", metavar="table|jsonl", help="A view, or a line of JSON for each interval.")
    ] = "table",
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Serve /metrics there, too: 127.0.0.1:9464, or a port alone."),
    ] = None,
) -> None:
    """Watch an interface: round-trip delay or response latency now and over the last minutes.

    Packets that the capture dropped are always shown. Ctrl-C ends it with a report over everything. Listening needs
    CAP_NET_RAW, which is given up once the socket is open.
    """
    interface, quantity = _words(words, read or [], speed)
    one_of(output_format, ("table", "jsonl"), "--format")
    one_of(direction, ("both", "in", "out"), "--direction")
    one_of(clock, ("kernel", "hardware"), "--clock")
    if by is not None:
        one_of(by, GROUPS[quantity], "--by")
    if method is not None:
        one_of(method, METHODS, "--method")
    ranged(most_groups, 1, 1000, "--most-groups")
    interval_ns = duration_ns(interval, "--interval")
    if interval_ns < LEAST_INTERVAL_NS:
        raise typer.BadParameter("must be 100ms at least", param_hint="--interval")
    length_ns = duration_ns(length, "--for") if length else None
    wanted = make_filter(hosts, nets, ports, protocols, None, None)
    ring_bytes = size_of(ring, "--ring")
    ranged(ring_bytes, 1 << 18, 1 << 32, "--ring")
    ranged(cores, 1, len(os.sched_getaffinity(0)), "--cores")
    if prometheus is not None:
        _need_address(prometheus)

    from wirelag.capture.privileges import drop_privileges, no_threads

    no_threads()
    measure = _measure(quantity, by, most_groups, server or [], method, table_memory, memory)
    problem = None
    with ExitStack() as stack:
        source: Source
        inside = None
        if in_kernel or then is not None:
            from wirelag.cli.watch_kernel import InKernel, open_inside

            filtered = wanted != make_filter(None, None, None, None, None, None)
            refused = {"-r": interface is None, "--filter": expression is not None, "--host, --net, --port": filtered}
            refused |= {"--promiscuous": promiscuous, "--clock hardware": clock == "hardware"}
            size = size_of(memory or table_memory, "--memory")
            asked = InKernel(
                quantity,
                interface or "",
                interval_ns,
                direction,
                tunnels,
                then,
                size,
                method,
                tuple(server or []),
                by,
                most_groups,
            )
            inside = open_inside(in_kernel, refused, asked)
        if inside is not None:
            source, measure = inside
            stack.callback(source.close)
            drop_privileges()
        elif interface is None:
            live_only = {"--filter": expression is not None, "--direction": direction != "both", "--cores": cores != 1}
            live_only |= {"--promiscuous": promiscuous, "--clock": clock != "kernel", "--ring": ring != "64MiB"}
            source = _replay(read or [], speed, live_only, wanted, tunnels)
        else:
            from wirelag.capture.fanout import over_cores
            from wirelag.capture.live import Live

            listen = partial(
                Live,
                interface,
                filter=expression,
                wanted=wanted,
                tunnels=tunnels,
                promiscuous=promiscuous,
                direction=direction,  # type: ignore[arg-type]
                clock=clock,  # type: ignore[arg-type]
                ring_bytes=ring_bytes // cores,
            )
            source = over_cores(cores, interval_ns, lambda fanout: listen(fanout=fanout))
            stack.callback(source.close)
            drop_privileges()
        lock = threading.Lock()
        if prometheus is not None:
            from wirelag.cli.watch_metrics import exporter

            stack.callback(exporter(prometheus, source, measure, lock).close)
        stack.enter_context(_stopping(source))
        show = stack.enter_context(_shown(output_format, source, measure, by))
        try:
            _run(source, measure, interval_ns, length_ns, lock, show)
        except WirelagError as error:
            problem = error
        with lock:
            measure.finish()
    if problem is None or inside is not None or source.statistics.packets:
        _conclude(output_format, source, measure, by)
    for line in source.warnings:
        print(f"warning: {line}", file=sys.stderr)
    if problem is not None:
        raise problem


def _words(words: list[str], read: list[str], speed: str) -> tuple[str | None, str]:
    """The interface, if any, and what is measured."""
    *interfaces, quantity = words
    one_of(quantity, QUANTITIES, "the last word")
    if read and interfaces:
        raise typer.BadParameter("with -r no interface is watched: leave it out", param_hint=interfaces[0])
    if not read and speed != "1x":
        raise typer.BadParameter("is for captures (-r): an interface has its own", param_hint="--speed")
    if not read and len(interfaces) != 1:
        raise typer.BadParameter(f"name one interface, for example: wirelag watch eth0 {quantity}")
    return (None if read else interfaces[0]), quantity


def _need_address(text: str) -> None:
    from wirelag.render.prometheus import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--prometheus") from None


def _replay(read: list[str], speed: str, live_only: dict[str, bool], wanted: Filter, tunnels: bool) -> Source:
    from wirelag.capture.live import Replay

    for option in (name for name, is_given in live_only.items() if is_given):
        raise typer.BadParameter("is for interfaces; with -r there are --host, --net, --port", param_hint=option)
    return Replay(read, speed=speed_of(speed), wanted=wanted, tunnels=tunnels)


def _measure(
    quantity: str,
    by: str | None,
    most_groups: int,
    servers: list[str],
    method: str | None,
    table_memory: str,
    memory: str | None,
) -> Measure:
    from wirelag.cli.watch_measures import Responses, RoundTrips

    size = size_of(table_memory, "--table-memory")
    if quantity == "response":
        if memory is not None:
            raise typer.BadParameter("is for rtt; here it is --table-memory", param_hint="--memory")
        from wirelag.cli.response import servers_of
        from wirelag.estimators.pirate import Pirate

        pirate = Pirate("auto" if method in (None, "pairs") else method, size)  # type: ignore[arg-type]
        return Responses(pirate, method, servers_of(servers), by, most_groups)
    if servers or method:
        raise typer.BadParameter("is for response", param_hint="--server" if servers else "--method")
    from wirelag.estimators.fridge import Fridge
    from wirelag.estimators.match import Match
    from wirelag.packets.grouping import Grouping

    grouping = Grouping(by, most=most_groups) if by else None  # type: ignore[arg-type]
    if memory is None:
        return RoundTrips(Match(memory=size).meter("tap"), "match", grouping)
    size = size_of(memory, "--memory")
    ranged(size, 1024, 1 << 32, "--memory")
    return RoundTrips(Fridge(memory=size).meter("tap"), "fridge", grouping)


@contextmanager
def _stopping(source: Source) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the measurement in order; a second one ends the program."""

    def stop(number: int, frame: FrameType | None) -> None:
        source.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    source: Source,
    measure: Measure,
    interval_ns: int,
    length_ns: int | None,
    lock: threading.Lock,
    show: Callable[[Part, int], None],
) -> None:
    """Measure until there is no more to come."""
    from wirelag.capture.live import by_clock

    for interval, packets in by_clock(source, interval_ns):
        if packets is not None:
            measure.observe(packets)
        else:
            watched = _watched(interval, source)
            with lock:
                part = measure.cut(watched)
            show(part, source.dropped_during(watched))
        if length_ns is not None and source.now_ns() >= (source.began_ns or 0) + length_ns:
            source.stop()


def _watched(interval: Interval, source: Source) -> Interval:
    """How much of it was watched: of the first interval and the last perhaps only a part."""
    from wirelag.packets.intervals import Interval

    end_ns = min(interval.end_ns, max(source.now_ns(), interval.start_ns + 1))
    return Interval(min(max(interval.start_ns, source.began_ns or 0), end_ns - 1), end_ns)


@contextmanager
def _shown(form: str, source: Source, measure: Measure, by: str | None) -> Iterator[Callable[[Part, int], None]]:
    """How an interval is shown: as a line of JSON, as a line, or as a view that changes in place."""
    if form == "jsonl":
        yield lambda part, dropped: _print(_as_json(part, dropped, source))
        return
    from wirelag.cli.watch_view import View, plain_line

    if not sys.stdout.isatty():
        yield lambda part, dropped: _print(plain_line(part, dropped))
        return
    from rich.live import Live as Screen

    view = View(source, measure, by)
    with Screen(view.draw(), auto_refresh=False, transient=True) as screen:

        def show(part: Part, dropped: int) -> None:
            view.add(part)
            screen.update(view.draw(), refresh=True)

        yield show


def _print(line: str) -> None:
    print(line, flush=True)


def _as_json(part: Part, dropped: int, source: Source) -> str:
    plain = part.report.to_json("watch") | {"dropped": dropped, "capture": _capture(source)}
    plain["groups"] = [{"key": key} | report.to_json() for key, report in part.groups.items()]
    return json.dumps(plain)


def _capture(source: Source) -> dict[str, Any]:
    known = source.statistics
    return {"received": known.received, "dropped": known.dropped, "freezes": known.freezes}


def _conclude(form: str, source: Source, measure: Measure, by: str | None) -> None:
    """What all of it said."""
    from dataclasses import replace

    from wirelag.cli.output import Line
    from wirelag.cli.watch_view import coverage, table

    known = source.statistics
    rows = measure.lines()
    rows[0].report = replace(rows[0].report, packets=known.packets, skipped=known.skipped)
    if not known.packets:
        rows[0].report = replace(rows[0].report, reason="there were no packets")
    groups = list(measure.groups.reports(measure.estimator, measure.quantity)) if by else []
    if form == "jsonl":
        plain = rows[0].report.to_json("watch")
        plain |= {"final": True, "dropped": known.dropped, "capture": _capture(source)}
        plain["groups"] = [{"key": key} | said.to_json() for key, said, _ in groups]
        _print(json.dumps(plain))
        return
    lines = table(rows, [Line("group", *one) for one in groups], f"by {by}, slowest first")
    _print("\n".join([*lines, coverage(known)]))
