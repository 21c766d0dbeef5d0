"""`wirelag response` on datagrams of real captures: calls, streams and tunnels have no latency, and it says why."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.command import wirelag
from tests.support.response_json import asked, by_key
from tests.support.two_way_captures import in_step, stream, write

CALLS = (
    "nfstream__nfstream__tests__pcaps__facebook",
    "nfstream__nfstream__tests__pcaps__signal",
    "nfstream__nfstream__tests__pcaps__wa_voice",
    "nfstream__nfstream__tests__pcaps__whatsapp_login_call",
    "nfstream__nfstream__tests__pcaps__zoom",
    "ntop__nDPI__tests__cfgs__default__pcap__teams",
    "ntop__nDPI__tests__cfgs__default__pcap__webex",
    "ntop__nDPI__tests__cfgs__default__pcap__zoom",
)
RTP = "slytechs-repos__jnetpcap-legacy__tests__test-sip-rtp-g711"
MULTICAST = "ntop__nDPI__tests__cfgs__default__pcap__uftp_v4_v5"
ESP = "arkime__arkime__tests__pcap__IKEv1"
CALL = "nfstream__nfstream__tests__pcaps__whatsapp_login_call"
COAP = "ntop__nDPI__tests__cfgs__default__pcap__coap_mqtt"


def wild(shared_data: Path, name: str) -> Path:
    return shared_data / "wild" / f"{name}.pcap.gz"


def datagrams(capture: Path, *words: object) -> dict[str, dict[str, Any]]:
    """What is said of flows without TCP headers, all of them estimated from one direction."""
    found = by_key(asked(capture, "--method", "auto", "--by", "flow", *words))
    return {key: group for key, group in found.items() if not key.endswith(" tcp")}


@pytest.mark.parametrize("name", [*CALLS, RTP, MULTICAST, ESP])
def test_streams_have_no_estimate(shared_data: Path, name: str) -> None:
    """Calls of all kinds, a multicast, and four pings in a tunnel: none of them waits for a response."""
    assert {key: group["mean"] for key, group in datagrams(wild(shared_data, name)).items() if group["samples"]} == {}


def test_a_call_at_a_steady_pace_says_so(shared_data: Path) -> None:
    found = datagrams(wild(shared_data, RTP))
    for flow in ("200.57.7.196:40376 > 200.57.7.204:8000 udp", "200.57.7.196:40378 > 200.57.7.199:4800 udp"):
        assert found[flow]["abstained"]["paced"] > 0.9 * sum(found[flow]["abstained"].values())


def test_a_multicast_says_so(shared_data: Path) -> None:
    found = datagrams(wild(shared_data, MULTICAST))
    assert {reason for group in found.values() for reason in group["abstained"]} == {"multicast"}


def test_pings_in_a_tunnel_say_so(shared_data: Path) -> None:
    """Four at once, each every second: their gaps vary, their sums do not."""
    found = datagrams(wild(shared_data, ESP))
    abstained = found["2003:51:6012::2 > 2003:51:6012::4 esp"]["abstained"]
    assert abstained["paced"] > 0.5 * sum(abstained.values())


def test_heartbeats_of_a_server_are_not_responses(shared_data: Path) -> None:
    """Every five seconds it sends four bytes, and gets four back after 1.2 ms: nothing takes five seconds."""
    found = by_key(asked(wild(shared_data, RTP), "--method", "pairs", "--port", "2906"))["200.57.7.198:2906"]
    assert (found["samples"], found["stream"], found["mean"]) == (0, 7, None)
    assert "200.57.7.198:2906" not in {
        key for key, group in by_key(asked(wild(shared_data, RTP))).items() if group["samples"]
    }


def test_a_call_is_not_responses(shared_data: Path) -> None:
    """Its datagrams take turns, which looks like requests and responses; the rest of the capture has some."""
    found = asked(wild(shared_data, CALL), "--method", "pairs", "--filter", "udp", "--by", "flow")
    groups = by_key(found)
    for peer in ("192.168.2.4:51518 > 91.253.176.65:9344 udp", "192.168.2.4:52794 > 91.253.176.65:9665 udp"):
        assert groups[peer]["samples"] == 0
        assert groups[peer]["stream"] == groups[peer]["exchanges"] > 40
    assert found["samples"] > 0


def test_both_directions_of_rtp(shared_data: Path) -> None:
    """Two calls are streams; the SNMP walk beside them, at nearly as steady a pace, is requests and responses."""
    found = by_key(asked(wild(shared_data, RTP), "--method", "pairs", "--filter", "udp", "--by", "flow"))
    for flow in ("200.57.7.196:40376 > 200.57.7.204:8000 udp", "200.57.7.196:40378 > 200.57.7.199:4800 udp"):
        assert found[flow]["stream"] == found[flow]["exchanges"] > 300
    for reports in ("200.57.7.196:40377 > 200.57.7.204:8001 udp", "200.57.7.196:40379 > 200.57.7.199:4801 udp"):
        assert found[reports]["stream"] == found[reports]["exchanges"] > 0
    walk = found["200.57.7.194:1161 > 200.57.7.197:161 udp"]
    assert (walk["samples"], walk["mean"]) == (249, pytest.approx(0.0061, abs=0.0001))


def test_polling_at_a_pace_is_requests_and_responses(shared_data: Path) -> None:
    """A request every 110 ms, a response after 4: known from both directions, not from one."""
    capture = wild(shared_data, COAP)
    server = by_key(asked(capture, "--method", "pairs", "--port", "17500"))["192.168.56.101:17500"]
    assert (server["samples"], server["mean"]) == (400, pytest.approx(0.0038, abs=0.0001))
    alone = datagrams(capture, "--port", "17500")
    assert {reason for group in alone.values() for reason in group["abstained"]} == {"paced", "too_few"}


# ---- made here ----


@pytest.mark.every(2)
@pytest.mark.parametrize("after_ms", [4, 10, 16])
def test_two_sides_in_step_are_a_stream(tmp_path: Path, after_ms: float) -> None:
    """Both sides of a call have the same pace, so each datagram seems to answer the other side's."""
    capture = write(tmp_path / "call.pcap", in_step(50_000, 5, after_ms))
    found = asked(capture, "--method", "pairs")
    assert (found["samples"], found["mean"]) == (0, None)
    assert found["stream"] == found["exchanges"] == 250
    said = wirelag("response", capture, "--method", "pairs").stdout
    assert "250 of 250 exchanges are of streams in both directions, such as a call or heartbeats" in said


def test_two_sides_that_send_at_random_are_a_stream(tmp_path: Path) -> None:
    found = asked(write(tmp_path / "random.pcap", stream(50_000, 5)), "--method", "pairs")
    assert found["samples"] == 0
    assert found["stream"] == found["exchanges"] > 100


def test_prompt_responses_to_a_paced_client_are_timed(tmp_path: Path) -> None:
    found = asked(write(tmp_path / "polls.pcap", in_step(50_000, 5, after_ms=1.5)))
    assert (found["estimator"], found["samples"], found["stream"]) == ("pairs", 250, 0)
    assert found["mean"] == pytest.approx(0.0015)
