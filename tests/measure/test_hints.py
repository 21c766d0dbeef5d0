"""What commands say where they have nothing to say: on real captures, each with another reason."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

import wirelag as api
from tests.support.captures import capture_name, capture_paths, ethernet, ipv4, pcap, tcp, udp
from tests.support.command import wirelag
from tests.support.places import ROOT
from wirelag.errors import WirelagError
from wirelag.measure.result import DelayResult
from wirelag.render.html.frame import prose

SSH = "rtt/zeek/ssh.pcap.gz"
CASES = (
    (("rtt", "hidden/nDPI/vxlan.pcap"), "127 packets are tunnelled: --tunnels"),
    (("response", "hidden/nDPI/vxlan.pcap"), "127 packets are tunnelled: --tunnels"),
    (("flows", "hidden/nDPI/vxlan.pcap"), "no reference packets; send some from before the queue"),  # nor inside
    (("rtt", "hidden/zeek/ssh.client-side-half-duplex.pcap"), "in one direction only: try `wirelag response`"),
    (("rtt", "hidden/zeek/ssh.server-side-half-duplex.pcap.gz"), "from servers to clients only: capture where"),
    (("rtt", "hidden/nfstream/quic_t51.pcap.gz"), "642 QUIC packets, whose spin bit does not turn"),
    (("response", "hidden/nfstream/quic_t51.pcap.gz"), "too few responses: capture for longer"),  # not: try rtt
    (("rtt", "hidden/zeek/ip6_esp.pcap"), "120 ESP packets are encrypted, and show no request: capture where they are"),
    (("response", "hidden/zeek/ip6_esp.pcap"), "120 ESP packets are encrypted, and show no request"),
    (("rtt", "hidden/nDPI/ipsec_isakmp_esp.pcap.gz"), "519 UDP and 315 ESP packets: try `wirelag response`"),
    (("response", "hidden/nfstream/wireguard.pcap.gz"), "2,399 WireGuard packets are encrypted, and show no request"),
    (("rtt", "hidden/wireshark/wireguard-ping-tcp.pcap"), "22 WireGuard packets are encrypted, and show no request"),
    (
        ("rtt", "hidden/PcapPlusPlus/4KHttpRequests.pcap.gz"),
        "121 conversations are seen in one direction only: ",
    ),
    (
        ("rtt", "hidden/zeek/gre-aruba.pcap.gz"),
        "2,407 packets are tunnelled, and there is nothing inside",
    ),
    (("rtt", "hidden/zeek/gre-aruba.pcap.gz", "--tunnels"), "no TCP, DNS, NTP, ICMP or QUIC, only 2,407 other packets"),
    (("response", "malformed/suricata-verify/decode-erspan-typeII-01/input.pcap"), "try `wirelag rtt --tunnels`"),
    (("rtt", SSH, "--match", "dns"), "there is an answer with other settings: leave --match out"),
    (("response", "hidden/libtrace/vlan.pcap", "--method", "auto"), "leave --server or --method out"),
    (("rtt", "malformed/tcpdump/arp-oobr.pcap"), "2,282 packets not IP"),
    (("response", "malformed/tcpdump/arp-oobr.pcap"), "2,282 packets not IP"),
    (
        ("response", "hidden/spindump/trace_ping_bandwidthperiods1.pcap"),
        "which has no servers: try `wirelag rtt`",
    ),
    (("rtt", "malformed/dpkt/truncated_dns.pcap"), "only 1 packet: capture for longer"),
    (("response", "malformed/tcpdump/pimv2-oobr-1.pcap"), "only 1 packet: capture for longer"),  # it is from a client
    (("rtt", SSH, "--port", "9"), "the filter leaves out all 1,797 packets: most are of port 22"),
    (("response", SSH, "--port", "9"), "the filter leaves out all 1,797 packets: most are of port 22"),
    (("oneway", SSH, "hidden/zeek/ssh.client-side-half-duplex.pcap", "--port", "9"), "most are of port 22"),
    (("rtt", SSH, "--from", "2020-01-01"), "the capture is from 2011-12-16 21:35:33.493 to 2015-01-12"),
    (("rtt", SSH, "--host", "192.0.2.77"), "see what there is with `wirelag info`"),
)


@pytest.mark.every(4)
@pytest.mark.parametrize(("words", "said"), CASES)
def test_an_empty_answer_says_why_and_what_to_try(shared_data: Path, words: tuple[str, ...], said: str) -> None:
    given = [shared_data / word if "/" in word else word for word in words]
    ran = wirelag(*given, code=None)
    assert said in ran.stdout + ran.stderr
    if words[0] in ("rtt", "response") and ran.returncode == 0:
        found = json.loads(wirelag(*given, "--format", "json").stdout)
        assert said in found["hint"]
        jsonschema.validate(found, json.loads((ROOT / f"docs/reference/schema/{words[0]}.json").read_text()))


def test_an_answer_has_no_hint(shared_data: Path) -> None:
    for command in ("rtt", "response"):
        assert "hint" not in json.loads(wirelag(command, shared_data / SSH, "--format", "json").stdout)


def test_cut_headers_are_named(tmp_path: Path) -> None:
    """Frames cut inside the TCP header, and inside the IP header."""
    whole = ethernet(ipv4(tcp(b"x" * 100, ports=(40_000, 443)), 6))
    for kept, said in (
        (14 + 20 + 6, "40 packets without full headers"),
        (14 + 8, "cut before the end of the IP header"),
    ):
        path = tmp_path / f"cut{kept}.pcap"
        path.write_bytes(pcap([(i, whole[:kept], len(whole)) for i in range(40)]))
        printed = wirelag("rtt", path).stdout
        assert said in printed
        assert "capture at least 128 bytes of each (tcpdump -s 128)" in printed


def test_what_can_be_read_once_still_gets_a_reason(shared_data: Path) -> None:
    given = (shared_data / "malformed/tcpdump/arp-oobr.pcap").read_bytes()
    assert "2,282 packets not IP" in wirelag("rtt", "-", stdin=given).stdout


def answered(command: str, capture: Path, tunnels: bool = False) -> tuple[bool, str]:
    """Whether a command has an answer, and what it says if it has none."""
    try:
        result: DelayResult = getattr(api, command)(str(capture), tunnels=tunnels)
    except WirelagError as error:
        return False, str(error)
    entries = (*result.total.by_method(), *result.total.legs.values())
    return any(entry.report.samples for entry in entries), result.extra.get("hint", "")


@pytest.mark.every(256)
@pytest.mark.parametrize("capture", capture_paths("rtt", "hidden", "wild", "twopoint", "malformed"), ids=capture_name)
def test_what_a_hint_names_has_an_answer_and_info_knew_it(capture: Path) -> None:
    for tunnels in (False, True):
        found = {command: answered(command, capture, tunnels) for command in ("rtt", "response")}
        try:
            promised = api.info(str(capture), tunnels=tunnels).commands[:2]
        except WirelagError:
            return  # not a capture
        for verdict in promised:
            has, said = found[verdict["command"]]
            assert not verdict["sure"] or verdict["applies"] == has, verdict
            for other, inside in re.findall(r"try `wirelag (\w+)( --tunnels)?`", said):
                assert answered(other, capture, tunnels or bool(inside))[0], said
            if said.endswith(": --tunnels"):
                assert answered(verdict["command"], capture, tunnels=True)[0], said


# ---- the same hint, whatever else is asked ----

TUNNELLED = "127 packets are tunnelled: --tunnels"


@pytest.mark.every(3)
@pytest.mark.parametrize("command", ["rtt", "response"])
@pytest.mark.parametrize("asked", [("--sla", "p50<9ms"), ("--sla", "mean<9ms"), ("--above", "9ms"), ("--by", "flow")])
def test_a_hint_comes_whatever_is_asked(
    shared_data: Path, command: str, asked: tuple[str, ...], tmp_path: Path
) -> None:
    """It said that one direction gives only the mean, of which there was none, either."""
    page, code = tmp_path / "page.html", 3 if asked[0] == "--sla" else 0
    words = (command, shared_data / "hidden/nDPI/vxlan.pcap", *asked)
    assert TUNNELLED in wirelag(*words, "--html", page, code=code).stdout
    assert prose(TUNNELLED) in page.read_text()
    assert json.loads(wirelag(*words, "--format", "json", code=code).stdout)["hint"] == TUNNELLED
    for form in ("csv", "jsonl"):
        assert f"warning: no delays: {TUNNELLED}" in wirelag(*words, "--format", form, code=code).stderr
    if asked[0] in ("--sla", "--above"):
        assert "cannot say" in page.read_text()


def test_a_filter_and_a_server_inside_tunnels_are_named(shared_data: Path) -> None:
    capture = shared_data / "hidden/nDPI/vxlan.pcap"
    for command in ("rtt", "response"):
        said = wirelag(command, capture, "--port", "443").stdout
        assert "the filter leaves out all 127 packets, and passes some inside tunnels: --tunnels" in said
        assert "inside tunnels" not in wirelag(command, capture, "--port", "9").stdout
    said = wirelag("response", capture, "--server", "157.240.224.35:443", code=2).stderr
    assert said.endswith(f"no packet goes to 157.240.224.35:443; {TUNNELLED}\n")
    wirelag("response", capture, "--server", "157.240.224.35:443", "--tunnels")


def test_compare_says_why_a_report_is_empty(shared_data: Path, tmp_path: Path) -> None:
    capture, empty, full = shared_data / "hidden/nDPI/vxlan.pcap", tmp_path / "empty.json", tmp_path / "full.json"
    wirelag("rtt", capture, "-o", empty)
    wirelag("rtt", capture, "--tunnels", "-o", full)
    for one, other, side in ((empty, full, "before"), (full, empty, "after")):
        said = wirelag("compare", one, other).stdout
        assert said.startswith(f"cannot say: no delays {side}\nnote: the report {side} has no delays: {TUNNELLED}\n")


def test_two_points_of_which_one_is_tunnelled_name_it(tmp_path: Path) -> None:
    """Before and behind the start of a tunnel: the packets are the same inside."""
    frames = [ethernet(ipv4(tcp(bytes([n]) * 50, seq=n), 6, ident=n)) for n in range(1, 41)]
    outer = [ethernet(ipv4(udp(b"\x08" + bytes(7) + frame, (50_000, 4789)), 17, ident=7)) for frame in frames]
    plain, vxlan = tmp_path / "plain.pcap", tmp_path / "vxlan.pcap"
    plain.write_bytes(pcap([(1000 * n, frame, len(frame)) for n, frame in enumerate(frames)]))
    vxlan.write_bytes(pcap([(1000 * n + 250, frame, len(frame)) for n, frame in enumerate(outer)]))
    for words in (("oneway", plain, vxlan), ("flows", vxlan, "--upstream", plain, "--every", "2")):
        said = wirelag(*words, code=2).stderr
        assert f"either packets of {vxlan} are tunnelled: use --tunnels, or" in said
        assert "tunnelled" not in wirelag(*words, "--tunnels").stdout
