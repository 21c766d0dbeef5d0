"""The link-state database of FRRouting's OSPF (RFC 2328), from a file or a running router.

A link counts only if both ends advertise it, as in OSPF. A network with several routers is a link from each to each;
its cost is that of leaving a router, because entering one costs nothing.

A router's own address is one that it advertises as a host (a loopback's): packets to it take the shortest path to that
router, whatever port fails. It is the router id, if that is among them.
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
_WITHDRAWN: Final = 3600  # age in seconds at which an advertisement is withdrawn
_DEEPEST: Final = 8  # deepest nesting of advertisements in a dump
_PATIENCE: Final = 20  # seconds for vtysh

Advertisement: TypeAlias = dict[str, Any]


@dataclass
class _Area:
    """Advertisements of routers by their id, of networks by the address of their designated router."""

    routers: dict[str, Advertisement] = field(default_factory=dict)
    networks: dict[str, Advertisement] = field(default_factory=dict)


def ask(source: str) -> str:
    """The database of a running router: `ospf:`, `ospf:NAME` for `-N NAME`, `ospf:/folder` for its sockets."""
    at = source.removeprefix(RUNNING)
    where = ["--vty_socket", at] if "/" in at else ["-N", at] if at else []
    commands = [word for command in COMMANDS for word in ("-c", command)]
    try:
        said = subprocess.run(
            ["vtysh", *where, *commands], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise WirelagError(f"{source}: vtysh not found; save the output of {_HOW} at a router") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WirelagError(f"{source}: vtysh does not reply ({shown(error, 80)})") from None
    if said.returncode or "routerLinks" not in said.stdout:
        words = (said.stderr.strip() or said.stdout.strip() or "nothing").splitlines()[-1]
        raise WirelagError(
            f"{source}: vtysh shows no links ({shown(words, 80)}); check that ospfd runs and that you have permission"
        )
    return said.stdout


def is_dump(documents: Sequence[object]) -> bool:
    """Whether these JSON documents are vtysh's output of a database."""
    return any(isinstance(one, dict) and "links" not in one and _DUMPED & one.keys() for one in documents)


def read_dump(name: str, documents: Sequence[object]) -> Draft:
    """Read the output of the commands, in any order; `{"hostnames": {router id: name}}` names routers."""
    draft = Draft(name, "listed")
    areas: dict[str, _Area] = defaultdict(_Area)
    for key, one in _advertisements(documents, "", _DEEPEST):
        _keep(areas[key], one)
    names = _names(documents)
    for area in areas.values():
        for router in area.routers:
            draft.routers.setdefault(router, names.get(router, router))
    if not draft.routers:
        raise draft.refusal("", f"no router links in this dump; save the output of {_HOW}")
    if one_sided := sum(_add_links(draft, area) for area in areas.values()):
        draft.notes.append(f"{count(one_sided, 'link')} advertised by only one end: left out, as in OSPF")
    if len(areas) > 1:
        draft.notes.append(f"{len(areas)} areas: routes between them are assumed to be the shortest, unlike in OSPF")
    return draft


def _advertisements(value: object, area: str, deeper: int) -> Iterator[tuple[str, Advertisement]]:
    """Every advertisement with the key above it, which is its area in all versions of FRRouting."""
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
    """Keep the newest of each, unless it is withdrawn."""
    kind = area.routers if "routerLinks" in one else area.networks
    key = str(one.get("linkStateId"))
    if _age(one) < _WITHDRAWN and (key not in kind or _sequence(one) > _sequence(kind[key])):
        kind[key] = one


def _age(one: Advertisement) -> int:
    age = one.get("lsaAge")
    return age if isinstance(age, int) else 0


def _sequence(one: Advertisement) -> str:
    return str(one.get("lsaSeqNumber", "")).rjust(8, "0")  # hexadecimal, unsigned


def _names(documents: Sequence[object]) -> dict[str, str]:
    told = [one["hostnames"] for one in documents if isinstance(one, dict) and isinstance(one.get("hostnames"), dict)]
    return {router: str(name) for names in told for router, name in names.items()}


def _add_links(draft: Draft, area: _Area) -> int:
    """Add an area's links and prefixes; return the number of links that only one end advertises."""
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
        raise draft.refusal("", f"the networks that routers share are missing; save the output of {_HOW}")
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
    """Record the addresses of a link's two ports: those in one network. Unnumbered ports have none."""
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
    """The objects in a list, or the values of an object: versions differ."""
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
    """Record that a router delivers to a network."""
    try:
        network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
    except ValueError:
        raise draft.refusal(f"router {router}", f"{shown(address)}/{shown(mask)} is not a network") from None
    known = draft.prefixes.get(router, ())
    if network not in known:
        draft.prefixes[router] = (*known, network)
    if network.prefixlen == network.max_prefixlen and (router not in draft.addresses or str(address) == router):
        draft.addresses[router] = str(address)
