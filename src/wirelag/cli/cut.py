"""`wirelag cut`: what one point keeps of its packets, in a file for another place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from wirelag.cli.method import (
    GROUPS,
    Banks,
    Buckets,
    ControlPort,
    CutBy,
    Deviation,
    Direction,
    EstimatorName,
    Losses,
    Memory,
    Nat,
    NoCheck,
    PerInterval,
    Prefix,
    Rows,
    Seed,
    Tail,
    delimiters_of,
    direction_of,
    estimator_of,
    grouping_of,
    packet_id_of,
)
from wirelag.cli.options import (
    ANSWER,
    METHOD,
    Captures,
    End,
    Hosts,
    Interval,
    Ipv4Prefix,
    Ipv6Prefix,
    MostGroups,
    Nets,
    Ports,
    Protocols,
    Quiet,
    Start,
    Tunnels,
    apart,
    duration_ns,
    make_filter,
    offset_ns,
)
from wirelag.cli.progress import with_progress
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.filters import Filter
    from wirelag.packets.grouping import Grouping
    from wirelag.protocol.terms import Terms


def cut(
    captures: Captures,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where to, A.syn say.")],
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    start: Start = None,
    end: End = None,
    tunnels: Tunnels = False,
    direction: Direction = None,
    nat: Nat = False,
    prefix: Prefix = 16,
    estimator: EstimatorName = "lda",
    offset: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="How far this point's clock is ahead, where that is known.", rich_help_panel=METHOD
        ),
    ] = None,
    rows: Rows = None,
    loss: Losses = None,
    packets_per_interval: PerInterval = None,
    banks: Banks = 3,
    no_check: NoCheck = False,
    buckets: Buckets = None,
    deviation: Deviation = "rows",
    tail: Tail = 2048,
    memory: Memory = "512MiB",
    seed: Seed = 0,
    cut_by: CutBy = None,
    control_port: ControlPort = None,
    interval: Interval = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(GROUPS), help="A synopsis for each class of traffic, too.", rich_help_panel=ANSWER
        ),
    ] = None,
    most_groups: MostGroups = 100,
    ipv4_prefix: Ipv4Prefix = 24,
    ipv6_prefix: Ipv6Prefix = 48,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Answer the questions of `wirelag oneway --ask` instead; its terms are used.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Keep a few kilobytes of each interval, to be compared with those of another point by `wirelag oneway`.

    Use the same options at both points.
    """
    wanted = make_filter(hosts, nets, ports, protocols, start, end)
    ahead_ns = offset_ns(offset) if offset else 0
    if output == "-":
        raise typer.BadParameter("wants the name of a file", param_hint="-o")
    apart({"-o": output}, [*captures, *([answer] if answer else [])])
    if answer is not None:
        _answer(captures, wanted, tunnels, answer, output, ahead_ns, quiet)
        return
    if estimator == "join":
        raise typer.BadParameter("join needs every packet: give `oneway` both captures", param_hint="--estimator")
    from wirelag.protocol.terms import Terms

    interval_ns = duration_ns(interval, "--interval") if interval else None
    method = estimator_of(
        estimator,
        rows=rows,
        loss=loss,
        packets=packets_per_interval,
        banks=banks,
        no_check=no_check,
        buckets=buckets,
        rateless=False,
        deviation=deviation,
        tail=tail,
        memory=memory,
        seed=seed,
    )
    wanted_groups = grouping_of(by, ipv4_prefix, ipv6_prefix, most_groups)
    by_text = f"{wanted_groups.by}/{ipv4_prefix}/{ipv6_prefix}/{most_groups}" if wanted_groups else None
    terms = Terms(
        method,  # type: ignore[arg-type]
        packet_id_of(nat, prefix, seed),
        interval_ns,
        delimiters_of(method, interval_ns, cut_by, control_port, packets_per_interval),
        by_text,
        direction,
        _filter_text(wanted, tunnels),
    )
    _write(captures, wanted, tunnels, terms, output, ahead_ns, quiet)


def _write(
    captures: list[str], wanted: Filter, tunnels: bool, terms: Terms, output: str, ahead_ns: int, quiet: bool
) -> None:
    from wirelag.capture.files import Capture
    from wirelag.capture.synopsis_file import SynopsisWriter
    from wirelag.estimators.rda import Rda
    from wirelag.protocol.terms import About, records_of
    from wirelag.twopoint.spans import Cut, cuts

    capture = Capture(captures, filter=wanted, packet_id=terms.packet_id, tunnels=tunnels)
    grouping, of = _grouping(terms.by), terms.two_point
    seen = _Seen()
    batches = seen.watch(_selected(with_progress(capture, quiet), terms.direction, ahead_ns))
    with SynopsisWriter(output, About("synopses", terms, tuple(captures), ahead_ns)) as writer:
        for part in cuts(of, "upstream", batches, terms.interval_ns, terms.delimiters, grouping):
            kept = part
            if isinstance(of, Rda):  # buckets are made now: this point cannot talk with the other one
                kept = Cut(part.interval, {tag: of.bind(cached) for tag, cached in part.synopses.items()})
            for record in records_of(kept, grouping.keys if grouping else {}):
                writer.write(record)
        overflow = bool(grouping and len(grouping.keys) > grouping.most)
        writer.counted |= {"packets": capture.statistics.packets, "overflow": overflow, **seen.span()}
    for line in capture.warnings:
        print(f"warning: {line}", file=sys.stderr)
    if seen.both_ways and terms.direction is None:
        print(
            "warning: packets travel both ways here, and those that go away from the other point will count as lost: "
            "name the way with --direction 'SRC>DST'",
            file=sys.stderr,
        )
    if seen.cut_payloads:
        print(
            f"warning: {seen.cut_payloads:,} packets hold less payload than --prefix {terms.packet_id.prefix}: the "
            f"other point may see another id for them; use the same, shorter --prefix at both",
            file=sys.stderr,
        )
    print(f"{output}: {writer.records} synopses of {seen.packets:,} packets, {writer.bytes:,} bytes")


def _answer(
    captures: list[str], wanted: Filter, tunnels: bool, ask: str, output: str, ahead_ns: int, quiet: bool
) -> None:
    """The times of what only one point saw: the capture is read again, and cut in the same way."""
    from wirelag.capture.files import Capture
    from wirelag.capture.synopsis_file import SynopsisFile, SynopsisWriter
    from wirelag.protocol.terms import About, answered, place
    from wirelag.twopoint.spans import cuts

    file = SynopsisFile(ask)
    if file.about.kind != "ask":
        raise WirelagError(f"{ask}: holds no questions; `wirelag oneway A.syn B.syn --ask {ask}` writes them")
    terms = file.about.terms
    if _filter_text(wanted, tunnels) != terms.filter:
        raise WirelagError(f"{ask}: was cut with other filters ({terms.filter or 'none'}); give --answer the same")
    try:
        questions = {place(terms, record["start_ns"], record["class"]): record for record in file}
    except KeyError as error:
        raise WirelagError(f"{ask}: a record is no question ({error})") from None
    capture = Capture(captures, filter=wanted, packet_id=terms.packet_id, tunnels=tunnels)
    grouping = _grouping(terms.by)
    batches = _selected(with_progress(capture, quiet), terms.direction, ahead_ns)
    with SynopsisWriter(output, About("times", terms, tuple(captures), ahead_ns)) as writer:
        for part in cuts(terms.two_point, "upstream", batches, terms.interval_ns, terms.delimiters, grouping):
            for tag, cached in part.synopses.items():
                key = grouping.keys.get(tag) if grouping else None
                question = questions.get(place(terms, part.interval.start_ns, key))
                if question is not None:
                    writer.write(answered(cached, question))
    for line in [*capture.warnings, *file.warnings]:
        print(f"warning: {line}", file=sys.stderr)
    print(f"{output}: {writer.records} answers to {len(questions)} questions, {writer.bytes:,} bytes")


def _filter_text(wanted: Filter, tunnels: bool) -> str | None:
    """Which packets were looked at, but for times: those are each point's own."""
    parts = {"nets": wanted.nets, "ports": wanted.ports, "protocols": wanted.protocols}
    words = [f"{name} {' '.join(sorted(map(str, values)))}" for name, values in parts.items() if values]
    return "; ".join([*words, *(["inside tunnels"] if tunnels else [])]) or None


def _selected(batches: Iterable[PacketBatch], direction: str | None, ahead_ns: int) -> Iterator[PacketBatch]:
    """Packets of the wanted direction, on the clock of the other points."""
    way = direction_of(direction) if direction else None
    for batch in batches:
        kept = batch if way is None else batch[way.rows(batch)]
        yield kept.at_times(kept.time_ns - ahead_ns) if ahead_ns else kept


def _grouping(by: str | None) -> Grouping | None:
    """As it stands in the terms: the word, prefix lengths, and how many."""
    from wirelag.packets.grouping import Grouping

    if by is None:
        return None
    kind, ipv4_prefix, ipv6_prefix, most = by.split("/")
    return Grouping(kind, int(ipv4_prefix), int(ipv6_prefix), int(most))  # type: ignore[arg-type]


class _Seen:
    """What passes: how much, when, and whether both ways."""

    def __init__(self) -> None:
        self.packets = 0
        self.cut_payloads = 0
        self.both_ways = False
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    def watch(self, batches: Iterable[PacketBatch]) -> Iterator[PacketBatch]:
        """Let packets pass."""
        import numpy as np

        from wirelag.packets.batch import Flag

        for batch in batches:
            if not len(batch):
                continue
            self.packets += len(batch)
            self.cut_payloads += int(batch.has(Flag.PREFIX_CUT).sum())
            first_ns, last_ns = int(batch.time_ns.min()), int(batch.time_ns.max())
            self._first_ns = first_ns if self._first_ns is None else min(self._first_ns, first_ns)
            self._last_ns = last_ns if self._last_ns is None else max(self._last_ns, last_ns)
            if not self.both_ways:
                reverse = batch.has(Flag.REVERSE)
                self.both_ways = bool(np.isin(batch.flow_key[reverse], batch.flow_key[~reverse]).any())
            yield batch

    def span(self) -> dict[str, int]:
        """The first and the last time."""
        if self._first_ns is None or self._last_ns is None:
            return {}
        return {"first_ns": self._first_ns, "last_ns": self._last_ns}
