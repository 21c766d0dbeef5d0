"""The balancer's loop with a dataplane in memory: tables, takeovers, backends that come, go and do not answer."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest

from tests.support.balance_loop import NAMES, Memory, S, mac_given, of, steered, well
from tests.support.balancer_packets import CONFIG
from wirelag.balance.loop import Balancer, fixed
from wirelag.balance.settings import BackendSettings, Config
from wirelag.balance.view import TooShort, View
from wirelag.ebpf.service import Backend, Counts, Way
from wirelag.errors import WirelagError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lb.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_tables_follow_weights_and_change_only_with_them(config: Path) -> None:
    dataplane, balancer = steered(config)
    assert dataplane.shares == pytest.approx(dict.fromkeys(NAMES, 0.25), abs=1e-4)
    for _ in range(5):
        balancer.step(dataplane.reading(**{name: well() for name in NAMES}))
    assert dataplane.tables == 1
    entry = balancer.step(dataplane.reading(web1=well(50), web2=well(), web3=well(), web4=well()))
    assert dataplane.tables == 2
    assert dataplane.shares == pytest.approx(entry.decision.weights, abs=1e-3)
    assert entry.steered


def test_a_restarted_controller_continues_with_the_weights_of_the_table(config: Path) -> None:
    dataplane, balancer = steered(config)
    for _ in range(6):
        balancer.step(dataplane.reading(web1=well(50), web2=well(), web3=well(), web4=well()))
    before, slots = dict(dataplane.shares), dict(dataplane.slots)
    again = Balancer(Config.load(str(config)), dataplane, mac_given)
    assert again.controller.weights == pytest.approx(before, abs=1e-3)
    assert dataplane.slots == slots


def test_a_removed_backend_keeps_its_connections_until_they_end(config: Path) -> None:
    dataplane, balancer = steered(config)
    text = config.read_text(encoding="utf-8")
    config.write_text('drain = ["web1"]\n' + text, encoding="utf-8")
    changes = balancer.reload(Config.load(str(config)))
    assert {change.name: change.reason for change in changes}["web1"] == "drains"
    assert "web1" in dataplane.listed
    assert dataplane.shares["web1"] == 0
    others = {name: well() for name in NAMES[1:]}
    for _ in range(3):
        entry = balancer.step(dataplane.reading(web1=Counts(connections=3), **others))
    assert of(entry.to_json(), "web1")["standing"] == "draining"
    assert of(entry.to_json(), "web1")["weight"] == 0
    balancer.step(dataplane.reading(web1=Counts(), **others))
    assert "web1" not in dataplane.listed
    config.write_text(text, encoding="utf-8")  # it comes back
    balancer.reload(Config.load(str(config)))
    assert dataplane.shares["web1"] == pytest.approx(0.008, abs=1e-3)


def test_draining_has_a_limit(config: Path) -> None:
    dataplane, balancer = steered(config)
    text = config.read_text(encoding="utf-8")
    config.write_text('drain = ["web1"]\ndrain_limit = "5s"\n' + text, encoding="utf-8")
    balancer.reload(Config.load(str(config)))
    steps = 0
    while "web1" in dataplane.listed:
        balancer.step(dataplane.reading(web1=Counts(connections=3), **{name: well() for name in NAMES[1:]}))
        steps += 1
    assert steps == 11  # half a second each, whatever the clock shows


def test_a_backend_removed_while_no_controller_ran_drains_too(config: Path) -> None:
    dataplane, _ = steered(config)
    text = config.read_text(encoding="utf-8")
    config.write_text(text[: text.rindex("[[backends]]")], encoding="utf-8")
    again = Balancer(Config.load(str(config)), dataplane, mac_given)
    assert again.draining == ("web4",)
    assert "web4" in dataplane.listed
    assert dataplane.shares["web4"] == 0


def test_draining_waits_for_connections_that_still_read(config: Path) -> None:
    dataplane, balancer = steered(config)
    config.write_text('drain = ["web1"]\n' + CONFIG, encoding="utf-8")
    balancer.reload(Config.load(str(config)))
    for _ in range(5):
        balancer.step(dataplane.reading(web1=Counts(closing=1)))
        assert "web1" in dataplane.listed
    balancer.step(dataplane.reading(web1=Counts()))
    assert "web1" not in dataplane.listed


class Segment:
    """The hosts that answer ARP on a network segment."""

    def __init__(self) -> None:
        self.dead = set[str]()

    def mac_of(self, one: BackendSettings) -> Way:
        if one.name in self.dead:
            raise WirelagError(f"{one.address}: no answer")
        return Way(bytes.fromhex(f"0200000000{int(one.name[3:]):02x}"))


def test_a_backend_without_a_mac_is_left_out_until_it_answers(config: Path) -> None:
    dataplane, segment, said = Memory(), Segment(), list[str]()
    segment.dead |= {"web2", "web3"}
    balancer = Balancer(Config.load(str(config)), dataplane, segment.mac_of, said.append)
    assert set(balancer.controller.weights) == set(dataplane.listed) == {"web1", "web4"}
    assert [line.partition(":")[0] for line in said] == ["web2", "web3"]
    assert all(line.endswith("it is left out until it answers") for line in said)
    segment.dead -= {"web3"}
    for _ in range(2):  # one backend is asked in each interval
        balancer.step(dataplane.reading(web1=well(), web4=well()))
    assert set(balancer.controller.weights) == set(dataplane.listed) == {"web1", "web3", "web4"}
    assert "web3: 10.0.0.13 answers now, and gets connections" in said

    segment.dead |= {"web1", "web4", "web5"}  # reload and takeover already know the MAC addresses
    config.write_text(CONFIG + '[[backends]]\nname = "web5"\naddress = "10.0.0.15"\n', encoding="utf-8")
    balancer.reload(Config.load(str(config)))
    assert set(balancer.controller.weights) == {"web1", "web3", "web4"}
    again = Balancer(Config.load(str(config)), dataplane, segment.mac_of)
    assert set(again.controller.weights) == set(dataplane.listed) == {"web1", "web3", "web4"}
    assert not again.draining


def test_no_backend_at_all_is_an_error(config: Path) -> None:
    segment = Segment()
    segment.dead |= set(NAMES)
    with pytest.raises(WirelagError, match=r"web1: .* no answer"):
        Balancer(Config.load(str(config)), Memory(), segment.mac_of)


def test_a_file_that_exceeds_the_table_changes_nothing(config: Path) -> None:
    class Full(Memory):
        def set_backends(self, backends: Sequence[Backend]) -> dict[str, int]:
            if len(backends) > 5:
                raise WirelagError("there is room for 5")
            return super().set_backends(backends)

    dataplane = Full()
    balancer = Balancer(Config.load(str(config)), dataplane, Segment().mac_of)
    before = balancer.config
    more = "".join(f'[[backends]]\nname = "web{i}"\naddress = "10.0.0.{10 + i}"\n' for i in (5, 6))
    config.write_text('drain = ["web1"]\n' + CONFIG + more, encoding="utf-8")
    with pytest.raises(WirelagError, match="room for 5"):
        balancer.reload(Config.load(str(config)))
    assert balancer.config is before
    assert not balancer.draining
    assert set(balancer.controller.weights) == set(dataplane.listed) == set(NAMES)


def test_too_short_connections_are_reported_once(config: Path) -> None:
    dataplane, balancer = steered(config)
    short, told, view = TooShort(), 0, View(balancer.config)
    for _ in range(40):
        brief = Counts(abstained=5, requests=5, opened=5, packets=20)
        entry = balancer.step(dataplane.reading(**dict.fromkeys(NAMES, brief)))
        told += short.add(entry)
    assert told == 1
    assert short.line.startswith("connections are too short for a latency (1.0 requests each")
    view.add(entry)
    from rich.console import Console

    console = Console(file=StringIO(), width=200, record=True)
    console.print(view.draw())
    assert console.export_text().count("connections too short") == 4
    well_heard = TooShort()
    assert not any(
        well_heard.add(balancer.step(dataplane.reading(web1=well(), web2=Counts(abstained=50, requests=50, opened=50))))
        for _ in range(9)
    )


def test_setting_the_clock_ends_no_draining(config: Path) -> None:
    dataplane, balancer = steered(config)
    config.write_text('drain = ["web1"]\n' + CONFIG, encoding="utf-8")
    balancer.reload(Config.load(str(config)))
    balancer.step(dataplane.reading(web1=Counts(connections=3)))
    dataplane.time_ns += 3600 * S
    balancer.step(dataplane.reading(web1=Counts(connections=3)))
    assert "web1" in dataplane.listed


def test_some_settings_need_a_restart(config: Path) -> None:
    _, balancer = steered(config)
    config.write_text('interval = "2s"\n[table]\nsize = 1009\n' + CONFIG, encoding="utf-8")
    new = Config.load(str(config))
    assert fixed(balancer.config, new) == ["interval", "table_size"]
    balancer.reload(new)
    assert balancer.config.table_size == 65_537
