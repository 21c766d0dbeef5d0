"""A plan as files: the settings of an agent at each router that measures, and of their collector.

Law: every file can be used as it stands: what a plan cannot know has a value that no network has, or none, and the line
says FILL IN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final

from wirelag.agent.config import SPREAD
from wirelag.agent.settings import MOST_SEGMENTS
from wirelag.collector.following import pointed
from wirelag.errors import WirelagError
from wirelag.network.msets import Referenced, port_of, referenced
from wirelag.network.plan import Plan
from wirelag.network.segments import EDGE, Segment
from wirelag.units import parse_duration_ns

COLLECTOR: Final = "https://collector.example:8321"
FILTER: Final = "udp dst port 862"
_FILL_IN: Final = "  # FILL IN"


@dataclass(frozen=True, slots=True)
class WrittenAgents:
    """What was written, and what is left to do."""

    files: list[str]
    fill_in: list[str]


@dataclass(frozen=True, slots=True)
class AgentsWanted:
    """How agents shall measure."""

    folder: str
    servers: Sequence[str]  # routers that cannot measure inside, with an agent beside them
    collector: str
    token_file: str | None
    interval: str
    every: str
    follow: bool  # agents take their m-set from the collector
    estimator: str = "lda"  # of insides


def write_agents(plan: Plan, source: str, wanted: AgentsWanted) -> WrittenAgents:
    """Write the files; `source` is where the topology is from."""
    ends = list(dict.fromkeys([*plan.upgraded, *wanted.servers]))
    if len(ends) < 2:
        raise WirelagError(f"{plan.topology.name}: agents measure between two routers at least; choose with --upgrade")
    named = pointed(plan.topology, {})
    points = dict(zip(plan.topology.routers, named.routers, strict=True))
    running = Plan(named, [points[router] for router in plan.upgraded])
    own = [points[router] for router in ends]
    segments = list(referenced(running, own))
    written = WrittenAgents([], [])
    try:
        folder = Path(wanted.folder)
        folder.mkdir(parents=True, exist_ok=True)
        texts = {folder / _file(point): _agent(running, point, segments, wanted, written.fill_in) for point in own}
        texts[folder / "collector.toml"] = _collector(source, points, segments, running, wanted)
        _put({path: "\n".join(lines) + "\n" for path, lines in texts.items()}, written)
    except OSError as error:
        raise WirelagError(f"{wanted.folder}: cannot write ({error.strerror}); name another folder") from None
    if wanted.follow and (unknown := sum(not one.is_addressed for one in segments)):
        written.fill_in.append(f"addresses in the topology: {unknown} of {len(segments)} segments have none")
    if wanted.collector == COLLECTOR:
        written.fill_in.append("collector.url in each agent's file, or give --collector")
    written.fill_in.append("listen and token_file in collector.toml, if agents are on other hosts")
    return written


def _put(texts: Mapping[Path, str], written: WrittenAgents) -> None:
    """All of them or none: what somebody has filled in is not written over."""
    for path, text in texts.items():
        if path.exists() and path.read_bytes() != text.encode():
            raise WirelagError(f"{path}: is there already, and differs; name another folder, or move it away")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        written.files.append(str(path))


def _agent(
    plan: Plan, point: str, segments: list[Referenced], wanted: AgentsWanted, fill_in: list[str]
) -> Iterator[str]:
    address, inside = plan.topology.addresses.get(point), point in plan.upgraded
    mine = [one for one in segments if point in (one.segment.at, one.segment.after)]
    if len(mine) > MOST_SEGMENTS and not wanted.follow:
        raise WirelagError(
            f"{point} would be an end of {len(mine)} segments, and an agent has {MOST_SEGMENTS} at most: "
            f"upgrade more routers"
        )
    yield f"# Router {point}, by `wirelag plan --write-agents`. Check it: wirelag agent {_file(point)} --check"
    yield f"point = {_text(point)}"
    yield 'interface = "any"  # every port of the router: one that goes down does not end the agent'
    if not inside:
        yield f"filter = {_text(FILTER)}  # reference packets alone"
    yield f"interval = {_text(wanted.interval)}"
    yield "receive_references = true"
    yield ""
    yield "[collector]"
    yield f"url = {_text(wanted.collector)}" + (_FILL_IN if wanted.collector == COLLECTOR else "")
    if wanted.token_file is not None:
        yield f"token_file = {_text(wanted.token_file)}"
    if address is not None and wanted.collector.startswith("http"):
        yield f"from = {_text(address)}  # the router's own address: it outlives its ports"
    yield ""
    yield "[estimator]"
    expected = max(1, parse_duration_ns(wanted.interval) // parse_duration_ns(wanted.every))
    yield f"packets_per_interval = {expected}"
    yield 'memory = "1MiB"'
    yield 'past = "16MiB"'
    if inside:
        yield ""
        yield "[inside]  # of this router, from port to port"
        yield f'by = "{"collector" if wanted.follow else "ports"}"'
        yield f"estimator = {_text(wanted.estimator)}"
    if wanted.follow:
        yield ""
        yield "[m_set]"
        yield 'by = "collector"'
        yield f"every = {_text(wanted.every)}"
        return
    if inside:
        yield from _ports(plan, point, fill_in)
    unknown = 0
    for one in mine:
        ends, note = (one.source, one.target), ""
        if not one.is_addressed:
            number = segments.index(one)
            ends, note = (f"2001:db8::{number + 1:x}:1", f"2001:db8::{number + 1:x}:2"), _FILL_IN
            unknown += 1
        yield ""
        yield "[[segments]]"
        yield f"name = {_text(str(one.segment))}"
        yield f"direction = {_text('>'.join(map(str, ends)))}{note}"
        yield 'packets = "references"'
        if one.segment.at == point:
            yield ""
            yield "[[references]]"
            yield f"from = {_text(str(ends[0]))}{note}"
            yield f"to = {_text(str(ends[1]))}{note}"
            yield f"every = {_text(wanted.every)}"
            if one.segment.kind == "link":
                yield "hops = 1  # over the link, or not at all"
            else:
                yield f"spread = {SPREAD}  # over each of its equal paths"
    if unknown:
        fill_in.append(f"addresses of {unknown} segments in {_file(point)} (2001:db8::...), the same at both ends")


def _ports(plan: Plan, point: str, fill_in: list[str]) -> Iterator[str]:
    unknown = 0
    for neighbour in plan.neighbours(point):
        address = port_of(plan.topology, point, neighbour)
        yield ""
        yield "[[ports]]"
        yield f"to = {_text(neighbour)}"
        yield f"address = {_text(address)}" if address is not None else f'interface = "?"{_FILL_IN}'
        unknown += address is None
    if unknown:
        fill_in.append(f"interfaces of {unknown} ports in {_file(point)}")


def _ways(plan: Plan) -> Iterator[str]:
    """Every way inside the routers that measure, whether routes use it now or not."""
    for router in plan.upgraded:
        ports = [EDGE, *plan.neighbours(router)]
        yield from (str(Segment.inside(router, *ways)) for ways in permutations(ports, 2))


def _collector(
    source: str, points: dict[str, str], segments: list[Referenced], plan: Plan, wanted: AgentsWanted
) -> Iterator[str]:
    yield "# The collector, from `wirelag plan --write-agents`. Check it: wirelag collect collector.toml --check"
    yield (
        'listen = "127.0.0.1:8321"' + _FILL_IN + ", with token_file, certificate and key, if agents are on other hosts"
    )
    yield 'store = "wirelag.db"'
    yield f"topology = {_text(source if source.startswith('ospf:') else str(Path(source).resolve()))}"
    if not wanted.follow:
        yield "segments = ["
        yield from (f"    {_text(str(one.segment))}," for one in segments)
        yield from (f"    {_text(way)}," for way in _ways(plan))
        yield "]"
    else:
        yield ""
        yield "[follow]"
        yield 'every = "1s"'
        yield 'overlap = "30s"'
        yield f"upgraded = [{', '.join(_text(router) for router in plan.upgraded)}]"
    others = {router: point for router, point in points.items() if router != point}
    if others:
        yield ""
        yield "[names]  # of routers as the topology has them: what their agents are called"
        yield from (f"{_text(router)} = {_text(point)}" for router, point in others.items())


def _file(point: str) -> str:
    return f"agent-{point}.toml"


def _text(value: str) -> str:
    return json.dumps(value)
