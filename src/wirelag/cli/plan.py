"""`wirelag plan`: which routers to upgrade, what that saves, and which segments each router then watches."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wirelag.cli.method import Rows, Tail, estimator_of, share_of
from wirelag.cli.options import (
    FORMATS,
    Html,
    Output,
    OutputFormat,
    apart,
    duration_ns,
    one_of,
    ranged,
    size_of,
)
from wirelag.cli.plan_answer import Planned
from wirelag.cli.plan_table import write_plan
from wirelag.errors import WirelagError
from wirelag.network.plan import STRATEGIES

if TYPE_CHECKING:
    from wirelag.network.classes import Size
    from wirelag.network.topology import Topology

ESTIMATORS: Final = ("lda", "finecomb", "rda")
SHARE: Final = 0.15  # of the routers, by default: after these little more is gained
UPGRADES, COSTS, AGENTS = "Which routers", "What measuring inside them costs", "Agents"


def plan(
    topology: Annotated[
        str, typer.Argument(metavar="TOPOLOGY", help="Routers and links in any format of docs/reference/topology.md.")
    ],
    upgrade: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Choose so many routers; default: 15% of all, or none with --upgraded.",
            rich_help_panel=UPGRADES,
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="|".join(STRATEGIES),
            help="The next one is inside most paths, or saves most hops, or is drawn.",
            rich_help_panel=UPGRADES,
        ),
    ] = "count",
    upgraded: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,..", help="These can measure already.", rich_help_panel=UPGRADES),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Of what is drawn.", rich_help_panel=UPGRADES)] = 0,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A-B", help="What changes if this link fails, in both directions.", rich_help_panel=UPGRADES
        ),
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(metavar="R", help="Of this router; default: of those upgraded.", rich_help_panel=COSTS),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="D", help="How often synopses are sent.", rich_help_panel=COSTS)
    ] = "1s",
    classes: Annotated[
        int, typer.Option(metavar="K", help="Classes of service that are told apart.", rich_help_panel=COSTS)
    ] = 1,
    estimator: Annotated[
        str,
        typer.Option(metavar="|".join(ESTIMATORS), help="Whose synopses they are.", rich_help_panel=COSTS),
    ] = "lda",
    rows: Rows = None,
    tail: Tail = 2048,
    packets: Annotated[
        int,
        typer.Option(
            "--packets-per-interval",
            metavar="N",
            help="rda: packets of a class from port to port.",
            rich_help_panel=COSTS,
        ),
    ] = 100_000,
    loss: Annotated[
        str, typer.Option(metavar="SHARE", help="rda: of them, so many get lost.", rich_help_panel=COSTS)
    ] = "0.1%",
    synopsis: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The size of any other synopsis, instead.", rich_help_panel=COSTS),
    ] = None,
    write_agents: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write the settings of an agent at each, and of their collector.",
            rich_help_panel=AGENTS,
        ),
    ] = None,
    servers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B,..", help="Agents at these, too: they cannot measure inside.", rich_help_panel=AGENTS
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="The collector, which follows routes, tells agents.", rich_help_panel=AGENTS),
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="D", help="How often each sends a reference packet.", rich_help_panel=AGENTS)
    ] = "100ms",
    collector: Annotated[
        str | None, typer.Option(metavar="URL", help="Where agents send to.", rich_help_panel=AGENTS)
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Holds their token.", rich_help_panel=AGENTS)
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="JSON: without the names of all segments.")] = False,
    output_format: OutputFormat = "table",
    output: Output = None,
    html: Html = None,
) -> None:
    """Plan where to measure: which routers to upgrade first, what that saves, and which segments each router watches.

    A path is measured in one piece between routers that can measure: the more there are, the fewer and shorter the
    pieces, and the closer a slow hop is placed.
    """
    one_of(output_format, FORMATS, "--format")
    one_of(strategy, STRATEGIES, "--strategy")
    one_of(estimator, ESTIMATORS, "--estimator")
    ranged(upgrade, 0, 1 << 16, "--upgrade")
    ranged(classes, 1, 1 << 16, "--classes")
    ranged(packets, 1, 1 << 40, "--packets-per-interval")
    ranged(seed, 0, (1 << 64) - 1, "--seed")
    apart({"-o": output, "--html": html}, [topology])
    interval_ns = duration_ns(interval, "--interval")
    duration_ns(every, "--every")
    size = _size(estimator, rows, tail, packets, share_of(loss, "--loss"), synopsis)

    from wirelag.network.plan import Plan
    from wirelag.network.topology import read_topology

    network = read_topology(topology)
    given = _routers(upgraded or [], network)
    for name in router or []:
        network.check(name)
    pairs = [_pair(text, network) for text in fail or []]
    found = Plan(network, given)
    found.choose(_wanted(upgrade, network, given), strategy, seed)  # type: ignore[arg-type]
    planned = Planned(
        found,
        strategy,
        seed,
        "given" if synopsis else estimator,
        size,
        classes,
        interval_ns,
        found.upgraded if router is None else list(dict.fromkeys(router)),
        pairs,
        Plan(network.without(*pairs), found.upgraded) if pairs else None,
        is_brief=brief,
        is_costed=router is not None or interval_ns != 10**9 or classes != 1,
    )
    for note in network.notes:
        print(f"note: {note}", file=sys.stderr)
    if html:
        from wirelag.cli.plan_page import write_page

        write_page(html, planned)
    write_plan(planned, output_format, output)
    if write_agents is not None:
        from wirelag.cli.plan_agents import COLLECTOR, Wanted
        from wirelag.cli.plan_agents import write_agents as write

        beside = _routers(servers or [], network)
        wanted = Wanted(write_agents, beside, collector or COLLECTOR, token_file, interval, every, follow)
        written = write(found, topology, wanted)
        print(f"wrote {', '.join(written.files)}", file=sys.stderr)
        for line in written.fill_in:
            print(f"fill in: {line}", file=sys.stderr)


def _wanted(upgrade: int | None, network: Topology, given: list[str]) -> int:
    """How many routers to choose."""
    if upgrade is None:
        return 0 if given else math.ceil(SHARE * len(network.routers))
    if upgrade + len(given) > len(network.routers):
        raise WirelagError(
            f"{network.name}: {upgrade} more routers cannot be upgraded, "
            f"{len(network.routers) - len(given)} are left; ask for fewer with --upgrade"
        )
    return upgrade


def _size(estimator: str, rows: int | None, tail: int, packets: int, loss: float, synopsis: str | None) -> Size:
    """How large a synopsis is."""
    from wirelag.network.classes import Size

    if synopsis is not None:
        size = size_of(synopsis, "--synopsis")
        ranged(size, 1, 1 << 40, "--synopsis")
        return Size(size, size)
    made = estimator_of(
        estimator,
        rows=rows,
        loss=None,
        packets=None,
        banks=3,
        no_check=False,
        buckets=None,
        rateless=False,
        deviation="rows",
        tail=tail,
        memory="512MiB",
        seed=0,
    )
    return Size.of(made, packets, loss)  # type: ignore[arg-type]


def _routers(texts: list[str], network: Topology) -> list[str]:
    """The routers of --upgraded; a name may have commas, so what is a router as it stands is not cut at them."""
    known = set(network.routers)
    names = [name for text in texts for name in ([text] if text in known else text.split(","))]
    for name in names:
        network.check(name)
    return names


def _pair(text: str, network: Topology) -> tuple[str, str]:
    """The two routers of --fail: A>B, or A-B; names may have hyphens, so all are tried."""
    if ">" in text:
        one, _, other = text.partition(">")
        return one, other
    known = set(network.routers)
    cuts = [(text[:i], text[i + 1 :]) for i, char in enumerate(text) if char == "-"]
    found = [pair for pair in cuts if known.issuperset(pair)]
    if len(found) != 1:
        why = "could be several links" if found else "names no two routers"
        raise WirelagError(f"{network.name}: --fail {text} {why}; write it as 'A>B'")
    return found[0]
