"""`wirelag response` and `watch response` choose a method for each server: no flow changes another server's figures."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

import wirelag as api
from lab.clients import Load, Task
from lab.network import SERVICE_ADDRESS, Network
from lab.servers import Httpd, Udpd
from tests.support import needs
from tests.support.client_loops import MS, Loop, constant
from tests.support.command import wirelag
from tests.support.in_lab import IN_LAB
from tests.support.places import SCHEMAS
from tests.support.response_json import asked, by_key
from tests.support.two_way_captures import HTTP, STREAM, exchanges, from_client_only, stream, write
from tests.support.watching import Watching
from wirelag.capture.live import Replay
from wirelag.measure.groups import Groups
from wirelag.measure.live import Responses, watch
from wirelag.measure.recent import Recent
from wirelag.measure.response_heard import GROUPS, ResponseSettings
from wirelag.packets.intervals import events

WATCHED = jsonschema.Draft202012Validator(json.loads((SCHEMAS / "watch.json").read_text(encoding="utf-8")))
ZOOM = "hidden/debian-ndpi-4.2/zoom2.pcap.gz"
FIGURES = ("samples", "mean", "std", "min", "max", "quantiles", "ci95", "server", "network", "exchanges", "method")
SERVICE, MEDIA = f"10.1.0.1:{HTTP}", f"10.1.0.1:{STREAM}"


def figures(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in FIGURES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("method")


@pytest.fixture(scope="module")
def beside(folder: Path) -> Path:
    """An HTTP server, each of whose responses takes 20 ms, and a stream of datagrams in both directions."""
    web = [exchanges(40_000 + i, 60, 20) for i in range(6)]
    return write(folder / "beside.pcap", *web, stream(50_000, 4), stream(50_001, 4, seed=2))


@pytest.fixture(scope="module")
def halves(folder: Path) -> Path:
    """A server with connections in both directions (20 ms), and with some of which only the client is seen (60 ms)."""
    whole = [exchanges(40_000 + i, 60, 20) for i in range(6)]
    half = [from_client_only(Loop(constant(60 * MS), rtt_ns=100_000, seconds=4), i, 41_000 + i) for i in range(5)]
    return write(folder / "halves.pcap", *whole, *half)


# ---- captures ----


def test_a_stream_changes_no_other_server_s_figures(shared_data: Path) -> None:
    found, alone = asked(shared_data / ZOOM), asked(shared_data / ZOOM, "--port", "443")
    groups = by_key(found)
    assert figures(groups["144.195.73.154:443"]) == figures(by_key(alone)["144.195.73.154:443"])
    assert figures(found) == figures(alone)  # the total is over paired exchanges
    assert found["mean"] == pytest.approx(0.42, abs=0.001)
    media = groups["144.195.73.154:8801"]
    assert (media["estimator"], media["mean"], media["method"]) == ("pirate", None, ["blind"])
    assert found["estimated"]["abstained"] == media["abstained"]
    text = wirelag("response", shared_data / ZOOM).stdout
    assert "22 exchanges paired; 0 of 142 epochs estimated (144.195.73.154:8801)" in text


def test_a_server_beside_a_stream_of_datagrams(beside: Path) -> None:
    found, alone = asked(beside), asked(beside, "--port", HTTP)
    assert (found["estimator"], found["samples"], found["mean"]) == ("pairs", 360, pytest.approx(0.02))
    assert figures(by_key(found)[SERVICE]) == figures(by_key(alone)[SERVICE])
    assert "estimated" not in alone
    assert by_key(found)[MEDIA]["estimator"] == "pirate"
    assert "estimated" not in by_key(found)[SERVICE]


def test_flows_of_one_direction_beside_those_of_both(halves: Path) -> None:
    """Each kind has its own row of the same server, and the figures that it has alone."""
    found = asked(halves)
    group = by_key(found)[SERVICE]
    assert (group["samples"], group["mean"], group["method"]) == (360, pytest.approx(0.02), ["pairs"])
    estimated = group["estimated"]
    assert (estimated["mean"], estimated["method"]) == (pytest.approx(0.06, rel=0.05), ["auto"])
    for by in ("server", "client"):
        (one,) = asked(halves, "--by", by)["groups"]
        assert figures(one) == figures(group)
        assert one["estimated"] == estimated
    flows = asked(halves, "--by", "flow")["groups"]
    assert sorted(flow["estimator"] for flow in flows) == ["pairs"] * 6 + ["pirate"] * 5
    assert all("estimated" not in flow for flow in flows)
    parts = asked(halves, "--interval", "1s")["intervals"]
    assert sum(part["samples"] for part in parts if part["estimator"] == "pairs") == 360
    beside = [part.get("estimated", part) for part in parts]
    assert sum(part["samples"] for part in beside if part["estimator"] == "pirate") == estimated["samples"]


def test_a_method_that_is_asked_for_applies_to_all(halves: Path, beside: Path) -> None:
    for capture in (halves, beside):
        for method, estimator in (("pairs", "pairs"), ("auto", "pirate")):
            found = asked(capture, "--method", method)
            assert {one["estimator"] for one in (found, *found["groups"])} == {estimator}
            assert "estimated" not in found


def test_a_server_named_with_a_port_is_that_port_alone(beside: Path) -> None:
    found = asked(beside, "--server", SERVICE)
    assert list(by_key(found)) == [SERVICE]
    assert figures(found) == figures(asked(beside, "--port", HTTP))
    others = asked(beside, "--port", STREAM)["clients"]
    assert found["clients"]["not_used"] == found["packets"] - 6 * (3 + 3 * 60)
    assert others["packets"] > 100
    said = wirelag("response", beside, "--server", SERVICE).stdout
    left = f"{found['clients']['not_used']:,} packets neither to nor from the named servers were left out (--server)"
    assert left in said
    assert set(by_key(asked(beside, "--server", "10.1.0.1"))) == {SERVICE, MEDIA}


# ---- every form ----


def test_rows_name_their_method(halves: Path, folder: Path) -> None:
    found = asked(halves)
    rows = list(csv.DictReader(io.StringIO(wirelag("response", halves, "--format", "csv").stdout)))
    said = [(row["scope"], row["key"], row["method"], int(row["samples"])) for row in rows]
    counts = found["samples"], found["estimated"]["samples"]
    assert said == [
        (scope, key, method, count)
        for scope, key in (("all", "all"), ("group", SERVICE))
        for method, count in zip(("pairs", "auto"), counts, strict=True)
    ]
    wirelag("response", halves, "--format", "parquet", "-o", folder / "rows.parquet")
    assert pl.read_parquet(folder / "rows.parquet")["method"].to_list() == ["pairs", "auto"] * 2
    table = [line.split() for line in wirelag("response", halves).stdout.splitlines()]
    assert [line[2] for line in table if line[0] == SERVICE] == ["pairs", "auto"]
    page = folder / "page.html"
    wirelag("response", halves, "--html", page, "-o", folder / "out.json")
    text = page.read_text(encoding="utf-8")
    assert "Estimated from packets of clients" in text
    assert re.search(r"<td>auto</td>", text)
    assert re.search(r"<td>pairs</td>", text)


def test_python_gives_the_same(halves: Path) -> None:
    assert api.response(str(halves)).to_dict() == asked(halves)
    assert api.response(str(halves), sla="p99<1s").holds is False


# ---- agreements ----


def test_quantiles_are_not_known_to_hold_for_servers_that_cannot_be_asked(halves: Path) -> None:
    found = asked(halves, "--sla", "p99<500ms", "--above", "10ms", code=3)
    assert found["sla"] == [
        {"question": "p99<500ms", "holds": None, "value": pytest.approx(0.02), "not_asked": [SERVICE]}
    ]
    assert found["above"][0] | {"ci95": None} == {"limit": 0.01, "share": 1.0, "ci95": None, "not_asked": [SERVICE]}
    assert asked(halves, "--sla", "p99<10ms", code=3)["sla"][0]["holds"] is False
    said = wirelag("response", halves, "--sla", "p99<500ms", code=3).stdout
    assert f"unknown for 1 server ({SERVICE}), estimated by mean alone" in said
    assert asked(halves, "--sla", "p99<500ms", "--method", "pairs")["sla"][0]["holds"] is True


def test_means_must_hold_for_both(halves: Path, beside: Path) -> None:
    (holds,) = asked(halves, "--sla", "mean<100ms")["sla"]
    assert (holds["holds"], holds["value"]) == (True, pytest.approx(0.06, rel=0.05))
    assert asked(halves, "--sla", "mean<40ms", code=3)["sla"][0]["holds"] is False
    said = wirelag("response", beside, "--sla", "mean<40ms").stdout
    assert re.search(rf"mean<40ms: holds, .*unknown for 1 server \({MEDIA}\) without an estimate", said)


# ---- live ----


def replayed(capture: Path, *words: str) -> list[dict[str, Any]]:
    ran = wirelag("watch", "-r", capture, "--speed", "max", "response", *words, "--format", "jsonl")
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    for line in lines:
        WATCHED.validate(line)
    return lines


@pytest.mark.parametrize("interval", ["500ms", "1s"])
def test_live_a_server_beside_a_stream_of_datagrams(beside: Path, interval: str) -> None:
    *parts, final = replayed(beside, "--interval", interval, "--by", "server")
    web = by_key(final)[SERVICE]
    expected = by_key(asked(beside))[SERVICE]
    assert (web["samples"], web["mean"], web["method"]) == (360, pytest.approx(expected["mean"]), ["pairs"])
    assert final["samples"] == 360
    assert by_key(final)[MEDIA].get("estimated", by_key(final)[MEDIA])["method"] == ["blind"]
    assert all(by_key(part)[SERVICE]["estimator"] == "pairs" for part in parts if SERVICE in by_key(part))
    alone = replayed(beside, "--interval", interval, "--by", "server", "--server", SERVICE)[-1]
    assert list(by_key(alone)) == [SERVICE]
    assert alone["samples"] == 360


def test_live_a_stream_keeps_its_direction(folder: Path) -> None:
    """Ports do not show who the client is: it is who was heard first, in every interval."""
    capture = write(folder / "ports.pcap", exchanges(40_000, 60, 20), stream(50_000, 4, server_port=45_000))
    expected = by_key(asked(capture))
    final = replayed(capture, "--interval", "500ms", "--by", "server")[-1]
    assert by_key(final).keys() == expected.keys()
    assert (final["samples"], len(expected)) == (60, 2)


def test_live_flows_of_one_direction_beside_those_of_both(halves: Path) -> None:
    final, expected = replayed(halves, "--interval", "1s", "--by", "server")[-1], asked(halves)
    (group,) = final["groups"]
    for one, same in ((final, expected), (group, by_key(expected)[SERVICE])):
        assert (one["samples"], one["mean"]) == (360, pytest.approx(same["mean"]))
        assert one["estimated"]["samples"] == same["estimated"]["samples"]
        assert one["estimated"]["mean"] == pytest.approx(same["estimated"]["mean"])
    text = wirelag("watch", "-r", halves, "--speed", "max", "response", "--by", "server").stdout
    assert re.search(rf"{SERVICE} +360 +pairs", text)
    assert re.search(rf"{SERVICE} +[\d,]+ +auto", text)
    assert "360 exchanges paired; " in text


def test_the_last_minute_keeps_both_apart(halves: Path) -> None:
    measure = Responses(ResponseSettings(groups=Groups("server", GROUPS)))
    recent = Recent(measure, "server")
    for interval, packets in events(api.read(str(halves)), 10**9):
        if packets is None:
            recent.add(measure.cut(interval))
        else:
            measure.observe(packets)
    said = [(entry.key, *entry.report.details["method"]) for entry in recent.entries()]
    assert said == [(key, method) for key in ("now", "last minute", "last 10 minutes") for method in ("pairs", "auto")]
    (group,) = recent.slowest()
    assert [one.report.mean for one in group.by_method()] == [pytest.approx(0.02), pytest.approx(0.06, rel=0.05)]


def test_metrics_name_the_method_of_a_group(halves: Path) -> None:
    pytest.importorskip("prometheus_client", reason=needs.LIVE)
    from wirelag.render.watch_metrics import metrics

    measure, source = Responses(ResponseSettings(groups=Groups("server", GROUPS))), Replay([str(halves)], speed=None)
    for _ in watch(source, measure, 10**9):
        pass
    measure.finish()
    counts = {
        (sample.name, sample.labels.get("group"), sample.labels.get("method")): sample.value
        for metric in metrics(source, measure)
        for sample in metric.samples
    }
    report = measure.estimated()
    assert report is not None
    name = "wirelag_response_group_seconds_count"
    assert counts[name, SERVICE, "pairs"] == counts["wirelag_response_seconds_count", None, None] == 360
    assert counts[name, SERVICE, "estimated"] == report.samples > 100
    assert counts["wirelag_response_estimated_seconds_count", None, None] == report.samples


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("method") as network:
        yield network


@IN_LAB
def test_live_at_an_interface(network: Network, tmp_path: Path) -> None:
    """An HTTP server, and datagrams whose client does not wait, at the client's interface."""
    options = ("--format", "jsonl", "--interval", "500ms", "--by", "server")
    watching = Watching(network, "client", "eth0", "response", *options)
    watching.line()  # it listens
    web, media = (tmp_path / name for name in ("web", "media"))
    for place in (web, media):
        place.mkdir()
    Httpd(service="constant:5000").start(network, web, 1)
    Udpd(service="exponential:20000").start(network, media, 1)
    clients = (
        Load(pattern="open", rate=200, format="udp").start(network, Task(SERVICE_ADDRESS, Udpd.port, 2, 2, 1, media)),
        Load(in_flight=1).start(network, Task(SERVICE_ADDRESS, Httpd.port, 8, 2, 1, web)),
    )
    for client in clients:
        client.finish()
    lines, _ = watching.end()
    groups = by_key(lines[-1])
    exact, stream = groups[f"{SERVICE_ADDRESS}:{Httpd.port}"], groups[f"{SERVICE_ADDRESS}:{Udpd.port}"]
    assert exact["estimator"] == "pairs"
    assert exact["samples"] > 100
    assert exact["mean"] >= 0.005
    assert stream.get("estimated", stream)["estimator"] == "pirate"
