"""The link-state database of FRRouting's OSPF (RFC 2328), saved or of a running router.

A link counts only if both ends tell of it: so OSPF has it. A network with several routers on it is a link from each to
each; its cost is that of leaving a router, for entering one costs nothing.

A router's own address is one that it advertises as a host (a loopback's): packets to it take the shortest path to that
router, whatever port fails. Its router id, if it is among them.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from wirelag.errors import WirelagError
from wirelag.network.formats_draft import Draft, count, shown

RUNNING: Final = "ospf:"
COMMANDS: Final = ("show ip ospf database router json", "show ip ospf database network json")
_HOW: Final = "vtysh " + " ".join(f"-c '{command}'" for command in COMMANDS)
_DUMPED: Final = {"hostnames", "routerId", "routerLinkStates", "Router Link States"}
_ATTACHED: Final = ("attachedRouters", "attchedRouters")  # version 8 spells it so
_WITHDRAWN: Final = 3600  # the age in seconds at which an advertisement no longer counts
_DEEPEST: Final = 8  # of advertisements in a dump
_PATIENCE: Final = 20  # seconds for vtysh

Advertisement: TypeAlias = dict[str, Any]


@dataclass
class _Area:
    """Advertisements of routers by their id, of networks by the address of their designated router."""

    routers: dict[str, Advertisement] = field(default_factory=dict)
    networks: dict[str, Advertisement] = field(default_factory=dict)


def ask(source: str) -> str:
    """What a running router knows: `ospf:`, `ospf:NAME` if started with `-N NAME`, `ospf:/folder` for its sockets."""
    at = source.removeprefix(RUNNING)
    where = ["--vty_socket", at] if "/" in at else ["-N", at] if at else []
    commands = [word for command in COMMANDS for word in ("-c", command)]
    try:
        said = subprocess.run(
            ["vtysh", *where, *commands], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise WirelagError(f"{source}: there is no vtysh here; save what {_HOW} prints at a router") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WirelagError(f"{source}: vtysh does not answer ({shown(error, 80)})") from None
    if said.returncode or "routerLinks" not in said.stdout:
        words = (said.stderr.strip() or said.stdout.strip() or "nothing").splitlines()[-1]
        raise WirelagError(
            f"{source}: vtysh tells of no links ({shown(words, 80)}); does ospfd run, and may you ask it?"
        )
    return said.stdout


def is_dump(documents: Sequence[object]) -> bool:
    """Whether JSON documents are what vtysh prints of a database."""
    return any(isinstance(one, dict) and "links" not in one and _DUMPED & one.keys() for one in documents)


def read_dump(name: str, documents: Sequence[object]) -> Draft:
    """Read what the commands printed, in any order; `{"hostnames": {router id: name}}` names routers."""
    draft = Draft(name, "listed")
    areas: dict[str, _Area] = defaultdict(_Area)
    for key, one in _advertisements(documents, "", _DEEPEST):
        _keep(areas[key], one)
    names = _names(documents)
    for area in areas.values():
        for router in area.routers:
            draft.routers.setdefault(router, names.get(router, router))
    if not draft.routers:
        raise draft.refusal("", f"no links of routers in this dump; save what {_HOW} prints")
    if one_sided := sum(_add_links(draft, area) for area in areas.values()):
        draft.notes.append(f"{count(one_sided, 'link')} that only one end tells of: left out, as OSPF does")
    if len(areas) > 1:
        draft.notes.append(f"{len(areas)} areas: routes between them are taken to be the shortest, unlike in OSPF")
    return draft


def _advertisements(value: object, area: str, deeper: int) -> Iterator[tuple[str, Advertisement]]:
    """Every advertisement with the key above it, which is its area wherever a version of FRRouting puts it."""
    if not deeper:
        return
    inside: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = ((area, one) for one in value)
    for key, one in inside:
        if isinstance(one, dict) and ("routerLinks" in one or any(name in one for name in _ATTACHED)):
            yield area, one
        else:
            yield from _advertisements(one, key, deeper - 1)


def _keep(area: _Area, one: Advertisement) -> None:
    """Keep the newest of each, unless it is being withdrawn."""
    kind = area.routers if "routerLinks" in one else area.networks
    key = str(one.get("linkStateId"))
    if _age(one) < _WITHDRAWN and (key not in kind or _sequence(one) > _sequence(kind[key])):
        kind[key] = one


def _age(one: Advertisement) -> int:
    age = one.get("lsaAge")
    return age if isinstance(age, int) else 0


def _sequence(one: Advertisement) -> str:
    return str(one.get("lsaSeqNumber", "")).rjust(8, "0")  # hexadecimal, without a sign


def _names(documents: Sequence[object]) -> dict[str, str]:
    told = [one["hostnames"] for one in documents if isinstance(one, dict) and isinstance(one.get("hostnames"), dict)]
    return {router: str(name) for names in told for router, name in names.items()}


def _add_links(draft: Draft, area: _Area) -> int:
    """Add an area's links and prefixes; how many links only one end tells of."""
    to_router: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    to_network: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for router, one in area.routers.items():
        for link in _values(one["routerLinks"]):
            cost, kind = _cost(draft, router, link), str(link.get("linkType", "")).lower()
            port = str(link.get("routerInterfaceAddress", ""))
            if "stub" in kind:
                _deliver(draft, router, link.get("networkAddress"), link.get("networkMask"))
            elif "transit" in kind:
                to_network[str(link.get("designatedRouterAddress"))][router] = cost, port
            elif "point-to-point" in kind or "virtual" in kind:
                to_router[router, str(link.get("neighborRouterId"))].append((cost, port))
    if to_network and not area.networks:
        raise draft.refusal("", f"routers share networks, and those are missing; save what {_HOW} prints")
    one_sided = 0
    for (router, other), outward in to_router.items():
        backward = to_router.get((other, router))
        if backward is None:
            one_sided += len(outward)
            continue
        for cost, port in outward:
            draft.add_link(router, other, cost, f"router {router}")
            _join(draft, (router, other), cost, port, [far for _, far in backward])
    for address, outward_of in to_network.items():
        network = area.networks.get(address, {})
        attached = _attached(network)
        joined = {router: leaving for router, leaving in outward_of.items() if router in attached}
        one_sided += len(outward_of) - len(joined)
        for router in joined:
            _deliver(draft, router, address, network.get("networkMask"))
        for router, (cost, port) in joined.items():
            for other in (one for one in joined if one != router):
                draft.add_link(router, other, cost, f"router {router}")
                _join(draft, (router, other), cost, port, [joined[other][1]])
    return one_sided


def _join(draft: Draft, pair: tuple[str, str], cost: int, port: str, far: Sequence[str]) -> None:
    """Note the addresses of a link's two ports: those that are in one network. Ports without a number have none."""
    for other in far:
        try:
            one, two = ipaddress.ip_address(port), ipaddress.ip_address(other)
        except ValueError:
            continue
        shared = (net for net in draft.prefixes.get(pair[0], ()) if net.prefixlen < net.max_prefixlen)
        if one != two and any(one in net and two in net for net in shared):
            draft.ports.setdefault(pair, []).append((cost, port, other))
            return


def _values(value: object) -> list[dict[str, Any]]:
    """The objects in a list or under the keys of an object: versions differ."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [one for one in inside if isinstance(one, dict)]


def _attached(network: Advertisement) -> set[str]:
    told: object = next((network[key] for key in _ATTACHED if key in network), {})
    return {str(one.get("attachedRouterId", "")) for one in _values(told)}


def _cost(draft: Draft, router: str, link: dict[str, Any]) -> int:
    cost = link.get("tos0Metric")
    if not isinstance(cost, int):
        raise draft.refusal(f"router {router}", "a link without tos0Metric, its cost")
    return cost


def _deliver(draft: Draft, router: str, address: object, mask: object) -> None:
    """Note that a router reaches a network itself."""
    try:
        network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
    except ValueError:
        raise draft.refusal(f"router {router}", f"{shown(address)}/{shown(mask)} is no network") from None
    known = draft.prefixes.get(router, ())
    if network not in known:
        draft.prefixes[router] = (*known, network)
    if network.prefixlen == network.max_prefixlen and (router not in draft.addresses or str(address) == router):
        draft.addresses[router] = str(address)
