"""A real Prometheus reads the collector and `wirelag watch`: all expressions of dashboard and alerts have values."""

import contextlib
import gzip
import json
import math
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support import needs
from tests.support.agent_messages import Agent, pair
from tests.support.collector_process import RDA, Running, recent, send, settled
from tests.support.command import WIRELAG, wirelag
from tests.support.effort import ALONE
from tests.support.places import ROOT
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message

DEPLOY = ROOT / "deploy"
TOKEN = "a-token-that-is-long-enough"
# No error occurs here, so these have no value.
QUIET = {"wirelag_agent_clock_synchronised == 0"}
NEEDED = pytest.mark.skipif(
    bool(needs.absent("prometheus", "promtool", "openssl")),
    reason=needs.absent("prometheus", "promtool", "openssl"),
)


BOARDS = ("grafana.json", "grafana-watch.json")


def expressions(*boards: str) -> list[str]:
    """All expressions of these dashboards, or of all of them, for every segment and interface."""
    found = [
        target["expr"]
        for board in boards or BOARDS
        for panel in json.loads((DEPLOY / board).read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    return [re.sub(r"\$(segment|interface)", ".*", expr.replace("$__rate_interval", "10m")) for expr in found]


@pytest.mark.parametrize("board", BOARDS)
def test_the_dashboard_is_laid_out(board: str) -> None:
    """Panels have different numbers and places, and each uses the chosen Prometheus."""
    panels = json.loads((DEPLOY / board).read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


class Prometheus:
    """A running Prometheus; `ask` waits until an expression has a value."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self.at = f"127.0.0.1:{free_port()}"
        words = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        words += [f"--web.listen-address={self.at}", "--log.level=warn", "--enable-feature=native-histograms"]
        words += ["--web.enable-remote-write-receiver"]
        self._said = (folder / "prometheus.txt").open("wb")
        self._process = subprocess.Popen(["prometheus", *words], stdout=self._said, stderr=self._said)

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.at}/api/v1/{path}?{urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # it is starting
                    raise
                raise AssertionError(error.read().decode()) from None

    def ask(self, expr: str, wanted: Callable[[list[Any]], bool] = bool) -> list[Any]:
        found: list[Any] = []

        def answered() -> bool:
            assert self._process.poll() is None, Path(self._said.name).read_text()
            with contextlib.suppress(OSError):  # it does not answer yet
                found[:] = self.get("query", query=expr)["result"]
            return wanted(found)

        until(answered, lambda: f"what is wanted of {expr}: {found}", 0.1)
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._said.close()


def status(agent: Agent) -> Message:
    """The status that a real agent sends every ten seconds."""
    now_ns = time.time_ns()
    said = {"start_ns": now_ns, "end_ns": now_ns, "name": None, "class": None}
    said |= {"spooled": 0, "spooled_bytes": 0, "spool_dropped": 0, "lost_parts": 0}
    return Message("status", agent.point, None, Interval(now_ns, now_ns), agent.terms, agent.clock, records=(said,))


class Telling:
    """An agent that also sends its status."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self.point, self.segment = agent, agent.point, agent.segment
        self.answer = agent.answer

    def messages(self, first: int, count: int) -> list[Message]:
        return [*self._agent.messages(first, count), status(self._agent)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address where `wirelag watch` serves the metrics of a replayed capture."""
    folder = tmp_path_factory.mktemp("watch")
    wirelag("simulate", "--packets", "20000", "--seed", "1", "-o", folder / "capture.pcap")
    address = f"127.0.0.1:{free_port()}"
    words = ["watch", "-r", "capture.pcap", "rtt", "--by", "server", "--prometheus", address]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen([*WIRELAG, *words], cwd=folder, stdout=said, stderr=said)
    yield address
    process.terminate()
    assert process.wait(PATIENCE_S) == 0, (folder / "said").read_text()


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A collector with a token and a certificate, made as in the guide."""
    folder = tmp_path_factory.mktemp("collector")
    (folder / "token").write_text(TOKEN)
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *made.split(), *names], cwd=folder, check=True, capture_output=True)
    files = ("--token-file", str(folder / "token"), "--certificate", str(folder / "cert.pem"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
        with Running(folder, "--segment", "A>B", *files, "--key", str(folder / "key.pem"), token=TOKEN) as running:
            yield running


def told(running: Running, seed: int) -> None:
    path = recent(3, 1000, seed)
    agents = [Telling(agent) for agent in pair(path, replace(RDA, short=True, buckets=200))]
    send(running.url, agents, 4, settled(running, path, 3), TOKEN)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def prometheus(collector: Running, watched: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Set up by deploy/prometheus.yml, with other addresses and files."""
    folder = tmp_path_factory.mktemp("prometheus")
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    for group in rules["groups"]:
        group.pop("interval", None)
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
    settings["rule_files"] = [str(folder / "alerts.yml")]
    ours, watch = settings["scrape_configs"]
    ours["authorization"]["credentials_file"] = str(collector.store.parent / "token")
    ours["tls_config"]["ca_file"] = str(collector.store.parent / "cert.pem")
    ours["static_configs"][0]["targets"] = [collector.url.removeprefix("https://")]
    watch["static_configs"][0]["targets"] = [watched]
    told(collector, 1)
    running = Prometheus(folder, settings)
    try:
        running.ask("wirelag_packets_sent_total")
        told(collector, 2)  # rates need counters that have grown
        running.ask("wirelag_packets_sent_total", lambda found: bool(found) and float(found[0]["value"][1]) >= 6000)
        yield running
    finally:
        running.close()


@NEEDED
def test_dashboard_and_rules_have_values(
    prometheus: Prometheus, collector: Running, watched: str, tmp_path: Path
) -> None:
    """One test, since its processes take seconds to start."""
    up = prometheus.ask("up == 1", lambda found: len(found) == 2)
    assert {one["metric"]["job"] for one in up} == {"wirelag", "wirelag-watch"}
    prometheus.ask("histogram_quantile(0.5, rate(wirelag_round_trip_seconds_bucket[10m])) > 0")
    prometheus.ask("rate(wirelag_round_trip_group_seconds_count[10m])")
    for expr in sorted({*expressions()} - QUIET):
        for one in prometheus.ask(expr):
            assert one["value"][1] != "NaN" or "report_ready" in expr, expr
    _are_true(prometheus)
    _rules_work(prometheus)
    with urllib.request.urlopen(f"http://{watched}/metrics", timeout=PATIENCE_S) as answer:
        _are_well_formed(answer.read().decode())
    _are_well_formed(collector.get("/metrics")[1])
    _are_documented(collector.get("/metrics")[1])
    _metrics_are_sent(prometheus, tmp_path)


class Receiver(BaseHTTPRequestHandler):
    """Takes OpenTelemetry metrics; refuses those without the token."""

    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        allowed = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/v1/metrics"
        if allowed:
            self.bodies.append(gzip.decompress(body))
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _metrics_are_sent(prometheus: Prometheus, tmp_path: Path) -> None:
    """A real Prometheus receives the one, the official package reads the other."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever).start()
    (tmp_path / "secret").write_text(TOKEN)
    settings = tmp_path / "collector.toml"
    settings.write_text(
        f'segments = ["A>B"]\n[push]\nremote_write = "http://{prometheus.at}/api/v1/write"\nevery = "1s"\n'
        f'otlp = "http://127.0.0.1:{server.server_port}/v1/metrics"\nsecret_file = "{tmp_path / "secret"}"\n'
    )
    port = free_port()
    try:
        with Running(tmp_path, str(settings), port=port) as running:
            path = recent(3, 1000, 5)
            send(running.url, pair(path, RDA), 4, settled(running, path, 3))
            by = f'{{segment="A>B",job="wirelag",instance="{socket.gethostname()}:{port}"}}'
            prometheus.ask(f"wirelag_packets_sent_total{by} == 3000")
            counts = prometheus.ask(f"wirelag_one_way_delay_seconds_count{by}")
            (count,) = (float(one["value"][1]) for one in counts)
            Receiver.bodies.clear()
            until(lambda: bool(Receiver.bodies), "metrics by OpenTelemetry")
            assert running.counted()["otlp failed"] == 0
    finally:
        server.shutdown()
        server.server_close()
    (told,) = ExportMetricsServiceRequest.FromString(Receiver.bodies[0]).resource_metrics
    assert {one.key: one.value.string_value for one in told.resource.attributes}["service.name"] == "wirelag"
    metrics = {one.name: one for one in told.scope_metrics[0].metrics}
    (sent,) = metrics["wirelag_packets_sent_total"].sum.data_points
    assert (sent.as_double, sent.attributes[0].value.string_value) == (3000, "A>B")
    assert metrics["wirelag_packets_sent_total"].sum.is_monotonic
    (delays,) = metrics["wirelag_one_way_delay_seconds"].exponential_histogram.data_points
    assert delays.count == count == delays.zero_count + sum(delays.positive.bucket_counts)
    assert delays.sum / delays.count == pytest.approx(path.delays_ns[~path.lost].mean() / 1e9, rel=0.01)
    factor = 2 ** (2**-delays.scale)
    ends = [factor ** (delays.positive.offset + i + 1) for i in range(len(delays.positive.bucket_counts))]
    up_to = np.cumsum(delays.positive.bucket_counts) / delays.count
    for share in (0.2, 0.5, 0.8):
        true = float(np.quantile(path.delays_ns, share)) / 1e9
        assert ends[int(np.searchsorted(up_to, share))] == pytest.approx(true, rel=0.25)
    ready = metrics["wirelag_report_ready_seconds"].histogram.data_points[0]
    assert len(ready.bucket_counts) == len(ready.explicit_bounds) + 1
    assert sum(ready.bucket_counts) == ready.count


def _are_true(prometheus: Prometheus) -> None:
    """Simulated delays: 2.5 ms, and 2.5 ms more on average; 1% is lost."""
    starts = (
        "rate(wirelag_one_way_delay_seconds_sum",
        "histogram_quantile(0.99, sum by (segment",
        "rate(wirelag_packets_lost",
    )
    mean, p99, loss = (next(expr for expr in expressions() if expr.startswith(start)) for start in starts)
    assert float(prometheus.ask(mean)[0]["value"][1]) == pytest.approx(5e-3, rel=0.1)
    native = "histogram_quantile(0.99, rate(wirelag_one_way_delay_native_seconds[10m]))"
    true = 2.5e-3 * (1 + math.log(100))
    assert 0.8 * true <= float(prometheus.ask(p99)[0]["value"][1]) <= 1.3 * true
    assert float(prometheus.ask(native)[0]["value"][1]) == pytest.approx(true, rel=0.15)
    (histogram,) = prometheus.ask("increase(wirelag_one_way_delay_native_seconds[10m])")
    assert "histogram" in histogram
    assert float(prometheus.ask(loss)[0]["value"][1]) == pytest.approx(0.01, abs=0.006)


def _rules_work(prometheus: Prometheus) -> None:
    prometheus.ask("segment:wirelag_delay_p99_seconds:rate5m")
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == 24
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    usual = {"WirelagIntervalsUnseen"}  # intervals at the beginning and the end have one point
    if not ALONE:
        usual |= {"WirelagAgentSilent"}  # if this takes minutes, agents count as silent
    assert firing <= usual


def _are_well_formed(text: str) -> None:
    """Names and units follow Prometheus's rules."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _are_documented(text: str) -> None:
    page = (ROOT / "docs" / "reference" / "collect.md").read_text()
    page = re.sub(r"(\w+)\{(\w+(?:,\w+)+)\}(\w*)", _spread, page)
    wanted = {
        f"{family.name}{'_total' * (family.type == 'counter')}" for family in text_string_to_metric_families(text)
    }
    assert {name for name in wanted if name not in page} == set()


def _spread(found: re.Match[str]) -> str:
    """`a_{b,c}_d` as `a_b_d a_c_d`."""
    return " ".join(f"{found[1]}{middle}{found[3]}" for middle in found[2].split(","))


@pytest.mark.skipif(
    bool(needs.absent("prometheus-alertmanager", "amtool")), reason=needs.absent("prometheus-alertmanager", "amtool")
)
def test_a_silent_agent_is_one_alert(tmp_path: Path) -> None:
    """A real Alertmanager with the shipped rules: B is silent, and is an end of three segments; C>D has no results."""
    checked = subprocess.run(["amtool", "check-config", str(DEPLOY / "alertmanager.yml")], capture_output=True)
    assert checked.returncode == 0, checked.stdout
    at = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={DEPLOY / 'alertmanager.yml'}", f"--storage.path={tmp_path}", "--cluster.listen-address="]
    server = subprocess.Popen(
        ["prometheus-alertmanager", *words, f"--web.listen-address={at}"], stderr=subprocess.DEVNULL
    )
    segments = ("A>B", "B>A", "B>C")
    fired = [{"alertname": "WirelagAgentSilent", "point": "B"}, {"alertname": "WirelagAgentBehind", "point": "B"}]
    fired += [{"alertname": "WirelagAgentBehind", "point": "A"}, {"alertname": "WirelagNoResults", "segment": "C>D"}]
    for name in ("WirelagSegmentEndSilent", "WirelagNoResults", "WirelagIntervalsUnseen"):
        fired += [{"alertname": name, "segment": one} for one in segments]
    fired += [{"alertname": "WirelagSegmentLoss", "segment": "A>B"}]

    def there() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{at}/-/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
        return False

    def told() -> set[tuple[str, ...]]:
        with urllib.request.urlopen(f"http://{at}/api/v2/alerts?inhibited=false", timeout=PATIENCE_S) as answer:
            alerts = json.loads(answer.read())
        return {
            (one["labels"]["alertname"], one["labels"].get("segment") or one["labels"]["point"])
            for one in alerts
            if [to["name"] for to in one["receivers"]] == ["team"]
        }

    try:
        until(there, "an Alertmanager")
        body = json.dumps(
            [{"labels": one | {"severity": "none" if "EndSilent" in one["alertname"] else "warning"}} for one in fired]
        )
        request = urllib.request.Request(
            f"http://{at}/api/v2/alerts", body.encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()
        until(
            lambda: told() == {
                ("WirelagAgentSilent", "B"), ("WirelagAgentBehind", "A"), ("WirelagNoResults", "C>D"),
                ("WirelagSegmentLoss", "A>B"),
            },
            "one alert for one cause",
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


@NEEDED
def test_alerts_fire_when_they_should() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", str(ROOT / "tests" / "data" / "alerts.test.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_explained_and_tested() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    for page in ("docs/reference/operations.md", "tests/data/alerts.test.yml"):
        text = (ROOT / page).read_text()
        assert {name for name in names if name not in text} == set(), page
