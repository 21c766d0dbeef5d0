"""Many topologies: all maps, generated topologies written and read back, random bytes."""

import csv
import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.topology_texts import SAMPLES, read, weights
from wirelag.errors import WirelagError
from wirelag.network.topology import Link, Topology, read_topology

LETTERS = st.characters(codec="utf-8", exclude_characters=">[]", exclude_categories=["C", "Z"])
NAMES = st.text(LETTERS, min_size=1, max_size=8).filter(lambda name: name != "*")  # `*` is any port
PREFIXES = st.sampled_from([ip_network("10.1.0.0/16"), ip_network("192.0.2.1/32"), ip_network("2001:db8::/32")])


def sane(topology: Topology) -> None:
    known = set(topology.routers)
    pairs = [(link.source, link.target) for link in topology.links]
    assert len(known) == len(topology.routers)
    assert len(set(pairs)) == len(pairs) > 0
    assert {router for pair in pairs for router in pair} <= known
    assert all(source != target for source, target in pairs)
    assert all(isinstance(link.weight, int) and link.weight > 0 for link in topology.links)
    assert not any(set(">[]\n") & set(router) for router in topology.routers)
    assert topology.prefixes.keys() <= known
    assert all("\n" not in note for note in topology.notes)


def test_every_map(shared_data: Path) -> None:
    files = [path for path in (shared_data / "topologies").rglob("*") if path.is_file() and ".tar" not in path.name]
    assert len(files) > 60
    for path in files:
        sane(read_topology(path))


def members(archive: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isreg():
                file = opened.extractfile(member)
                assert file is not None
                yield Path(member.name).stem, file.read().decode()


@pytest.mark.acceptance
def test_the_zoo_is_equal_in_both_formats(shared_data: Path) -> None:
    zoo = shared_data / "topologies" / "InternetTopologyZoo"
    gml, graphml = (dict(members(zoo / f"{name}.tar.gz")) for name in ("gml", "graphml"))
    assert gml.keys() == graphml.keys()
    for name, text in gml.items():
        topology, other = read(text), read(graphml[name])
        sane(topology)
        assert sorted(topology.routers) == sorted(other.routers), name
        assert weights(topology) == weights(other), name


def test_sizes_of_maps_equal_those_in_papers(shared_data: Path) -> None:
    maps = shared_data / "topologies"
    sprint = read_topology(maps / "ns-3-dev-git" / "RocketFuel_toposample_1239_weights.txt")
    assert (len(sprint.routers), len(sprint.links), sprint.notes) == (315, 2 * 972, ())
    inet = read_topology(maps / "ns-3-dev-git" / "Inet_toposample.txt")
    assert (len(inet.routers), len(inet.links)) == (3037, 2 * 4788)
    assert len(read_topology(maps / "topohub-1.5.1" / "germany50.json").links) == 2 * 88
    belnet = read_topology(f"{maps}/InternetTopologyZoo/gml.tar.gz:gml/Belnet2004.gml")
    assert "SFINX" in belnet.routers


def test_weights_of_rocketfuel_are_exact(shared_data: Path) -> None:
    for path in sorted((shared_data / "topologies" / "icarus").rglob("weights.intra")):
        listed: dict[tuple[str, str], Fraction] = {}
        for line in path.read_text().splitlines():
            source, target, weight = line.split()
            listed[source, target] = min(Fraction(weight), listed.get((source, target), Fraction(10**9)))
        assert weights(read_topology(path)) == listed


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    pairs = draw(st.lists(st.sampled_from(list(itertools.permutations(names, 2))), min_size=1, unique=True))
    decimals = draw(st.integers(0, 4))
    weight = st.integers(1, 10**6)
    links = tuple(Link(source, target, draw(weight)) for source, target in pairs)
    prefixes = draw(st.dictionaries(st.sampled_from(names), st.tuples(PREFIXES)))
    return Topology(tuple(names), links, prefixes, unit=Decimal(1).scaleb(-decimals))


@examples(150)
@given(topologies())
def test_plain_json_reads_back(topology: Topology) -> None:
    again = read(json.dumps(topology.to_json()))
    assert again.routers == topology.routers
    assert weights(again) == weights(topology)
    assert dict(again.prefixes) == dict(topology.prefixes)
    assert read(json.dumps(again.to_json())) == again


@examples(150)
@given(topologies(), st.sampled_from(",;\t"), st.booleans())
def test_csv_reads_back(topology: Topology, delimiter: str, header: bool) -> None:
    written = io.StringIO(newline="")
    writer = csv.writer(written, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    if header:
        writer.writerow(["source", "target", "weight"])
    there = weights(topology)
    for (source, target), weight in there.items():
        writer.writerow([source, target, f"{Decimal(weight.numerator) / weight.denominator:f}"])
    again = read(written.getvalue())
    mirrored = {(target, source): weight for (source, target), weight in there.items()} | there
    assert weights(again) == mirrored


def settled_or_refused(text: str) -> None:
    said = ""
    try:
        sane(read(text))
    except WirelagError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


@examples(300)
@given(st.sampled_from(SAMPLES), st.data())
def test_damage_is_refused_in_one_line(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    put = data.draw(st.one_of(st.sampled_from(SAMPLES).map(lambda other: other[:40]), st.text(max_size=10)))
    settled_or_refused(text[:start] + put + text[end:])


@examples(300)
@given(st.text(max_size=200))
@example("graph [" + "\n" * 5000)
@example("#" + " " * 5000 + "\n#" + " " * 5000)
def test_junk_is_refused_in_one_line(text: str) -> None:
    settled_or_refused(text)
