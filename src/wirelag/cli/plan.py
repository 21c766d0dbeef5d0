"""`wirelag plan`: which routers to upgrade, what that saves, and what each router watches."""

import sys
from typing import Annotated

from wirelag.cli.method import Rows, Tail
from wirelag.cli.options import Html, Output, OutputFormat, check_outputs
from wirelag.cli.parser import Argument, Option
from wirelag.cli.run import conclude
from wirelag.measure.plan import ESTIMATORS
from wirelag.network.plan import STRATEGIES

UPGRADES, COSTS, AGENTS = "Routers", "Costs", "Agents"


def plan(
    topology: Annotated[
        str, Argument(metavar="TOPOLOGY", help="Routers and links, in a format of docs/reference/topology.md.")
    ],
    upgrade: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Number of routers to choose; default: 15% of all, or none with --upgraded.",
            panel=UPGRADES,
        ),
    ] = None,
    strategy: Annotated[
        str,
        Option(
            metavar="|".join(STRATEGIES),
            help="Choose the router inside most paths, the one that saves most hops, or a random one.",
            panel=UPGRADES,
        ),
    ] = "count",
    upgraded: Annotated[
        list[str] | None, Option(metavar="A,B,..", help="Routers that can measure already.", panel=UPGRADES)
    ] = None,
    seed: Annotated[int, Option(metavar="S", help="Seed of all random choices.", panel=UPGRADES)] = 0,
    fail: Annotated[
        list[str] | None,
        Option(metavar="A-B", help="Show what changes if this link fails, in both directions.", panel=UPGRADES),
    ] = None,
    router: Annotated[
        list[str] | None, Option(metavar="R", help="Router to cost; default: those upgraded.", panel=COSTS)
    ] = None,
    interval: Annotated[str, Option(metavar="D", help="How often synopses are sent.", panel=COSTS)] = "1s",
    classes: Annotated[int, Option(metavar="K", help="Number of traffic classes.", panel=COSTS)] = 1,
    estimator: Annotated[
        str, Option(metavar="|".join(ESTIMATORS), help="Estimator of the synopses.", panel=COSTS)
    ] = "lda",
    rows: Rows = None,
    tail: Tail = 2048,
    packets_per_interval: Annotated[
        int, Option(metavar="N", help="rda: packets of a class between two ports.", panel=COSTS)
    ] = 100_000,
    loss: Annotated[str, Option(metavar="SHARE", help="rda: loss rate.", panel=COSTS)] = "0.1%",
    synopsis: Annotated[
        str | None, Option(metavar="SIZE", help="Size of a synopsis of any other kind.", panel=COSTS)
    ] = None,
    write_agents: Annotated[
        str | None,
        Option(metavar="DIR", help="Write settings for an agent at each router and for their collector.", panel=AGENTS),
    ] = None,
    servers: Annotated[
        list[str] | None,
        Option(metavar="A,B,..", help="Routers with an agent beside them, which cannot measure inside.", panel=AGENTS),
    ] = None,
    follow: Annotated[
        bool, Option("--follow", help="Let the collector follow routes and assign m-sets.", panel=AGENTS)
    ] = False,
    every: Annotated[
        str, Option(metavar="D", help="Time between an agent's reference packets.", panel=AGENTS)
    ] = "100ms",
    collector: Annotated[str | None, Option(metavar="URL", help="URL of the agents' collector.", panel=AGENTS)] = None,
    token_file: Annotated[
        str | None, Option(metavar="FILE", help="File that holds the agents' token.", panel=AGENTS)
    ] = None,
    brief: Annotated[bool, Option("--brief", help="JSON: leave out the segments' names.")] = False,
    output_format: OutputFormat = None,
    output: Output = None,
    html: Html = None,
) -> None:
    """Plan where to measure.

    It shows which routers to upgrade first, what that saves, and which segments each router watches. Between routers
    that can measure, a path is one segment: more such routers make shorter segments, and locate a slow hop better.
    """
    form = check_outputs(output_format, {"-o": output, "--html": html}, [topology])
    from wirelag.measure.plan import plan as make
    from wirelag.measure.plan import routers_of
    from wirelag.units import duration_ns

    duration_ns(every, "every")
    result = make(
        topology,
        upgrade=upgrade,
        strategy=strategy,
        upgraded=upgraded or [],
        seed=seed,
        fail=fail or [],
        router=router,
        interval=interval,
        classes=classes,
        estimator=estimator,
        rows=rows,
        tail=tail,
        packets_per_interval=packets_per_interval,
        loss=loss,
        synopsis=synopsis,
        brief=brief,
    )
    for note in result.plan.topology.notes:
        print(f"note: {note}", file=sys.stderr)
    conclude(result, form, output, html)
    if write_agents is not None:
        from wirelag.collector.plan_agents import COLLECTOR, AgentsWanted
        from wirelag.collector.plan_agents import write_agents as write

        beside = routers_of(servers or [], result.plan.topology)
        wanted = AgentsWanted(
            write_agents, beside, collector or COLLECTOR, token_file, interval, every, follow, estimator
        )
        written = write(result.plan, topology, wanted)
        print(f"wrote {', '.join(written.files)}", file=sys.stderr)
        for line in written.fill_in:
            print(f"fill in: {line}", file=sys.stderr)
