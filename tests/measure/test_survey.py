"""The findings of `wirelag info`, compared with simulations and with tshark."""

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import survey as oracle
from tests.support.captures import ethernet, ipv4, pcap, random_frame, tcp
from tests.support.command import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag import _kernels
from wirelag.capture.pcap import CaptureFile
from wirelag.estimators.match import Match
from wirelag.measure import survey, trial
from wirelag.measure.rtt import RttSettings
from wirelag.measure.survey import Survey, common_share
from wirelag.packets.batch import Flag, Kind, PacketBatch
from wirelag.sim import Scenario, simulate


def info(*paths: Path) -> dict:
    return json.loads(wirelag("info", "--format", "json", *paths).stdout)


def applies(facts: dict) -> dict[str, bool]:
    return {verdict["command"]: verdict["applies"] for verdict in facts["commands"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("survey")
    write_simulation(simulate(Scenario(packets=5_000, seed=3)), directory / "both.pcap")
    write_simulation(simulate(Scenario(packets=5_000, seed=3, direction="client")), directory / "client.pcapng")
    two_points = simulate(Scenario(packets=5_000, seed=3, points=2))
    write_simulation(two_points, directory / "up.pcap", directory / "down.pcap")
    return directory


def test_both_directions_at_one_point_call_for_rtt(made: Path) -> None:
    facts = info(made / "both.pcap")
    assert facts["packets"] == 5_000
    assert facts["directions"]["both"] > 0.9 * facts["conversations"]
    assert applies(facts) == {"rtt": True, "response": True, "oneway": False, "flows": False}


def test_one_direction_calls_for_response(made: Path) -> None:
    facts = info(made / "client.pcapng")
    assert facts["directions"] == {"both": 0, "one": facts["conversations"], "client_only": facts["conversations"]}
    assert applies(facts) == {"rtt": False, "response": True, "oneway": False, "flows": False}
    assert "client->server only" in facts["commands"][1]["why"]


def test_response_needs_a_client(tmp_path: Path) -> None:
    """Packets of a server alone, and pings, which need no server."""
    back = ethernet(ipv4(tcp(b"x", ports=(443, 40_000)), 6))
    pings = [ethernet(ipv4(bytes([kind, 0, 0, 0, 0, 1, 0, 1]), 1, src=src, dst=dst))
             for kind, src, dst in ((8, b"\x0a\0\0\1", b"\x0a\0\0\2"), (0, b"\x0a\0\0\2", b"\x0a\0\0\1"))]  # fmt: skip
    for frames, rtt, why in (([back, back], False, "no packets from clients to servers"), (pings, True, "only ICMP")):
        path = tmp_path / "some.pcap"
        path.write_bytes(pcap([(i, frame, len(frame)) for i, frame in enumerate(frames)]))
        facts = info(path)
        assert applies(facts) == {"rtt": rtt, "response": False, "oneway": False, "flows": False}
        assert facts["commands"][1]["why"].startswith(why)


def test_the_same_traffic_at_two_points_calls_for_oneway(made: Path) -> None:
    facts = info(made / "up.pcap", made / "down.pcap")
    # rtt and response would count each packet twice.
    assert applies(facts) == {"rtt": False, "response": False, "oneway": True, "flows": True}
    assert facts["packets"] == sum(file["packets"] for file in facts["files"])
    other = info(made / "both.pcap", made / "client.pcapng")
    assert [file["packets"] for file in other["files"]] == [5_000, 5_000]


# Among them: too few requests, one direction only, servers only, no TCP, half of a conversation.
PROMISED = (
    "rtt/zeek/ssh.pcap.gz",
    "wild/nfstream__nfstream__tests__pcaps__ssh.pcap.gz",
    "wild/slytechs-repos__jnetpcap-legacy__tests__test-sip-rtp-g711.pcap.gz",
    "wild/ntop__nDPI__tests__cfgs__default__pcap__uftp_v4_v5.pcap.gz",
    "wild/CESNET__ipfixprobe__tests__functional__inputs__ovpn.pcap.gz",
    "wild/cloudflare__mitmengine__reference_fingerprints__pcaps__misc__ios6__handshake.pcap.gz",
    "wild/ITI__ICS-Security-Tools__pcaps__C37.118__C37118__c37_pmu_clean.pcap.gz",
)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", PROMISED)
def test_commands_keep_what_info_promises(shared_data: Path, name: str) -> None:
    for verdict in info(shared_data / name)["commands"][:2]:
        ran = wirelag(verdict["command"], "--format", "json", shared_data / name, code=None)
        found = json.loads(ran.stdout) if ran.returncode == 0 else {}
        delays = [found.get("mean"), *(leg["mean"] for leg in found.get("legs", {}).values())]
        assert verdict["sure"]
        assert verdict["applies"] == any(mean is not None for mean in delays), verdict


def test_a_trial_of_the_first_packets_is_no_certainty(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MOST_TRIED", 1)
    assert all(one["sure"] for one in info(made / "both.pcap")["commands"][:2])  # one batch has all of it
    monkeypatch.setattr(trial, "MOST_TRIED", 0)
    said = info(made / "both.pcap")["commands"]
    assert [(one["applies"], one["sure"]) for one in said[:2]] == [(False, False)] * 2
    assert "probably not wirelag rtt" in wirelag("info", made / "both.pcap").stdout


def test_a_trial_is_what_rtt_does_by_default() -> None:
    assert RttSettings().estimator() == Match()


def test_two_captures_in_the_wrong_order_are_told_so(made: Path) -> None:
    oneway = info(made / "down.pcap", made / "up.pcap")["commands"][2]
    assert not oneway["applies"] or wirelag("oneway", made / "down.pcap", made / "up.pcap", code=None).returncode == 0


def test_conversations_agree_with_tshark(shared_data: Path, tool: object) -> None:
    tool("tshark")  # type: ignore[operator]
    path = shared_data / "rtt/zeek/ssh.pcap.gz"
    fields = ["-T", "fields", "-e", "tcp.stream"]
    ran = subprocess.run(["tshark", "-r", path, "-Y", "tcp", *fields], capture_output=True, text=True, check=True)
    facts = info(path)
    assert facts["kinds"]["tcp"] == len(ran.stdout.split())
    assert facts["directions"]["both"] == len(set(ran.stdout.split()))


FACTS = ("forward", "backward", "to server", "to client", "syn", "syn/ack", "tcp", "timed")


def kept(kernel: _kernels.Survey) -> dict[int, set[str]]:
    keys, facts = np.empty(len(kernel), np.uint64), np.empty(len(kernel), np.uint8)
    kernel.conversations(keys, facts)
    return {
        key: {name for bit, name in enumerate(FACTS) if fact >> bit & 1}
        for key, fact in zip(keys.tolist(), facts.tolist(), strict=True)
    }


@pytest.mark.every(2)
@pytest.mark.parametrize("most", [1, 40, 1 << 20])
def test_conversations_are_those_of_the_twin(tmp_path: Path, most: int) -> None:
    """Random frames, and a simulation; whole, and as two halves that are merged."""
    rng = random.Random(4)
    frames = [(i, frame, len(frame)) for i, frame in enumerate(random_frame(rng)[1] for _ in range(3_000))]
    (tmp_path / "random.pcap").write_bytes(pcap(frames))
    write_simulation(simulate(Scenario(packets=3_000, seed=4)), tmp_path / "real.pcap")
    whole, halves = _kernels.Survey(most), [_kernels.Survey(most), _kernels.Survey(most)]
    twin = oracle.Survey(most)
    for number, name in enumerate(("random.pcap", "real.pcap")):
        for batch in CaptureFile(str(tmp_path / name)):
            whole.observe(batch)
            halves[number].observe(batch)
            twin.observe(batch)
    halves[0].merge(halves[1])
    assert kept(whole) == kept(halves[0]) == twin.conversations
    assert whole.level == halves[0].level == twin.level
    for one in (whole, halves[0]):
        assert {kind: one.kinds[kind] for kind in Kind if one.kinds[kind]} == dict(twin.kinds)
        assert {flag: one.flags[flag.bit_length() - 1] for flag in Flag if flag in twin.flags} == dict(twin.flags)


def test_excess_conversations_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood: the count stays right within four standard errors of the sample."""
    monkeypatch.setattr(survey, "MOST_CONVERSATIONS", 1 << 10)
    keys = np.random.default_rng(5).integers(0, 2**64, 100_000, dtype=np.uint64)
    nothing = np.zeros(100_000)
    columns = {name: nothing.astype(np.uint16) for name in ("src_port", "dst_port", "flags")}
    columns |= {name: nothing.astype(np.uint8) for name in ("kind", "message")}
    seen = Survey()
    for _ in range(2):
        seen.observe(PacketBatch({"time_ns": nothing.astype(np.int64), "flow_key": keys, **columns}))
    found = seen.conversations
    assert len(found.bits) <= 1 << 10
    assert abs(found.count() - 100_000) < 4 * 100_000 / len(found.bits) ** 0.5


def test_the_common_share_of_two_samples_equals_that_of_the_packets() -> None:
    rng = np.random.default_rng(6)
    packets = rng.integers(0, 2**64, 200_000, dtype=np.uint64)
    one, other = np.sort(packets[:150_000]), np.sort(packets[90_000:])
    share = common_share(one[: survey.MOST_IDS], other[: survey.MOST_IDS])
    # 60,000 of 110,000 packets are common; the sample has about 3,000 of them.
    assert abs(share - 6 / 11) < 4 * (0.25 / 3_000) ** 0.5
    assert common_share(one, np.empty(0, np.uint64)) == 0
