"""`wirelag response`: response latency, also where only the packets of clients are seen."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wirelag.cli.options import (
    ANSWER,
    FORMATS,
    METHOD,
    Captures,
    End,
    Hosts,
    Html,
    MostGroups,
    Nets,
    Output,
    OutputFormat,
    Ports,
    Protocols,
    Questions,
    Quiet,
    Start,
    Tunnels,
    apart,
    duration_ns,
    make_filter,
    one_of,
    questions_of,
    ranged,
    size_of,
)
from wirelag.cli.output import Answer, write_answer
from wirelag.cli.progress import with_progress
from wirelag.cli.response_table import Synopsis, answer_of, as_table, pairs_table, write_epochs
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.files import Capture
    from wirelag.estimators.pirate import Pirate
    from wirelag.packets.batch import PacketBatch
    from wirelag.packets.roles import Server
    from wirelag.synopses.epochs import Epochs
    from wirelag.synopses.request_response import Exchanges

METHODS: Final = ("auto", "pairs", "blind", "modes", "gap", "ack", "window", "syn")
GROUPS: Final = ("server", "flow", "client")
LONGEST_EPOCH_NS: Final = 1 << 34
LONGEST_GAP_NS: Final = 1 << 40
LEAST_MEMORY: Final = 8 << 10
SHOWN: Final = 60  # intervals of --interval auto
BOTH_WAYS: Final = 4  # so many packets of clients for one of a server, and both directions are there


@dataclass
class Heard:
    """What the packets said, and whose they were."""

    epochs: Epochs
    exchanges: Exchanges
    from_clients: int
    from_servers: int
    span_ns: tuple[int, int]

    @property
    def both_ways(self) -> bool:
        """Whether most of what was asked was also seen answered, each by itself."""
        single, overlapping = len(self.exchanges.single), self.exchanges.overlapping
        return single > overlapping and self.from_servers * BOTH_WAYS >= self.from_clients


def response(
    captures: Captures,
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    start: Start = None,
    end: End = None,
    tunnels: Tunnels = False,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX[:PORT]",
            help="Where servers are; default: found by SYNs and ports.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(METHODS),
            help="pairs needs both directions, auto dates responses by TCP's ACKs, blind by sizes and times; "
            "default: pairs where both directions are seen, else auto.",
            rich_help_panel=METHOD,
        ),
    ] = None,
    epoch: Annotated[
        str, typer.Option(metavar="D", help="An answer of a flow is of at least so long.", rich_help_panel=METHOD)
    ] = "500ms",
    fewest: Annotated[
        int, typer.Option(metavar="N", help="An answer is of at least so many responses.", rich_help_panel=METHOD)
    ] = 4,
    gap: Annotated[
        str, typer.Option(metavar="D", help="gap: what is longer begins a batch.", rich_help_panel=METHOD)
    ] = "1ms",
    literal: Annotated[
        bool,
        typer.Option("--literal", help="modes: as the paper has it, to the letter.", rich_help_panel=METHOD),
    ] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="For flows that are open.", rich_help_panel=METHOD)] = (
        "64MiB"
    ),
    interval: Annotated[
        str | None,
        typer.Option(metavar="D|auto", help="Answers over time, too; auto chooses.", rich_help_panel=ANSWER),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="|".join(GROUPS), help="An answer for each of these.", rich_help_panel=ANSWER)
    ] = "server",
    most_groups: MostGroups = 1000,
    sla: Questions = None,
    output_format: OutputFormat = "table",
    output: Output = None,
    html: Html = None,
    epochs_file: Annotated[
        str | None, typer.Option("--epochs", metavar="FILE.parquet", help="Write the answer of every epoch, too.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure response latency: from a request to the last byte of its response, as the client sees it.

    The packets from clients to servers are enough (direct server return, asymmetric routes), even if encrypted. Where
    they cannot tell, it says so.
    """
    one_of(output_format, FORMATS, "--format")
    one_of(by, GROUPS, "--by")
    if method is not None:
        one_of(method, METHODS, "--method")
    ranged(fewest, 1, 1 << 20, "--fewest")
    ranged(most_groups, 1, 1 << 20, "--most-groups")
    apart({"-o": output, "--html": html, "--epochs": epochs_file}, captures)
    wanted = make_filter(hosts, nets, ports, protocols, start, end)
    questions = questions_of(sla or [])
    epoch_ns, gap_ns, memory_bytes = (
        duration_ns(epoch, "--epoch"),
        duration_ns(gap, "--gap"),
        size_of(memory, "--memory"),
    )
    if epoch_ns > LONGEST_EPOCH_NS:
        raise typer.BadParameter(f"{epoch} is longer than 17s, the longest epoch", param_hint="--epoch")
    if gap_ns > LONGEST_GAP_NS:
        raise typer.BadParameter(f"{gap} is longer than 18min, the longest gap", param_hint="--gap")
    if memory_bytes < LEAST_MEMORY:
        raise typer.BadParameter(f"{memory} has no room for flows: at least 8KiB", param_hint="--memory")
    interval_ns = duration_ns(interval, "--interval") if interval not in (None, "auto") else None

    from wirelag.capture.files import Capture
    from wirelag.estimators.pirate import Pirate

    estimator = Pirate(
        "auto" if method in (None, "pairs") else method,  # type: ignore[arg-type]
        memory_bytes,
        epoch_ns if interval_ns is None else min(epoch_ns, interval_ns),
        fewest,
        gap_ns,
        literal,
    )
    capture = Capture(captures, filter=wanted, tunnels=tunnels)
    heard = _heard(estimator, capture, servers_of(server or []), method in (None, "pairs"), quiet)
    for line in capture.warnings:
        print(f"warning: {line}", file=sys.stderr)
    _need_clients(heard, capture, server or [])
    if interval == "auto":
        interval_ns = max(epoch_ns, (heard.span_ns[1] - heard.span_ns[0]) // SHOWN)

    both_ways = method == "pairs" or (method is None and heard.both_ways)
    if not both_ways and any(question.name != "mean" for question in questions):
        raise typer.BadParameter("from one direction only the mean is known: ask mean<10ms", param_hint="--sla")
    found: Synopsis = heard.exchanges if both_ways else heard.epochs
    answer = answer_of(found, by, interval_ns, most_groups, questions)
    total = answer.total.report
    statistics = capture.statistics
    answer.total.report = replace(total, packets=statistics.packets, skipped=statistics.skipped)
    answer.extra["clients"] = {"packets": heard.from_clients, "not_used": 0 if both_ways else heard.from_servers}
    answer.notes = _coverage(heard, found, answer) + answer.notes
    if epochs_file:
        write_epochs(epochs_file, heard.epochs)
    if html:
        from wirelag.cli.response_page import write_page

        write_page(html, answer, found, capture)
    write_answer(answer, output_format, output, pairs_table if both_ways else as_table)
    if not all(asked["holds"] for asked in answer.extra.get("sla", ())):
        raise typer.Exit(3)


def servers_of(texts: list[str]) -> tuple[Server, ...]:
    """The servers of --server, or a usage error."""
    from wirelag.packets.roles import Server

    try:
        return tuple(Server.parse(text) for text in texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--server") from None


class _Asking:
    """Which rows of the batch at hand clients sent, found once."""

    def __init__(self, servers: tuple[Server, ...]) -> None:
        from wirelag.packets.roles import Roles

        self._roles = Roles(servers)
        self._found: tuple[PacketBatch, npt.NDArray[np.bool_]] | None = None

    def __call__(self, batch: PacketBatch) -> npt.NDArray[np.bool_]:
        if self._found is None or self._found[0] is not batch:
            self._found = batch, self._roles.from_client(batch)
        return self._found[1]


def _heard(estimator: Pirate, capture: Capture, servers: tuple[Server, ...], may_be_both: bool, quiet: bool) -> Heard:
    """Measure, in one pass."""
    import numpy as np

    from wirelag.estimators.pairs import Pairs
    from wirelag.packets.intervals import Interval

    asking = _Asking(servers)
    meter, pairs = estimator.meter("tap"), Pairs(estimator.memory, from_client=asking).meter("tap")
    clients = others = 0
    first_ns, last_ns = 2**63 - 1, 0
    for batch in with_progress(capture, quiet):
        rows = np.flatnonzero(asking(batch))
        clients += len(rows)
        others += len(batch) - len(rows)
        if len(batch):
            first_ns = min(first_ns, int(batch.time_ns.min()))
            last_ns = max(last_ns, int(batch.time_ns.max()))
        meter.observe(batch if len(rows) == len(batch) else batch[rows])
        if may_be_both:
            pairs.observe(batch)
    epochs = meter.finish().one_way()
    exchanges = pairs.cut(Interval(0, 0)).told_by(epochs)
    return Heard(epochs, exchanges, clients, others, (min(first_ns, last_ns), last_ns))


def _need_clients(heard: Heard, capture: Capture, servers: list[str]) -> None:
    """Nobody asked anything: say why, and what to do."""
    names = ", ".join(file.name for file in capture.files)
    if not heard.from_clients + heard.from_servers:
        raise WirelagError(f"{names}: there are no packets to look at")
    if servers and not heard.from_clients:
        raise WirelagError(
            f"{names}: no packet goes to {', '.join(servers)}; say where else servers are: --server PREFIX"
        )
    if not heard.from_clients:
        raise WirelagError(
            f"{names}: all packets come from servers, and these alone do not tell when a request was sent; "
            f"capture where requests pass, or say where servers are: --server PREFIX"
        )


def _coverage(heard: Heard, found: Synopsis, answer: Answer) -> list[str]:
    """The lines under the table: what was looked at."""
    total = answer.total.report
    lines = [f"{total.packets:,} packets; {heard.from_clients:,} from clients to servers"]
    skipped = sum(total.skipped.values())
    lines[0] += f"; {skipped:,} skipped" if skipped else ""
    other, evicted = heard.epochs.counts.get("other", 0), found.counts.get("evicted", 0)
    if other:
        lines[0] += f"; {other:,} neither TCP nor a flow that blind can follow"
    if evicted:
        lines.append(f"{evicted:,} flows had to leave for want of memory (--memory)")
    if found is heard.epochs and found.counts.get("unlisted", 0):
        lines.append(f"{found.counts['unlisted']:,} epochs are left out: there were too many")
    if found is heard.exchanges and (unheard := _unheard(heard)):
        lines.append(
            f"{len(unheard):,} servers are not in this table, for nothing of what they answered was seen "
            f"({', '.join(unheard[:3])}{', ...' if len(unheard) > 3 else ''}): --method auto answers for them"
        )
    return lines


def _unheard(heard: Heard) -> list[str]:
    """Servers that clients asked and that were not heard answering."""
    answering = {name for name, _ in heard.exchanges.groups("server")}
    return [name for name, _ in heard.epochs.groups("server") if name not in answering]
