"""Topologies in every format: results, repairs, errors."""

import tarfile
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from tests.support.topology_texts import CSV, GML, GRAPHML, HPCC, INET, PLAIN, SAME, read, weights
from wirelag.errors import WirelagError
from wirelag.network.topology import read_topology


def refusal(text: str) -> str:
    with pytest.raises(WirelagError) as caught:
        read(text)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("map: ")
    return line.removeprefix("map: ")


@pytest.mark.parametrize("text", SAME, ids=range(len(SAME)))
def test_one_network_in_every_format(text: str) -> None:
    topology = read(text)
    there = {("Bonn", "Köln"): Fraction(51, 2), ("Köln", "Ulm"): Fraction(300)}
    assert topology.routers == ("Bonn", "Köln", "Ulm")
    assert weights(topology) == there | {(target, source): weight for (source, target), weight in there.items()}
    assert topology.unit == Decimal("0.1")
    assert not [note for note in topology.notes if "distance" not in note and "dist" not in note]


def test_networks_of_simulators() -> None:
    assert weights(read(INET)) == {("0", "1"): 51, ("1", "0"): 51, ("1", "2"): 600, ("2", "1"): 600}
    hpcc = read(HPCC)
    assert set(weights(hpcc).values()) == {1}
    assert len(hpcc.links) == 4
    assert hpcc.notes == ("every link counts as 1, as in the simulator this is written for",)


def test_plain_links_run_both_ways_by_default() -> None:
    links = '"links": [{"source": "a", "target": "b", "weight": 1}, {"source": "b", "target": "c", "weight": 2}, %s]'
    other = '{"source": "b", "target": "a", "weight": 5}'
    both = weights(read("{" + links % other + "}"))
    assert both == {("a", "b"): 1, ("b", "a"): 5, ("b", "c"): 2, ("c", "b"): 2}
    listed = read('{"directed": true, ' + links % other + "}")
    assert weights(listed) == {("a", "b"): 1, ("b", "a"): 5, ("b", "c"): 2}
    assert listed.notes == ("1 link in one direction only",)


MENDED = [
    ("a b 2\nb a 2\na b 1\na b 3\nb a 9\n", "3 duplicate links: the cheapest kept"),
    ("a b 2\nb a 2\na a 1\n", "1 link from a router to itself: left out"),
    ("a b 2\nb a 2\na c 1\n", "1 link in one direction only"),
    ("a,b,1\nc,d,1\nd,e,1\n", "2 parts with no link between them, of 3, 2 routers"),
    ("a,b\nb,c\n", "no weights: every link counts as 1"),
    ('{"routers": ["a", "b", "c"], "links": [{"source": "a", "target": "b"}]}', "1 router without a link"),
    ("a>b,c,1\n", "1 name with > [ ] or *, which names of segments need: changed to - ( ) and star"),
    ("a,*,1\n", "1 name with > [ ] or *"),
    ("a,b,0.1234567890123456789\n", "weights rounded to 14 decimals"),
    ("graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 length 7 ] ]", "weights are the links' length"),
]


@pytest.mark.parametrize(("text", "note"), MENDED)
def test_repairs_are_noted(text: str, note: str) -> None:
    assert [one for one in read(text).notes if one.startswith(note)]


def test_the_cheapest_of_duplicates_is_kept_in_each_direction() -> None:
    assert weights(read("a b 2\nb a 2\na b 1\na b 3\nb a 9\n")) == {("a", "b"): 1, ("b", "a"): 2}
    edges = "edge [ source 0 target 1 weight 7 ] edge [ source 1 target 0 weight 5 ]"
    undirected = f"graph [ node [ id 0 ] node [ id 1 ] {edges} ]"
    assert weights(read(undirected)) == {("0", "1"): 5, ("1", "0"): 5}
    assert read(undirected).notes == ("1 duplicate link: the cheapest kept",)


def test_ambiguous_names() -> None:
    routers = [(0, "Ulm"), (1, "Ulm"), (2, "Ulm#1"), (3, ""), (4, "Ulm[2]")]
    text = "".join(f'node [ id {key} label "{name}" ] ' for key, name in routers)
    topology = read(f"graph [ {text} edge [ source 0 target 4 ] edge [ source 1 target 2 ] ]")
    assert topology.routers == ("Ulm#0", "Ulm#1'", "Ulm#1", "3", "Ulm(2)")


REFUSED = [
    ("a b 1_000\n", "line 1: the weight 1_000 is not a number"),
    (
        f"?SNDlib native format\nNODES (\n a\n b\n)\nLINKS (\n l ( a b ) {' ' * 90_000}x)\n)\n",
        "line 7: has 90,012 characters",
    ),
    ("a b 2\nb a 0\n", "line 2: the weight 0 is not above 0"),
    ("a b 2\nb a -1\n", "line 2: the weight -1 is not above 0"),
    ("a b 2\nb a nan\n", "line 2: the weight nan is not above 0"),
    ("a b 2\nb a 1e999999\n", "line 2: the weight 1e999999 is too large or too small"),
    ("a b 2\nb a two\n", "line 2: the weight two is not a number"),
    ("a b 2\nb a\n", "line 2: this should be two routers and a weight, and is b a"),
    ("a,b,1\nb,c\n", "line 2: this should be source, target and weight"),
    ("a,b,1\nb,c,\n", "line 2: this link has no weight, and others have"),
    ('a,b,1\n"b,c,1\n', "line 2: not CSV"),
    ("a,b,1e-20\nb,c,1e12\n", "line 2: this weight is too large to add to the smallest, 1e-20"),
    ("a,a,1\n", "1 router and no link between two of them"),
    ("", "unknown format; wirelag reads"),
    ("once upon a time\n", "unknown format; wirelag reads"),
    ("first,second,third\na,b,1\n", "unknown format; wirelag reads"),
    ("3 2\n0 1 2\n1 3 4\n", "it announces 3 routers and 2 links"),
    ("3 1 2\n1\n0 1 100Gbps 1us 0\n", "it announces 2 links, 2 lines, but has 1"),
    ("3 1 2\n1\n0 1 100Gbps 1us 0\n1 3 1Gbps 1us 0\n", "line 4: there is no router 3"),
    ("900000000 1 1\n1\n0 1 100Gbps 1us 0\n", "line 1: 900000000 devices and only 1 links"),
    ("NODES 1\nlabel x y\na 1 2\n", "it has a table NODES but no table EDGES"),
    ("?SNDlib native format\nNODES (\n a\n", "section NODES has no end"),
    ("?SNDlib native format\nNODES (\n a\n)\nLINKS (\n l ( a b ) 0 0 1 0 ( )\n)", "line 6: there is no router b"),
    ("{", "line 1: not JSON"),
    ("{}", "JSON without links; it has nothing"),
    ("[1]", "JSON, but not a topology"),
    ('{"links": {}}', "links: this should be a list"),
    ('{"links": [1]}', "links[0]: this should be an object with source and target"),
    ('{"links": [{"source": "a"}]}', "links[0].target: null cannot name a router"),
    ('{"links": [{"source": "a", "target": "b", "weight": [1]}]}', "links[0].weight: [1] is not a number"),
    ('{"links": [{"source": "a", "target": "b", "weight": NaN}]}', "not JSON (NaN is not a JSON number)"),
    ('{"routers": ["a"], "links": [{"source": "a", "target": "b"}]}', "links[0]: there is no router b"),
    ('{"routers": ["a", "a"], "links": []}', "routers[1]: router a is there twice"),
    (
        '{"prefixes": {"a": ["10.0.0.1/8"]}, "links": [{"source": "a", "target": "b"}]}',
        "prefixes.a: 10.0.0.1/8 has",
    ),
    ('{"links": ' + "[" * 100_000, "JSON nested too deeply"),
    ("graph [ node [ id 0 ] edge [ source 0 target 1 ] ]", "edge 1: there is no router 1"),
    ("graph [ node [ id 0 ] node [ id 0 ] ]", "node 2: router 0 is there twice"),
    ("graph [ node [ id 0 ] node [ ] ]", "node 2: a router without an id"),
    ("graph [ node [ id 0 ] edge [ source 0 ] ]", "edge 1: this link lacks one of its ends"),
    ("graph [ node [ id 0 ]", "this GML is truncated"),
    ('graph [ node [ id "0 ] ]', "line 1: a quoted text does not end"),
    ("graph [ " + "a [ " * 100, "line 1: GML nested too deeply"),
    ("graph [ ] ]", "line 1: not GML; unexpected ]"),
    ("<graphml>", "line 1: not XML (no element found)"),
    ("<html/>", "XML, but neither GraphML nor SNDlib; it begins with <html>"),
    ("<graphml/>", "GraphML without a graph"),
    ("<a>" * 100, "line 1: XML nested too deeply"),
    ('<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><graphml>&c;</graphml>', "line 1: XML must not declare"),
    (
        '<!DOCTYPE a [<!ENTITY b SYSTEM "passwd">]><graphml>&b;</graphml>',
        "line 1: XML must not declare",
    ),
    (
        GRAPHML.replace('<edge source="0"', '<edge directed="true" source="0"'),
        "edge 1: this edge differs",
    ),
]


@pytest.mark.parametrize(("text", "start"), REFUSED, ids=[start for _, start in REFUSED])
def test_errors_and_their_reasons(text: str, start: str) -> None:
    assert refusal(text).startswith(start)


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\xd4\xc3\xb2\xa1\x02\0\x04\0", "not text, so it cannot be a topology"),
        (b"\x1f\x8b\x08\0", "the gzip data breaks off"),
    ],
)
def test_files_that_are_not_topologies(tmp_path: Path, content: bytes, end: str) -> None:
    file = tmp_path / "map"
    file.write_bytes(content)
    with pytest.raises(WirelagError) as caught:
        read_topology(file)
    assert str(caught.value) == f"{file}: {end}"


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match="there is no such file"):
        read_topology(tmp_path / "none")
    with pytest.raises(WirelagError, match="a topology must be a file"):
        read_topology(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "map").write_text(CSV, encoding=encoding)
    assert read_topology(tmp_path / "map").routers == ("Bonn", "Köln", "Ulm")


def test_members_of_archives(tmp_path: Path) -> None:
    (tmp_path / "a.gml").write_text(GML)
    archive = tmp_path / "maps.tar.gz"
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(tmp_path / "a.gml", "maps/a.gml")
    topology = read_topology(f"{archive}:maps/a.gml")
    assert topology == replace(read(GML), name=f"{archive}:maps/a.gml")
    with pytest.raises(WirelagError, match=r"an archive; name a file in it, as .*maps.tar.gz:maps/a.gml"):
        read_topology(archive)
    with pytest.raises(WirelagError, match=r"there is no b in it, but 1 others, such as maps/a.gml"):
        read_topology(f"{archive}:b")


def test_a_failed_link_is_gone_in_both_directions() -> None:
    topology = read(PLAIN)
    assert weights(topology.without(("Ulm", "Köln"))) == {("Bonn", "Köln"): 25.5, ("Köln", "Bonn"): 25.5}
    assert topology.without() == topology
    with pytest.raises(WirelagError, match=r"no link joins Bonn and Ulm; Bonn has links to Köln$"):
        topology.without(("Bonn", "Ulm"))


def test_an_unknown_router_is_reported_with_the_nearest_name() -> None:
    topology = read(PLAIN)
    topology.check("Ulm")
    with pytest.raises(WirelagError, match=r"there is no router bon; did you mean Bonn\?$"):
        topology.check("bon")
    with pytest.raises(WirelagError, match=r"there is no router Paris; there are Bonn, Köln, Ulm$"):
        topology.check("Paris")


def test_graph() -> None:
    topology = read(PLAIN)
    graph = topology.graph
    assert tuple(graph.nodes()) == topology.routers
    assert {(graph[source], graph[target]): weight for source, target, weight in graph.weighted_edge_list()} == {
        (link.source, link.target): link.weight for link in topology.links
    }
