"""m-sets that follow the network: addresses, overlaps, and agents' reactions."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector_process import Running
from tests.support.m_sets import agents, config_of, write_network
from tests.support.places import DATA
from tests.support.two_points import SECOND_NS
from tests.support.waiting import PATIENCE_S
from wirelag.agent.config import Config
from wirelag.agent.settings import SCHEMA
from wirelag.collector.agents import ALIVE_NS, Agents
from wirelag.collector.check import told
from wirelag.collector.following import Follow, Following, called
from wirelag.collector.plan_agents import AgentsWanted, write_agents
from wirelag.collector.settings import Settings as CollectorSettings
from wirelag.errors import WirelagError
from wirelag.network.msets import Referenced, Turning, referenced
from wirelag.network.plan import Plan
from wirelag.network.segments import Segment
from wirelag.network.topology import Topology, read_topology
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, decode
from wirelag.settings import read_toml
from wirelag.transport.http import FRAME

MEASURING = ["A", "C", "D", "F"]
BEFORE = {"A>F", "F>A", "C>F", "F>C", "C>D", "D>C", "D>>F", "F>>D"}
AFTER = BEFORE - {"C>F", "F>C"} | {"C>>F", "F>>C"}
OVERLAP_NS = 30 * SECOND_NS


@pytest.fixture
def six() -> Topology:
    """The six-router network, with an address for each router."""
    topology = read_topology(DATA / "six.json")
    return replace(topology, addresses={router: f"10.6.0.{i}" for i, router in enumerate(topology.routers, 1)})


def names(found: Any) -> set[str]:
    return {str(one.segment) for one in found}


# ---- segments and addresses ----


def test_segments_lie_between_routers_with_agents(six: Topology) -> None:
    found = list(referenced(Plan(six, MEASURING), MEASURING))
    assert names(found) == BEFORE
    assert all(one.is_addressed for one in found)
    # A server beside E is an end, but cuts no path.
    assert names(referenced(Plan(six, MEASURING), [*MEASURING, "E"])) == BEFORE | {
        f"{pair[0]}>{pair[1]}" for pair in ("CE", "EC", "DE", "ED", "EF", "FE")
    }


def test_addresses_come_from_the_database() -> None:
    topology = read_topology(DATA / "ospf.json")
    one, three, four = (f"10.255.0.{number}" for number in (1, 3, 4))
    found = {
        str(two.segment): (two.source, two.target) for two in referenced(Plan(topology, [three]), [one, three, four])
    }
    assert found == {
        f"{one}>{three}": ("10.0.0.1", "10.0.0.3"),
        f"{three}>{one}": ("10.0.0.3", "10.0.0.1"),
        f"{three}>{four}": ("10.0.31.0", "10.0.31.1"),  # the cheaper of two
        f"{four}>{three}": ("10.0.31.1", "10.0.31.0"),
    }
    virtual = next(iter(referenced(Plan(topology), [one, four])))
    assert (virtual.segment, virtual.source, virtual.target) == (Segment.virtual(one, four), one, four)


def test_a_link_without_ports_needs_a_unique_route(six: Topology) -> None:
    found = {str(one.segment): one for one in referenced(Plan(six, ["C", "F"]), six.routers)}
    assert found["C>F"].source == "10.6.0.3"  # no other path costs the same
    equal = replace(
        six, links=tuple(replace(link, weight=1) if "D" in (link.source, link.target) else link for link in six.links)
    )
    both = {str(one.segment): one for one in referenced(Plan(equal), equal.routers)}
    assert both["C>>E"].is_addressed
    assert not both["C>E"].is_addressed  # packets to E's own address may go through D


def test_plain_json_has_addresses(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(
        json.dumps(
            {
                "links": [{"source": "A", "target": "B", "weight": 1, "addresses": ["10.0.0.1", "10.0.0.2"]}],
                "addresses": {"A": "10.9.0.1"},
            }
        )
    )
    topology = read_topology(path)
    assert topology.addresses == {"A": "10.9.0.1"}
    assert topology.link_addresses == {("A", "B"): ("10.0.0.1", "10.0.0.2"), ("B", "A"): ("10.0.0.2", "10.0.0.1")}
    for wrong, said in (
        ({"addresses": {"C": "10.0.0.1"}}, "there is no router C"),
        ({"addresses": {"A": "here"}}, "here is not an address"),
        ({"addresses": ["10.0.0.1"]}, "one address per router"),
    ):
        path.write_text(json.dumps({"links": [{"source": "A", "target": "B"}]} | wrong))
        with pytest.raises(WirelagError, match=said):
            read_topology(path)


# ---- changes ----


def test_old_and_new_segments_overlap() -> None:
    ab, bc, ac = (Referenced(Segment.link(*pair), "10.0.0.1", "10.0.0.2") for pair in ("AB", "BC", "AC"))
    turning = Turning(10)
    assert turning.turn([ab, bc], 100) == ([ab.segment, bc.segment], [])
    assert turning.turn([ab, ac], 200) == ([ac.segment], [bc.segment])
    assert list(turning.held()) == [(ab, None), (ac, None), (bc, 210)]
    assert turning.turn([ab, bc], 205) == ([bc.segment], [ac.segment])  # it is back before it has ended
    assert list(turning.held()) == [(ab, None), (bc, None), (ac, 215)]
    turning.pass_time(215)
    assert list(turning.held()) == [(ab, None), (bc, None)]
    # New addresses of a segment replace the old ones: it is measured once.
    other = replace(ab, target="10.0.0.9")
    turning.turn([other, bc], 300)
    assert list(turning.held()) == [(other, None), (bc, None)]


def following(six: Topology, **more: Any) -> Following:
    found = Following(Follow(overlap_ns=OVERLAP_NS, **more))
    assert found.take(six, MEASURING, 1) is not None
    return found


def segments_of(told: tuple[int, Any] | None, way: str) -> dict[str, int | None]:
    assert told is not None
    return {record["segment"]: record["until_ns"] for record in told[1] if record["way"] == way}


def test_a_failed_link_changes_m_sets(six: Topology) -> None:
    found = following(six)
    assert segments_of(found.m_set("C", 0), "out") == {"C>F": None, "C>D": None}
    assert segments_of(found.m_set("C", 0), "in") == {"F>C": None, "D>C": None}
    assert found.m_set("C", 1) is None  # it already has it
    assert found.m_set("B", 0) is None
    assert found.take(six, MEASURING, 2) is None

    change = found.take(six.without(("C", "F")), MEASURING, 3)
    assert change is not None
    assert (set(change.new), set(change.gone)) == (AFTER - BEFORE, BEFORE - AFTER)
    assert change.links_down == ("C>F", "F>C")
    assert not change.links_up
    told = found.m_set("C", 1)
    assert told is not None
    assert told[0] == 3
    assert segments_of(told, "out") == {"C>>F": None, "C>D": None, "C>F": 3 + OVERLAP_NS}
    assert found.m_set("A", 1) is None  # nothing changed for it
    assert json.dumps(found.to_json() | {"change": change.to_json()})

    back = found.take(six, MEASURING, 4)
    assert back is not None
    assert set(back.new) == BEFORE - AFTER
    assert segments_of(found.m_set("C", 3), "out") == {"C>F": None, "C>D": None, "C>>F": 4 + OVERLAP_NS}
    assert found.take(six, MEASURING, 4 + OVERLAP_NS) is None
    assert {one["segment"] for one in found.to_json()["segments"]} == BEFORE


def test_agents_that_measure_inside_get_the_ways_through_their_routers(six: Topology) -> None:
    """Those on shortest paths, by the addresses of their ports; agents that do not say so get none."""
    links = [(link.source, link.target) for link in six.links]
    ports = {(one, other): (f"10.9.{ord(one)}.{ord(other)}", f"10.9.{ord(other)}.{ord(one)}") for one, other in links}
    found = Following(Follow(overlap_ns=OVERLAP_NS))
    addressed = replace(six, link_addresses=ports)
    found.take(addressed, MEASURING, 1, ["F", "B"])  # no m-set is for B
    assert segments_of(found.m_set("C", 0), "inside") == {}
    ways = {str(one) for one in Plan(six).inside("F")}
    assert segments_of(found.m_set("F", 0), "inside") == dict.fromkeys(ways)
    assert {"F[A>C]", "F[>C]", "F[C>]"} <= ways
    told = found.m_set("F", 0)
    assert told is not None
    by_name = {record["segment"]: (record["source"], record["target"]) for record in told[1]}
    assert by_name["F[A>C]"] == ("10.9.70.65", "10.9.70.67")  # F's own addresses
    assert by_name["F[>C]"] == ("::", "10.9.70.67")
    messages = list(found.messages({"F": 0}, 2))
    assert messages == []  # its terms are not known yet

    gone = found.take(addressed.without(("C", "F")), MEASURING, 3, ["F"])
    assert gone is not None
    assert "F[A>C]" in gone.gone
    after = segments_of(found.m_set("F", 1), "inside")
    assert after["F[A>C]"] == 3 + OVERLAP_NS
    assert after["F[A>E]"] is None
    assert found.take(addressed.without(("C", "F")), MEASURING, 4, []) is not None  # it no longer says so
    assert {
        segment for segment, until_ns in segments_of(found.m_set("F", 3), "inside").items() if not until_ns
    } == set()


def test_ways_without_addresses_are_not_assigned(six: Topology) -> None:
    found = Following(Follow())
    found.take(six, MEASURING, 1, ["F"])
    assert segments_of(found.m_set("F", 0), "inside") == {}
    reasons = {one["segment"]: one["reason"] for one in found.to_json()["segments"]}
    assert reasons["F[A>C]"] == "the topology has no addresses for it"


def test_rerouted_virtual_links_are_reported(six: Topology) -> None:
    found = following(six)
    change = found.take(six.without(("D", "E")), MEASURING, 2)
    assert change is not None
    assert set(change.gone) == {"D>>F", "F>>D"}  # D's only path now goes through C, which measures
    beside = Following(Follow(upgraded=("A", "D")))
    beside.take(six, (), 1)
    rerouted = beside.take(six.without(("E", "F")), (), 2)
    assert rerouted is not None
    assert set(rerouted.rerouted) == {"A>>D", "D>>A"}


def test_measuring_routers_are_the_live_or_the_named_ones(six: Topology) -> None:
    found = following(six)
    change = found.take(six, ["A", "C", "F", "nobody"], 5)
    assert change is not None
    assert change.no_longer == ("D",)
    assert {"C>D", "D>C", "D>>F", "F>>D"} == set(change.gone)
    named = following(six, upgraded=("C", "F", "elsewhere"))
    assert named.upgraded == ("C", "F")
    assert {one["segment"] for one in named.to_json()["segments"]} == BEFORE  # A and D are ends
    assert named.take(six, MEASURING[:2], 5) is not None


def test_routers_have_the_names_of_agents() -> None:
    assert called("10.255.0.1", {"10.255.0.1": "Bonn"}) == "Bonn"
    assert called("10.255.0.1", {}) == "10-255-0-1"
    found = Following(Follow(upgraded=("10.255.0.3", "10.255.0.4"), names={"10.255.0.3": "Bonn"}))
    found.take(read_topology(DATA / "ospf.json"), (), 1)
    assert {one["segment"] for one in found.to_json()["segments"]} == {"Bonn>10-255-0-4", "10-255-0-4>Bonn"}
    clash = Following(Follow(names={"10.255.0.3": "Bonn", "10.255.0.4": "Bonn"}))
    with pytest.raises(WirelagError, match="both be called Bonn"):
        clash.take(read_topology(DATA / "ospf.json"), (), 1)


# ---- plans as files ----


def wanted(folder: Path, servers: Sequence[str] = (), follow: bool = False) -> AgentsWanted:
    return AgentsWanted(str(folder), servers, "https://c.example:8321", None, "1s", "100ms", follow)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("source", ["six.json", "ospf.json"])
def test_every_written_file_can_be_used(source: str, follow: bool, tmp_path: Path) -> None:
    topology = read_topology(DATA / source)
    plan = Plan(topology)
    plan.choose(2)
    servers = [router for router in topology.routers if router not in plan.upgraded][:2]
    written = write_agents(plan, str(DATA / source), wanted(tmp_path / "agents", servers=servers, follow=follow))
    *agents, collector = written.files
    assert len(agents) == len(plan.upgraded) + len(servers)
    settings = CollectorSettings.of(read_toml(collector), collector)
    assert list(told(replace(settings, port=0, store=str(tmp_path / "store.db"))))
    sent, measured = set(), dict[str, int]()
    for path in agents:
        config = Config.of(SCHEMA.load(path))
        assert (config.m_set is not None) == follow
        sent |= {(reference.source, reference.to) for reference in config.references}
        for one in config.measured:
            measured[str(one.terms.direction)] = measured.get(str(one.terms.direction), 0) + 1
            assert one.references_only
    if follow:
        assert not measured
    else:
        assert set(measured.values()) == {2}  # both ends of each
        assert {f"{one}>{other}" for one, other in sent} == measured.keys()
        inside = {one.segment for one in settings.ends if one.upstream == one.downstream}
        assert {one.segment for one in settings.ends} - inside == {
            str(one.segment) for path in agents for one in Config.of(SCHEMA.load(path)).measured
        }
        ports = [len(plan.neighbours(router)) + 1 for router in plan.upgraded]  # and one to the outside
        assert len(inside) == sum(count * (count - 1) for count in ports)
    insides = [Config.of(SCHEMA.load(path)).inside for path in agents]
    assert [one is not None for one in insides] == [True] * len(plan.upgraded) + [False] * len(servers)
    for router, one in zip(plan.upgraded, insides, strict=False):
        assert one is not None
        assert one.terms.estimator.name == "lda"
        assert one.ports is None if follow else len(one.ports or ()) == plan.degree(router)
    unknown = source == "six.json"
    assert any("addresses" in line for line in written.fill_in) == unknown
    assert ("2001:db8" in Path(agents[0]).read_text()) == (unknown and not follow)


def test_edited_files_are_not_overwritten(six: Topology, tmp_path: Path) -> None:
    first = write_agents(Plan(six, ["A", "B"]), "six.json", wanted(tmp_path))
    assert write_agents(Plan(six, ["A", "B"]), "six.json", wanted(tmp_path)).files == first.files
    edited = Path(first.files[-1])
    edited.write_text(edited.read_text() + "# mine\n")
    with pytest.raises(WirelagError, match=r"collector\.toml: is there already, and differs"):
        write_agents(Plan(six, ["A", "B"]), "six.json", wanted(tmp_path))
    assert edited.read_text().endswith("# mine\n")


def test_at_least_two_agents_are_needed(six: Topology, tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match="between two routers"):
        write_agents(Plan(six, ["A"]), "six.json", wanted(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(WirelagError, match="cannot write"):
        write_agents(Plan(six, ["A", "B"]), "six.json", wanted(tmp_path / "file"))


# ---- the collector ----


def test_live_agents_follow(tmp_path: Path) -> None:
    config, place = config_of(tmp_path), {"start_ns": 5, "end_ns": 5, "name": None, "class": None}

    def status(point: str, **more: Any) -> Message:
        return Message("status", point, None, Interval(5, 5), config.terms, records=(place | more,))

    agents = Agents({})
    agents.heard(status("A", m_set_ns=0), 1, 5, 5)
    agents.heard(status("B", m_set_ns=7), 1, 5, 5)
    agents.heard(status("C"), 1, 5, 5)  # it has its own settings
    agents.heard(status("D", m_set_ns=7, ending=True), 1, 5, 5)
    assert agents.following(6) == {"A": 0, "B": 7}
    assert agents.following(5 + ALIVE_NS) == {}
    # After a restart the collector has heard no agent yet: none is silent.
    assert Agents(agents.changed()).following(5 + 2 * ALIVE_NS, began_ns=4 + 2 * ALIVE_NS) == {"A": 0, "B": 7}
    # A clock that is set makes nobody silent: neither its m-set nor its alert changes.
    shown = {one["point"]: (one["alive"], one["silent"]) for one in agents.all(5 + 3600 * 10**9, 5 + 10**9)}
    assert shown == dict.fromkeys("ABCD", (True, 1.0))


@pytest.mark.parametrize(
    ("follow", "said"),
    [
        ({"evry": "1s"}, "follow.evry: unknown setting; did you mean follow.every"),
        ({"every": 1}, "follow.every: 1 is not text"),
        ({"every": "1ms"}, "follow.every: 1ms is out of range: at least 50ms"),
        ({"overlap": "soon"}, "soon"),
        ({"upgraded": [1]}, "follow.upgraded: 1 is not text"),
    ],
)
def test_wrong_settings_of_following_are_reported(follow: dict[str, Any], said: str) -> None:
    with pytest.raises(WirelagError, match=said):
        CollectorSettings.of({"topology": "net.json", "follow": follow}, "c.toml")
    with pytest.raises(WirelagError, match=r"topology \(--topology\): is missing"):
        CollectorSettings.of({"follow": {}}, "c.toml")
    with pytest.raises(WirelagError, match="names: 'a b' is not a name"):
        CollectorSettings.of({"names": {"10.0.0.1": "a b"}}, "c.toml")


def test_check_reports_what_is_followed(tmp_path: Path) -> None:
    plain = {"topology": str(DATA / "six.json"), "listen": "127.0.0.1:0", "store": str(tmp_path / "s.db")}
    lines = "\n".join(told(CollectorSettings.of(plain | {"follow": {"upgraded": ["C", "F"]}}, "c.toml")))
    assert "reads it every 1 s: 2 routers measure" in lines
    assert "6 routers have no address of their own" in lines
    wrong = CollectorSettings.of(plain | {"follow": {"upgraded": ["Q"]}}, "c.toml")
    with pytest.raises(WirelagError, match="there is no router Q"):
        list(told(wrong))


def test_a_collector_follows_a_file(six: Topology, tmp_path: Path) -> None:
    """Agents announce that they take m-sets; the file changes; they get new ones, and the change is stored."""
    network = tmp_path / "net.json"
    # The first network has none of their routers. If it had, a plan made before the last one announced itself would
    # have A>>C through F, which ends, after the overlap, when F does.
    write_network(network, six.renamed({router: f"earlier-{router}" for router in six.routers}))
    config = config_of(tmp_path)
    settings = tmp_path / "collect.toml"
    audit = tmp_path / "audit.jsonl"
    settings.write_text(f'audit = "{audit}"\n[follow]\noverlap = "10m"\n')  # however long the test takes
    words = (str(settings), "--topology", str(network), "--follow", "50ms")
    with (
        Running(tmp_path, *words, token=None) as running,
        agents(running.url, config, dict.fromkeys(MEASURING, 0)) as has_ns,
    ):
        running.until(lambda: running.get("/api/v1/topology")[0] == 200)  # the first plan may take long
        running.until(lambda: {one["point"] for one in running.json("/api/v1/agents")["agents"]} == set(MEASURING))
        write_network(network, six)
        running.until(lambda: running.json("/api/v1/topology")["upgraded"] == MEASURING)
        told = _asked(running.url, "C")
        assert {record["segment"] for record in told.records} == {"C>F", "F>C", "C>D", "D>C"}
        assert not _ending(told)
        has_ns["C"] = told.interval.start_ns
        write_network(network, six.without(("C", "F")))
        turned = _asked(running.url, "C", since_ns=told.interval.start_ns)
        assert _ending(turned) == {"C>F", "F>C"}
        assert len(turned.records) == 6
        said = running.json("/api/v1/topology", limit=1)
        assert (said["follows"], said["problem"], said["routers"]) == (True, None, list(six.routers))
        assert said["changes"][0]["links_down"] == ["C>F", "F>C"]
        assert {one["segment"] for one in said["segments"] if one["until"] is None} == AFTER
        assert running.get("/api/v1/path", source="C", target="F")[0] == 200
        network.unlink()
        running.until(lambda: running.json("/api/v1/topology")["problem"] is not None)
        assert running.json("/api/v1/topology")["routers"] == list(six.routers)  # unchanged
    assert "links down C>F, F>C" in running.log
    # Each m-set is in the audit log once, however often it is repeated.
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    tellings = [(line["point"], line["since"], line["segments"]) for line in lines if line["what"] == "m-set told"]
    assert len(set(tellings)) == len(tellings)
    for message in (told, turned):
        assert ("C", message.interval.start_ns / 1e9, len(message.records)) in tellings
    assert {point for point, _, _ in tellings} == set(MEASURING)


def _ending(message: Message) -> set[str]:
    return {record["segment"] for record in message.records if record["until_ns"]}


def _asked(url: str, point: str, since_ns: int = 0) -> Message:
    """The first m-set for a point that is valid since a later time; the one that it has may be repeated."""
    import urllib.request

    deadline = time.monotonic() + PATIENCE_S
    with urllib.request.urlopen(f"{url}/v1/asks/{point}", timeout=PATIENCE_S) as answer:
        while time.monotonic() < deadline:
            length, _ = FRAME.unpack(answer.read(FRAME.size))
            if length and (message := decode(answer.read(length))).interval.start_ns > since_ns:
                return message
    raise AssertionError("it never came to that")
