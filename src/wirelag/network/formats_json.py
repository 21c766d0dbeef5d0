"""JSON: our own plain format, graphs of NetworkX and topohub, and OSPF dumps."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from wirelag.errors import WirelagError
from wirelag.network import ospf
from wirelag.network.formats_draft import Draft, Weight, shown, weigh


def read(name: str, text: str) -> Draft:
    """Read any of these."""
    documents = list(_documents(name, text))
    if ospf.is_dump(documents):
        return ospf.read_dump(name, documents)
    document = documents[0]
    if len(documents) > 1 or not isinstance(document, dict):
        raise WirelagError(
            f'{name}: JSON, but not a topology; it should be {{"links": [{{"source": "a", "target": "b"}}]}}'
        )
    if "nodes" in document:
        return _graph(name, document)
    if "links" in document:
        return _plain(name, document)
    raise WirelagError(f"{name}: JSON without links; it has {shown(', '.join(document)) or 'nothing'}")


def _documents(name: str, text: str) -> Iterator[Any]:
    """Successive documents, as one vtysh call with several commands prints them."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=refuse)
    at = len(text) - len(text.lstrip())
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise WirelagError(f"{name}: line {error.lineno}: not JSON ({error.msg})") from None
        except (ValueError, InvalidOperation) as error:
            raise WirelagError(f"{name}: not JSON ({shown(error)})") from None
        except RecursionError:
            raise WirelagError(f"{name}: JSON nested too deeply for a topology") from None
        yield document
        while at < len(text) and text[at].isspace():
            at += 1


def _plain(name: str, document: dict[str, Any]) -> Draft:
    directed = document.get("directed", False)
    if not isinstance(directed, bool):
        raise WirelagError(f"{name}: directed: this should be true or false")
    draft = Draft(name, "listed" if directed else "mirrored")
    for at, router in enumerate(_list(draft, document, "routers")):
        place = f"routers[{at}]"
        key = _key(draft, place, router)
        draft.add_router(key, key, place)
    declared = bool(draft.routers)
    for at, link in enumerate(_list(draft, document, "links")):
        _link(draft, f"links[{at}]", link, "weight", declared)
    _prefixes(draft, document.get("prefixes", {}))
    _addresses(draft, document.get("addresses", {}))
    _places(draft, document.get("places", {}))
    return draft


def _graph(name: str, document: dict[str, Any]) -> Draft:
    """A graph as written by NetworkX or topohub."""
    draft = Draft(name, "listed" if document.get("directed") is True else "both")
    for at, router in enumerate(_list(draft, document, "nodes")):
        place = f"nodes[{at}]"
        if not isinstance(router, dict):
            raise draft.refusal(place, "this should be an object with an id")
        key = _key(draft, place, router.get("id"))
        draft.add_router(key, str(router.get("name") or router.get("label") or key), place)
        where = router.get("pos")
        x, y = where if isinstance(where, list) and len(where) == 2 else (router.get("x"), router.get("y"))
        draft.put(key, router.get("longitude", x), router.get("latitude", y))
    listed = "edges" if "edges" in document else "links"
    links = _list(draft, document, listed)
    attribute = weigh(draft, [link for link in links if isinstance(link, dict)])
    for at, link in enumerate(links):
        _link(draft, f"{listed}[{at}]", link, attribute, declared=True)
    return draft


def _list(draft: Draft, document: dict[str, Any], key: str) -> list[Any]:
    values = document.get(key, [])
    if not isinstance(values, list):
        raise draft.refusal(key, "this should be a list")
    return values


def _key(draft: Draft, place: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal) or not str(value).strip():
        raise draft.refusal(place, f"{shown(json.dumps(value, default=str))} cannot name a router")
    return str(value)


def _link(draft: Draft, place: str, link: object, attribute: str | None, declared: bool) -> None:
    if not isinstance(link, dict):
        raise draft.refusal(place, "this should be an object with source and target")
    source, target = (_key(draft, f"{place}.{end}", link.get(end)) for end in ("source", "target"))
    weight: Weight = link.get(attribute) if attribute else None
    if isinstance(weight, bool) or not isinstance(weight, str | int | Decimal | None):
        raise draft.refusal(f"{place}.{attribute}", f"{shown(weight)} is not a number")
    draft.add_link(source, target, weight, place, declared)
    ports = link.get("addresses")
    if ports is not None:
        if not isinstance(ports, list) or len(ports) != 2:
            raise draft.refusal(f"{place}.addresses", "this should be two: of the source's port and the target's")
        one, other = (_address(draft, f"{place}.addresses", port) for port in ports)
        draft.ports.setdefault((source, target), []).append((weight, one, other))
        if draft.ways != "listed":
            draft.ports.setdefault((target, source), []).append((weight, other, one))


def _prefixes(draft: Draft, prefixes: object) -> None:
    if not isinstance(prefixes, dict) or not all(isinstance(nets, list) for nets in prefixes.values()):
        raise draft.refusal("prefixes", "this should be an object of lists, by router")
    for router, networks in prefixes.items():
        if router not in draft.routers:
            raise draft.refusal("prefixes", f"there is no router {shown(router)}")
        try:
            draft.prefixes[router] = tuple(ipaddress.ip_network(network) for network in networks)
        except ValueError as error:
            raise draft.refusal(f"prefixes.{shown(router)}", str(error)) from None


def _addresses(draft: Draft, addresses: object) -> None:
    if not isinstance(addresses, dict):
        raise draft.refusal("addresses", "this should be an object with one address per router")
    for router, address in addresses.items():
        if router not in draft.routers:
            raise draft.refusal("addresses", f"there is no router {shown(router)}")
        draft.addresses[router] = _address(draft, f"addresses.{shown(router)}", address)


def _places(draft: Draft, places: object) -> None:
    if not isinstance(places, dict):
        raise draft.refusal("places", "this should be an object with [x, y] for each router")
    for router, place in places.items():
        if router not in draft.routers:
            raise draft.refusal("places", f"there is no router {shown(router)}")
        if not isinstance(place, list) or len(place) != 2:
            raise draft.refusal(f"places.{shown(router)}", "this should be [x, y], x to the right and y up")
        draft.put(router, *place)


def _address(draft: Draft, place: str, text: object) -> str:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        raise draft.refusal(place, f"{shown(text)} is not an address") from None
