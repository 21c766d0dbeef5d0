"""Response latency at one point: from a request to the last byte of its response, as the client sees it.

Where both directions of a server pass, requests are paired with their whole responses, exactly (`pairs`). Where only
packets of clients pass, `pirate` times responses from them, and abstains without enough evidence. Which of the two
applies is decided for each server (`response_method`). No figure mixes them: where a total, an interval or a group has
both, its figures are those of paired exchanges, and the estimates stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wirelag.capture.ahead import cores_of
from wirelag.errors import SettingError
from wirelag.measure.group_entries import GroupEntries
from wirelag.measure.groups import Groups, other_note
from wirelag.measure.questions import Questions, named
from wirelag.measure.response_entries import GROUP_BYTES, GroupParts, Synopsis, entries_beside, entry_of, over_time
from wirelag.measure.response_heard import GROUPS, ResponseSettings, hear
from wirelag.measure.result import DelayResult, Entry
from wirelag.measure.slowest import keep_exchanges, slowest_exchanges
from wirelag.units import Duration, Size, duration_ns, format_duration, many, size_bytes

if TYPE_CHECKING:
    from wirelag.capture.packet_rows import ExchangeRows
    from wirelag.capture.source import Packets, PacketSource
    from wirelag.measure.points import Progress
    from wirelag.measure.response_method import Heard
    from wirelag.packets.filters import Filter
    from wirelag.packets.frames import Frames
    from wirelag.packets.interval import Interval
    from wirelag.packets.roles import Server
    from wirelag.report import Report
    from wirelag.stats.sla import Delays
    from wirelag.synopses.epochs import Epochs

SHOWN: Final = 60  # intervals of interval="auto"
FEW_ANSWERED: Final = 0.5  # share of epochs below which figures do not speak for all of them


@dataclass(repr=False, eq=False)
class ResponseResult(DelayResult):
    """Response latency: in total, over time, by server, flow or client."""

    command: ClassVar[str] = "response"
    found: Synopsis | None = None  # what the figures are of: exchanges if any were paired, else epochs
    beside: Epochs | None = None  # estimates beside paired exchanges
    epochs: Epochs | None = None  # of all flows, whatever their method
    both_ways: bool = False  # whether any exchanges were paired
    abstained: list[str] = field(default_factory=list)  # notes on epochs without an estimate
    exchanges: ExchangeRows | None = None  # every exchange, on request

    unheard: list[str] = field(default_factory=list)  # servers without a row: no response, few requests

    def split(self, interval_ns: int) -> list[Entry]:
        """The same over time, in other intervals; without the estimates beside paired exchanges."""
        return over_time(self.found, None, interval_ns) if self.found is not None else []

    def rows(self) -> list[dict[str, Any]]:
        """A row is of one method: estimates beside paired exchanges have one of their own."""
        from wirelag.render.rows import row_of

        return [row_of(one) for entry in (self.total, *self.intervals, *self.groups) for one in entry.by_method()]

    def table(self) -> list[str]:
        from wirelag.render.response import table

        return table(self)

    def page(self) -> str:
        from wirelag.render.response_page import page

        return page(self)


def response(
    source: PacketSource,
    *,
    filter: Filter | str | None = None,
    tunnels: bool = False,
    force: bool = False,
    duration: Duration | None = None,
    server: Sequence[str] | str = (),
    method: str | None = None,
    epoch: Duration = "500ms",
    fewest: int = 4,
    gap: Duration = "1ms",
    literal: bool = False,
    memory: Size = "64MiB",
    interval: Duration | None = None,
    by: str | None = None,
    group_memory: Size = "256MiB",
    sort: str | None = None,
    top: int | None = None,
    above: Sequence[Duration] | Duration = (),
    sla: Sequence[str] | str = (),
    exchanges: bool | str | PathLike[str] = False,
    cores: int | None = None,
    progress: Progress = iter,
    on: Any = None,
) -> ResponseResult:
    """Measure response latency: from a request to the last byte of its response, as the client sees it.

    Packets from clients to servers are enough, even if encrypted; without enough evidence it abstains. `server` names
    servers (`PREFIX[:PORT]`) and leaves other traffic out; by default SYNs and ports identify them. Where both
    directions of a server are seen its exchanges are paired, else its means are estimated, unless `method` is given;
    estimates never mix with exact figures. `interval="auto"` chooses one. Groups are servers unless `by` is given; with
    `by`, agreements must hold for each group. The groups with the most responses are kept, as many as fit
    `group_memory`. `exchanges=True` keeps every paired exchange (`Result.exchanges`); a path writes them to a Parquet
    or CSV file. Captures that hold the same packets are refused, unless `force` is set. `cores` may work on it
    (default: all); no result depends on how many. `on` works on it elsewhere, as in `rtt`.
    """
    settings = ResponseSettings(
        method=method,
        servers=servers_of([server] if isinstance(server, str) else server),
        epoch_ns=duration_ns(epoch, "epoch"),
        fewest=fewest,
        gap_ns=duration_ns(gap, "gap"),
        literal=literal,
        memory=size_bytes(memory, "memory"),
        interval_ns=None if interval in (None, "auto") else duration_ns(interval, "interval"),
        choose_interval=interval == "auto",
        cores=cores_of(cores),
        groups=Groups(by or "server", GROUPS, size_bytes(group_memory, "group_memory"), sort=sort, top=top),
        each_group=by is not None,
        questions=Questions.parse(above, sla).need_no_legs(),
    )
    if on is not None:
        from wirelag.measure.fleet import Fleet
        from wirelag.measure.response_many import response_on

        if exchanges is not False:
            raise SettingError("exchanges", "every exchange is more than tasks return; measure without --on")
        return response_on(Fleet.of(on), source, settings, filter=filter, tunnels=tunnels, force=force)
    from wirelag.capture.source import open_packets

    listen_ns = None if duration is None else duration_ns(duration, "duration")
    packets = open_packets(source, filter=filter, tunnels=tunnels, duration_ns=listen_ns, cores=settings.cores)
    twice = []
    if len(packets.names) > 1:
        from wirelag.measure.copies import refuse_copies

        twice = refuse_copies(packets, force)
    result = measure_response(packets, settings, exchanges=exchanges, progress=progress)
    result.warnings += twice
    return result


def servers_of(texts: Iterable[str]) -> tuple[Server, ...]:
    """Servers from text, `PREFIX[:PORT]`."""
    from wirelag.packets.roles import Server

    try:
        return tuple(Server.parse(text) for text in texts)
    except ValueError as error:
        raise SettingError("server", str(error)) from None


def measure_response(
    packets: Packets,
    settings: ResponseSettings,
    *,
    exchanges: bool | str | PathLike[str] = False,
    progress: Progress = iter,
) -> ResponseResult:
    """The same, with checked settings."""
    from wirelag.packets.frames import Frames

    if exchanges is not False and not settings.may_pair:
        raise SettingError("exchanges", f"--method {settings.method} times no single exchange; use --method pairs")
    path = None
    if not isinstance(exchanges, bool):
        from wirelag.measure.points import own_file

        path = own_file(exchanges, packets.names, "exchanges")
    frames = Frames()
    when, heard = hear(packets, settings, frames, progress)
    return response_of(when, heard, frames, packets, settings, exchanges, path)


def response_of(
    when: Interval,
    heard: Heard,
    frames: Frames,
    packets: Packets,
    settings: ResponseSettings,
    exchanges: object = False,
    path: str | None = None,
) -> ResponseResult:
    """The result from what was heard in packets; `exchanges`: whether each of them is kept, or written to a path."""
    from wirelag.capture.source import Listening
    from wirelag.measure.response_method import Chooser

    if settings.choose_interval:
        interval_ns = max(settings.epoch_ns, when.length_ns // SHOWN)
        settings = replace(settings, interval_ns=interval_ns, choose_interval=False)
    chosen = Chooser(settings.method, settings.fewest).choose(heard)
    both_ways = chosen.paired is not None
    anything = bool(heard.from_clients)
    result = result_of(chosen.main, settings, chosen.beside)
    if anything and not both_ways and (result.report.samples or settings.method):  # else the result says why
        if any(sla.name != "mean" for sla in settings.questions.slas):
            raise SettingError("sla", "one direction gives only the mean: write mean<10ms")
        if settings.questions.above_ns:
            raise SettingError("above", "one direction gives only the mean, not the share above a limit")
    result.both_ways, result.epochs, result.unheard = both_ways, heard.epochs, chosen.unheard
    if not anything:
        result.total.report = replace(result.report, reason="no packets to measure")
    result.explain(packets)
    _add_coverage(result, heard, packets)
    if chosen.paired is not None:
        most = 0 if isinstance(packets, Listening) else settings.groups.slowest
        result.slowest = slowest_exchanges(chosen.paired, frames, most)
    if exchanges is not False:
        paired = heard.exchanges.of(slice(0)) if chosen.paired is None else chosen.paired
        result.exchanges = keep_exchanges(paired, frames, path)
        if anything and chosen.paired is None:
            result.warnings.append(f"--exchanges: no rows, {_no_exchanges(heard, result.extra.get('hint', ''))}")
    return result


def result_of(found: Synopsis, settings: ResponseSettings, beside: Epochs | None = None) -> ResponseResult:
    """The result from epochs or exchanges, and estimates beside these: in total, by group and over time."""
    groups = settings.groups
    (total,) = entries_beside(
        [entry_of("all", "all", found)], [] if beside is None else [entry_of("all", "all", beside)]
    )
    result = ResponseResult(total, by=groups.by or "", each=settings.each_group, found=found, beside=beside)
    result.sort, result.top = groups.sort or "mean", groups.shown
    verdicts = _verdicts(result, settings.questions)
    if groups.by:
        parts = GroupParts(found, groups.by, groups.fit(GROUP_BYTES), beside)
        places, result.few = parts.order(result.sort)
        result.groups = GroupEntries(places.tolist(), lambda some: (verdicts(parts.entry(place)) for place in some))
        result.notes += other_note(f"{parts.more:,}", parts.in_other, result.report.samples, groups.memory)
    result.intervals = over_time(found, beside, settings.interval_ns) if settings.interval_ns else []
    for one in result.total.by_method():
        if "abstained" in one.report.details:
            result.abstained = _abstained(one.report)
            result.notes += _promise(one.report)
    result.notes += (
        result.coarse_notes()
        + result.interval_notes()
        + _parts(result.report)
        + _set_aside(result.report)
        + result.abstained
    )
    verdicts(result.total)
    _ask(result, settings.questions)
    return result


def _verdicts(result: ResponseResult, questions: Questions) -> Callable[[Entry], Entry]:
    """What puts questions to an entry: to exchanges, and to estimates as far as means answer them."""
    if not questions:
        return lambda entry: entry
    inside: dict[str, list[str]] = {}  # servers with estimates beside exchanges, by group
    if result.beside is not None and result.total.estimated is not None:
        parts = result.beside.groups(result.by) if result.by else ()
        inside = {key: _servers(part)[0] for key, part in parts}

    def ask(entry: Entry) -> Entry:
        delays, other = _asked(entry), entry.estimated
        unasked = _servers(result.beside)[0] if entry is result.total and result.beside else inside.get(entry.key, [])
        entry.verdicts = questions.of_both(delays, _asked(other), unasked) if other else questions.of(delays)
        return entry

    return ask


def _ask(result: ResponseResult, questions: Questions) -> None:
    """The answers of the total and of groups, in words."""
    if not questions:
        return
    delays, estimated = _asked(result.total), result.total.estimated
    if result.beside is None or estimated is None:
        result.judge(questions.sentences(delays))
    else:
        result.judge(questions.sentences_of_both(delays, _asked(estimated), *_servers(result.beside)))
    if questions.slas:
        exchanges = result.report.details.get("exchanges", 0)
        if exchanges > result.report.samples:
            unjudged = f"{exchanges - result.report.samples:,} of {exchanges:,} exchanges"
            result.notes.append(f"not judged: {unjudged}, without a time of their own")


def _servers(epochs: Epochs) -> tuple[list[str], list[str]]:
    """Names of the servers, and of those without an estimate."""
    parts = list(epochs.groups("server"))
    return [name for name, _ in parts], [name for name, part in parts if not part.rows["count"].any()]


def _asked(entry: Entry) -> Delays:
    """What questions are put to: single delays, or only a mean."""
    from wirelag.stats.sla import Mean

    mean = entry.report.mean
    return entry.delays if entry.delays.samples else Mean(None if mean is None else mean * 1e9)


# ---- notes ----


def _promise(report: Report) -> list[str]:
    """What a confidence means, and how much of the traffic the estimates are about."""
    said = report.details
    if not said["answered"]:
        return []
    few = said["answered"] < FEW_ANSWERED * said["epochs"]
    share = f"only {said['answered'] / said['epochs']:.1%} of epochs have an estimate: the figures are about these"
    return [share] * few + [
        f"confidence {said['confidence']:.0%}: of such answers, that share is within 25% of the truth"
    ]


def _abstained(report: Report) -> list[str]:
    """Epochs without an estimate, and why."""
    from wirelag.synopses.epochs import MEANING

    reasons: dict[str, int] = report.details["abstained"]
    return [f"{many(n, 'epoch')} without an estimate: {MEANING[reason]} ({reason})" for reason, n in reasons.items()]


def _parts(report: Report) -> list[str]:
    """Of how many responses the parts are known, if not of all: then they do not add up to the mean."""
    said = report.details
    known = said.get("network_samples", 0)
    if not known or known == report.samples:
        return []
    return [
        f"server and network are means of {known:,} of {report.samples:,} responses: those whose network time is "
        f"known, which took {format_duration(said['network_mean'] * 1e9)} on average (network_mean in JSON); compare "
        "them with that, not with the mean of all"
    ]


def _set_aside(report: Report) -> list[str]:
    """Exchanges without a single time, and why."""
    if "pipelined" not in report.details:
        return []
    said, words = report.details, {
        "pipelined": "overlap with others (their batches are timed as a whole)",
        "joined": "may have begun before the capture",
        "cut": "did not end in the capture",
        "unseen": "have bytes that were not captured",
        "overlapping": "are of clients that do not wait for a response before the next request (--method auto)",
        "stream": "are of streams in both directions, such as a call or heartbeats: neither requests nor responses",
    }  # fmt: skip
    lines = [f"{said[name]:,} of {said['exchanges']:,} exchanges {why}" for name, why in words.items() if said[name]]
    if said["retransmitted"]:
        again = many(said["retransmitted"], "exchange")
        lines.append(f"retransmitted packets in {again}: requests are timed from the first copy")
    return lines


def _add_coverage(result: ResponseResult, heard: Heard, packets: Packets) -> None:
    statistics = packets.statistics
    result.covering(statistics.packets, dict(statistics.skipped))
    result.subject, result.warnings = ", ".join(packets.names), list(packets.warnings)
    unused = heard.left_out + (0 if result.both_ways else heard.from_servers)
    result.extra["clients"] = {"packets": heard.from_clients, "not_used": unused, "guessed": heard.guessed}
    result.counts = {"packets": statistics.packets, "from clients to servers": heard.from_clients}
    result.counts |= {"not used": unused} if unused else {}
    result.counts |= {f"skipped: {why}": n for why, n in statistics.skipped.items()}
    result.notes = _coverage(result, heard) + result.notes


def _no_exchanges(heard: Heard, hint: str) -> str:
    """Why no exchange was paired, and what to do."""
    if not heard.from_servers:
        return "since they need both directions, and responses do not pass here; --epochs writes what there is"
    if len(heard.exchanges):
        return (
            "since clients here do not wait for a response before the next request, so that no response belongs to one "
            "request for sure; --method pairs writes them as they follow each other, --epochs writes the estimates"
        )
    why = f" ({hint})" if hint else ""
    return f"since no request was seen together with its response{why}; --epochs writes what there is"


def guess_note(conversations: int) -> list[str]:
    """In how many conversations it is a guess who the client is."""
    if not conversations:
        return []
    return [
        f"{many(conversations, 'conversation')} without a SYN and with ports that are alike: who is the client is a "
        f"guess; to decide it, name the servers with --server PREFIX[:PORT]"
    ]


def _coverage(result: ResponseResult, heard: Heard) -> list[str]:
    """What the figures rest on."""
    assert result.found is not None
    report, counts = result.report, result.found.counts
    lines = [f"{many(report.packets or 0, 'packet')}; {heard.from_clients:,} from clients to servers"]
    skipped = sum(report.skipped.values())
    lines[0] += f"; {skipped:,} skipped" if skipped else ""
    only_paired = result.both_ways and result.beside is None
    if not only_paired and (other := heard.epochs.counts.get("other", 0)):
        lines[0] += f"; {other:,} neither TCP nor a flow that blind can follow"
    if heard.left_out:
        lines.append(f"{heard.left_out:,} packets neither to nor from the named servers were left out (--server)")
    lines += guess_note(heard.guessed)
    if result.beside is not None:
        said = result.beside.report()
        paired, answered, epochs = report.samples, said.details["answered"], said.details["epochs"]
        lines.append(
            f"{many(paired, 'exchange')} paired; {answered:,} of {many(epochs, 'epoch')} estimated "
            f"({named(_servers(result.beside)[0])})"
        )
    if evicted := counts.get("evicted", 0):
        lines.append(f"memory was full, and {many(evicted, 'flow')} had to leave it (--memory)")
    estimated = (result.beside.counts if result.beside else {}) if result.both_ways else counts
    if unlisted := estimated.get("unlisted", 0):
        lines.append(f"not listed: {many(unlisted, 'epoch')}, because there were too many")
    if result.both_ways and (unlisted := counts.get("unlisted", 0)):
        lines.append(f"{unlisted:,} exchanges are not listed: there were too many")
    if result.both_ways and not (result.beside or result.unheard) and (unanswered := counts.get("unanswered", 0)):
        lines.append(f"{many(unanswered, 'request')} without a response in the capture: in no figure")
    if result.unheard:
        lines.append(
            f"not listed: {many(len(result.unheard), 'server')}, because no response was seen "
            f"({named(result.unheard)}): --method auto lists them"
        )
    return lines
