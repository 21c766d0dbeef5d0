"""What stands beside figures, and what was decided before: legs, counts, columns, headings, files of `cut`."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from tests.support.command import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.measure.rtt import rtt
from wirelag.sim import Scenario, simulate
from wirelag.units import format_duration

# ---- what stands beside a figure ----


def test_the_slowest_of_both_legs_name_their_leg(shared_data: Path) -> None:
    """They are single delays, each of one leg; the figures of both legs are sums, and JSON has one of these."""
    capture = shared_data / "rtt/zeek/ssh.pcap.gz"
    for leg in ("server", "client", "both", "mixed"):
        words = ("rtt", capture, "--leg", leg, "--top", "60")
        said = json.loads(wirelag(*words, "--format", "json").stdout)
        found = [one["leg"] for one in said["slowest"]]
        assert set(found) == ({"server", "client"} if leg in ("both", "mixed") else {leg})
        delays = [one["delay"] for one in said["slowest"]]
        assert delays[0] == pytest.approx(max(said["legs"][one]["max"] for one in set(found)))
        assert "both_legs" not in said
        text = wirelag(*words).stdout
        head = "slowest single delays of either leg" if leg in ("both", "mixed") else f"slowest to the {leg}"
        assert f"{head} (UTC)" in text
        of = {"both": "of both legs", "mixed": "of both legs mixed"}.get(leg, "to the server")
        assert f"by server, largest p50 {of} first" in wirelag(*words, "--by", "server").stdout
        places = re.findall(r"^ +[\d.]+ \w+  to the (\w+)  \d{4}-", text, re.MULTILINE)
        assert places == (found if leg in ("both", "mixed") else [])


def test_both_legs_over_time_are_of_the_same_packets(shared_data: Path) -> None:
    """A row had the sums of the next one: both legs where neither had a delay."""
    capture = shared_data / "rtt/PcapPlusPlus/example.pcap.gz"
    rows = json.loads(wirelag("rtt", capture, "--leg", "both", "--interval", "1s", "--format", "json").stdout)[
        "intervals"
    ]
    assert sum(row["samples"] > 0 for row in rows) > 3
    assert all(set(row["legs"]) == {"server", "client"} for row in rows if row["samples"])


def test_the_slowest_are_of_the_leg_that_groups_are_ranked_by(shared_data: Path, tmp_path: Path) -> None:
    capture = shared_data / "rtt/zeek/ssh.pcap.gz"
    for by, leg in (("client", "client"), ("server", "server"), ("port", "server")):
        words = ("rtt", capture, "--by", by)
        said = json.loads(wirelag(*words, "--format", "json").stdout)
        assert {one["leg"] for one in said["slowest"]} == {leg}
        assert said["slowest"][0]["delay"] == pytest.approx(said["legs"][leg]["max"])
        text = wirelag(*words, "--html", tmp_path / "page.html").stdout
        assert f"by {by}, largest p50 to the {leg} first" in text
        assert f"slowest to the {leg} (UTC)" in text
        section = (tmp_path / "page.html").read_text().split("The slowest</h2>")[1].split("</section>")[0]
        assert set(re.findall(r"to the (\w+)<", section)) == {leg}


def test_a_narrow_interval_has_digits_enough(shared_data: Path, tmp_path: Path) -> None:
    """12.5 ms, 12.5 ms to 12.5 ms hid the interval."""
    pair = [shared_data / f"twopoint/mptcpanalyzer-0.3.2/node{i}filtered.pcapng.gz" for i in (0, 1)]
    words = ("oneway", *pair, "--estimator", "rda", "--html", tmp_path / "page.html")
    low, high = json.loads(wirelag(*words, "--format", "json").stdout)["ci95"]["mean"]
    assert high - low < 0.0001
    text = wirelag(*words).stdout
    row = next(line for line in text.splitlines() if line.startswith("all "))
    told = re.search(r"([\d.]+) ms, ([\d.]+) to ([\d.]+) ms", row)
    assert told is not None
    assert 0 <= float(told[2]) - low * 1e3 + 0.001 <= 0.002
    assert float(told[2]) < float(told[1]) < float(told[3])
    assert f"({told[2]} to {told[3]} ms)" in (tmp_path / "page.html").read_text()
    narrow = wirelag(*words, environment={"COLUMNS": "80"}).stdout
    assert told[0] in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_verdict_has_digits_enough_to_tell_its_value_from_the_bound(shared_data: Path) -> None:
    """p99<200ms: holds, it is 200 ms."""
    capture = shared_data / "rtt/PcapPlusPlus/example.pcap.gz"
    asked = ("server.p50<53.6ms", "server.p99<200ms", "server.above(100ms)<29.53%", "server.max<1s")
    told = wirelag("rtt", capture, *(word for one in asked for word in ("--sla", one)), code=3).stdout
    values = re.findall(r"^server\.\S+: (holds|does not hold).* it is (\S+)", told, re.MULTILINE)
    assert values == [("does not hold", "53.608"), ("holds", "199.85"), ("does not hold", "29.532%"), ("holds", "221")]


def test_columns_are_as_wide_as_their_widest_interval(shared_data: Path) -> None:
    pair = [shared_data / f"twopoint/mptcpanalyzer-0.3.2/node{i}filtered.pcapng.gz" for i in (0, 1)]
    lines = wirelag("oneway", *pair, "--by", "flow", "--interval", "1s").stdout.splitlines()
    axis = re.search(r"[\d.]+ \w+ to [\d.]+ \w+$", lines[0])
    assert axis is not None
    rows = [line for line in lines if re.search(r" \d+ \(\d", line) and " no packet " not in line]
    assert any(re.search(r"ms, \d+\.\d{3,} to ", line) for line in rows)
    assert all(re.fullmatch(r"[ ▁▂▃▄▅▆▇█]+", line[axis.start() :]) for line in rows)


@pytest.mark.parametrize("words", [("rtt", "--by", "server"), ("response", "--by", "flow", "--interval", "1s")])
def test_packets_are_those_of_the_row_or_not_told(shared_data: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    """A group's packets are not counted; those of the whole are one number in every form."""
    command, *rest = words
    capture = shared_data / "rtt/redart/long_cap_2.pcap.gz"
    said = json.loads(wirelag(command, capture, *rest, "--format", "json").stdout)
    assert said["groups"]
    assert not any("packets" in group or "packets" in group.get("estimated", {}) for group in said["groups"])
    wirelag(command, capture, *rest, "-o", tmp_path / "all.csv")
    rows = pl.read_csv(tmp_path / "all.csv", infer_schema_length=None)
    assert set(rows.filter(scope="all")["packets"]) == {said["packets"]}
    assert rows.filter(scope="group")["packets"].null_count() == len(rows.filter(scope="group")) > 0


@pytest.mark.every(8)
@pytest.mark.parametrize("sort", ["p90", "p95", "p99.9", "max", "std"])
@pytest.mark.parametrize("command", ["rtt", "response", "oneway"])
def test_the_figure_that_groups_are_in_order_of_has_a_column(shared_data: Path, command: str, sort: str) -> None:
    pair = [shared_data / f"twopoint/mptcpanalyzer-0.3.2/{side}_1_tcp_only.pcap.gz" for side in ("client", "server")]
    captures = pair if command == "oneway" else [shared_data / "rtt/zeek/ssh.pcap.gz"]
    words = (command, *captures, "--by", "flow", "--sort", sort, "--top", "3")
    lines = wirelag(*words).stdout.splitlines()
    name = "deviation" if (command, sort) == ("oneway", "std") else sort
    end = lines[0].index(f" {name} ") + len(name) + 1
    groups = json.loads(wirelag(*words, "--format", "json").stdout)["groups"]
    shown = next(i for i, line in enumerate(lines) if line.startswith("by flow, largest"))
    cell = lines[shown + 1][:end].split()[-2:]
    first = groups[0]["quantiles"].get(f"{float(sort[1:]) / 100:g}") if sort[0] == "p" else groups[0][sort]
    assert " ".join(cell) == format_duration(first * 1e9)
    narrow = wirelag(*words, environment={"COLUMNS": "90"}).stdout
    assert name in narrow.split("\n")[0]


def test_a_heading_names_no_order_where_there_is_none(shared_data: Path) -> None:
    capture = shared_data / "wild/idaholab__Malcolm-Test-Artifacts__pcap__protocols__Telnet.pcap.gz"
    found = re.findall(r"^by server.*", wirelag("response", capture).stdout, re.MULTILINE)
    assert found == ["by server, largest mean first, those with few samples last", "by server, none has a mean"]


def test_a_server_has_the_same_figures_as_a_group_and_alone(shared_data: Path) -> None:
    folder = shared_data / "wild"
    for name, server in (("Telnet", "192.168.0.1:23"), ("OPCUA-Binary", None)):
        capture = folder / f"idaholab__Malcolm-Test-Artifacts__pcap__protocols__{name}.pcap.gz"
        groups = json.loads(wirelag("response", capture, "--format", "json").stdout)["groups"]
        group = next(one for one in groups if server in (None, one["key"]) and one["ci95"])
        alone = json.loads(wirelag("response", capture, "--server", group["key"], "--format", "json").stdout)
        for one in (alone, *alone["groups"]):
            assert {field: one[field] for field in group if field not in ("key", "counts", "skipped")} == {
                field: group[field] for field in group if field not in ("key", "counts", "skipped")
            }


@pytest.mark.parametrize(
    ("capture", "why"),
    [
        ("hidden/wireshark/wireguard-ping-tcp.pcap", "no request was seen together with its response (22 WireGuard"),
        ("hidden/nfstream/6in4tunnel.pcap", "(127 packets are tunnelled: --tunnels)"),
        ("hidden/PcapPlusPlus/4KHttpRequests.pcap.gz", "responses do not pass here"),
    ],
)
def test_exchanges_say_why_there_are_none(shared_data: Path, tmp_path: Path, capture: str, why: str) -> None:
    rows = tmp_path / "rows.csv"
    said = wirelag("response", shared_data / capture, "--exchanges", rows)
    assert why in said.stderr
    assert ("do not pass" in said.stderr) == ("do not pass" in why)
    assert said.stdout.startswith("  ")  # the report is there all the same
    (header,) = rows.read_text().splitlines()
    assert header.startswith("begin_ns,request_ns,")


def test_info_says_what_there_is_inside_tunnels(shared_data: Path) -> None:
    capture = shared_data / "hidden/nDPI/vxlan.pcap"
    outside, inside = (
        {
            one["command"]: one
            for one in json.loads(wirelag("info", capture, *more, "--format", "json").stdout)["commands"]
        }
        for more in ((), ("--tunnels",))
    )
    for command in ("rtt", "response"):
        assert inside[command]["applies"]
        assert not outside[command]["applies"]
        why = f"127 packets are tunnelled; with --tunnels: yes, {inside[command]['why']}"
        assert outside[command]["why"] == why
        assert why in wirelag("info", capture).stdout


def test_json_says_what_did_not_fit(tmp_path: Path) -> None:
    """The table had a note; JSON had none, nor did either say that counts of a class are scaled."""
    write_simulation(simulate(Scenario(packets=20_000, seed=8, points=2)), tmp_path / "a.pcap", tmp_path / "b.pcap")
    words = ("oneway", tmp_path / "a.pcap", tmp_path / "b.pcap", "--by", "flow", "--group-memory", "1MiB")
    said = json.loads(wirelag(*words, "--memory", "128KiB", "--format", "json").stdout)
    text = wirelag(*words, "--memory", "128KiB").stdout.splitlines()
    assert said["groups"][-1]["key"] == "other"
    assert said["groups"][-1]["share"] < 1
    assert any(note.startswith("other: ") for note in said["notes"])
    assert any(note.startswith("counts of 1 group (other) are scaled") for note in said["notes"])
    assert set(said["notes"]) <= set(text)
    assert "scaled" not in wirelag(*words).stdout


def test_a_flow_that_lost_everything_shows_its_loss(shared_data: Path) -> None:
    """It said only that one point saw no packet."""
    pair = [shared_data / f"twopoint/mptcpanalyzer-0.3.2/node{i}filtered.pcapng.gz" for i in (0, 1)]
    told = wirelag("oneway", *pair, "--by", "flow").stdout
    assert re.search(r"^10.1.1.1:43376 > 10.2.0.1:5001 +0 +1 \(100.00%\)  no packet was seen downstream$", told, re.M)
    nothing = json.loads(wirelag("oneway", *pair, "--host", "192.0.2.9", "--format", "json").stdout)
    assert (nothing["sent"], nothing["received"]) == (0, 0)  # the filter left none
    assert nothing["packets"] == 11_756 + 11_752


def test_pings_have_no_port(shared_data: Path) -> None:
    """They were those of port 0."""
    told = wirelag("rtt", shared_data / "hidden/spindump/trace_ping_bandwidthperiods1.pcap", "--by", "port").stdout
    assert re.search(r"^no port +to the server +\d", told, re.MULTILINE)


def test_the_total_of_watch_does_not_depend_on_the_interval(shared_data: Path) -> None:
    """Which servers are paired is judged each second; other intervals are judged where they end, and it is said."""
    capture = shared_data / "wild/ntop__nDPI__tests__cfgs__default__pcap__reddit.pcap.gz"
    words = ("watch", "response", "-r", capture, "--speed", "max", "--format", "jsonl", "--by", "server", "--interval")
    totals = [json.loads(wirelag(*words, length).stdout.splitlines()[-1]) for length in ("1s", "7s", "1h")]
    assert totals[0] == totals[1] == totals[2]
    assert not totals[0]["notes"]
    odd = wirelag(*words[:6], "--interval", "1500ms").stdout
    assert "another --interval may give another total" in odd


def test_the_heading_says_that_groups_with_few_samples_come_last(shared_data: Path) -> None:
    capture = shared_data / "rtt/PcapPlusPlus/example.pcap.gz"
    for command, figure in (("rtt", "p50 to the server"), ("response", "mean")):
        said = wirelag(command, capture, "--by", "server").stdout
        assert f"by server, largest {figure} first, those with few samples last" in said.splitlines()
        assert "groups come after the others, since they have fewer than 6 samples" in said
    said = wirelag("rtt", capture, "--by", "server", "--sort", "max").stdout
    assert "by server, largest max to the server first" in said.splitlines()


def test_how_many_exchanges_a_figure_is_of_stands_beside_it(shared_data: Path, tmp_path: Path) -> None:
    """p99 of 22 exchanges, where there were 42: the others overlap."""
    capture = shared_data / "hidden/debian-ndpi-4.2/zoom2.pcap.gz"
    page = tmp_path / "page.html"
    said = wirelag("response", capture, "--server", "0.0.0.0/0:443", "--sla", "p99<2s", "--html", page).stdout
    assert [line.split()[1:4] for line in said.splitlines() if "  pairs  " in line] == [["22", "of", "42"]] * 2
    assert "not judged: 20 of 42 exchanges, without a time of their own" in said.splitlines()
    assert "Half of 22 responses (of 42 exchanges) took at most" in page.read_text()
    whole = wirelag("response", shared_data / "rtt/zeek/1000-requests-one-dropped-response.pcap.gz").stdout
    assert "not judged" not in whole


def test_times_that_are_too_coarse_are_told(shared_data: Path) -> None:
    """A program took the time in steps of 10 ms: most responses have the time of their request."""
    capture = shared_data / "hidden/mercury/geneve.pcap.gz"
    said = json.loads(wirelag("rtt", capture, "--tunnels", "--format", "json").stdout)
    text = wirelag("rtt", capture, "--tunnels").stdout
    for leg, share in (("server", 68), ("client", 68)):
        assert said["legs"][leg]["quantiles"]["0.5"] == 0
        assert f"{share}% of delays to the {leg} are 0 ns, since request and response have the same time" in text
    assert "0 ns, since" not in wirelag("rtt", shared_data / "rtt/zeek/ssh.pcap.gz").stdout
    text = wirelag("rtt", shared_data / "rtt/tcptrace/zwnd.dmp.gz").stdout  # 32 of 8,680 took 10 to 80 ms
    assert "over 99% of delays to the server are 0 ns" in text
    assert "all delays to the client are 0 ns" in text
    assert "1 response not timed, since its request was sent again" in text


# ---- files of synopses ----


@pytest.fixture(scope="module")
def cut_files(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> list[Path]:
    folder = tmp_path_factory.mktemp("cut")
    sides = [shared_data / f"twopoint/mptcpanalyzer-0.3.2/{side}_1_tcp_only.pcap.gz" for side in ("client", "server")]
    sides.append(folder / "copy.pcap.gz")
    sides[2].write_bytes(sides[0].read_bytes())
    for name, side in zip("abc", sides, strict=True):
        wirelag("cut", side, "--direction", "0.0.0.0/0>0.0.0.0/0", "--interval", "10s", "-o", folder / f"{name}.syn")
    return [folder / f"{name}.syn" for name in "abc"]


def test_cut_files_of_one_capture_are_not_two_points(cut_files: list[Path]) -> None:
    up, down, copy = cut_files
    assert "is it one capture twice?" in wirelag("oneway", up, copy, code=2).stderr
    assert "is it one capture twice?" in wirelag("oneway", up, up, code=2).stderr
    assert wirelag("oneway", up, copy, "--clock", "none").stdout
    assert "one capture twice" not in wirelag("oneway", up, down, code=None).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--interval 1s", "--interval: was decided by `wirelag cut`: these files have intervals of 10 s; leave it out"),
        ("--by flow", "--by: was decided by `wirelag cut`: these files have no classes"),
        ("--estimator rda", "--estimator: was decided by `wirelag cut`: these files are of lda"),
        ("--port 80", "--filter: was decided by `wirelag cut`: these files have packets of: all hosts and ports"),
        ("--direction 10.0.0.0/8>0.0.0.0/0", "--direction: was decided by `wirelag cut`"),
        ("--tunnels", "--tunnels: was decided by `wirelag cut`: these files have the outer packets"),
        ("--interval 10s --estimator lda --direction 0.0.0.0/0>0.0.0.0/0", ""),
    ],
)
def test_what_was_decided_when_files_were_cut_is_not_asked_again(cut_files: list[Path], words: str, said: str) -> None:
    ran = wirelag("oneway", cut_files[0], cut_files[2], "--clock", "none", *words.split(), code=2 if said else 0)
    assert said in ran.stderr


def test_times_that_go_back_matter_only_with_intervals(tmp_path: Path) -> None:
    simulation = simulate(Scenario(packets=4_000, seed=6, points=2))
    write_simulation(simulation, tmp_path / "sent.pcap", tmp_path / "down.pcap")
    with (tmp_path / "sent.pcap").open("rb") as file:
        head, records = file.read(24), []
        while record := file.read(16):
            records.append(record + file.read(int.from_bytes(record[8:12], "little")))
    disordered = [record for pair in zip(records[1::2], records[::2], strict=False) for record in pair]
    (tmp_path / "up.pcap").write_bytes(head + b"".join(disordered))
    words = ("oneway", tmp_path / "up.pcap", tmp_path / "down.pcap")
    assert "go back" not in wirelag(*words).stdout
    assert "go back: with --interval packets fall into the wrong one" in wirelag(*words, "--interval", "1s").stdout


def test_flows_of_pings_have_names_of_their_own(shared_data: Path) -> None:
    """Two pings between the same hosts are two flows: their identifiers tell them apart."""
    capture = shared_data / "hidden/spindump/trace_ping_bandwidthperiods1.pcap"
    said = json.loads(wirelag("rtt", capture, "--by", "flow", "--format", "json").stdout)
    assert {group["key"]: group["samples"] for group in said["groups"]} == {
        "10.0.1.36 > 212.16.100.1 icmp 2124": 20,
        "10.0.1.36 > 212.16.100.1 icmp 2636": 50,
    }


def test_an_interval_that_bounds_a_mean_from_neither_side_is_not_shown(shared_data: Path, tmp_path: Path) -> None:
    """25.9 ms, at least 0 ns."""
    (capture,) = (shared_data / "wild").glob("*ja4__pcap__ssh2.pcapng.gz")
    page = tmp_path / "page.html"
    said = wirelag("rtt", capture, "--html", page).stdout
    low, high = json.loads(wirelag("rtt", capture, "--format", "json").stdout)["legs"]["client"]["ci95"]["mean"]
    assert low == 0 < high
    assert "at least 0" not in said + page.read_text()
    assert "the mean to the client has no 95% interval: delays change so slowly that what was seen bounds it" in said


def test_an_interval_that_ends_beyond_all_delays_is_open(shared_data: Path) -> None:
    """80 round trips, of which the longest took 80 ms."""
    result = rtt(shared_data / "wild" / "nfstream__nfstream__tests__pcaps__wa_voice.pcap.gz")
    low, high = result.report.ci95["mean"]
    assert result.report.max is not None
    assert high > result.report.max > low
    assert f"{high * 1e3:.0f} ms" not in str(result)
    assert f", at least {low * 1e3:.1f} ms" in str(result)
    assert any(note.startswith("at least: ") for note in result.notes)
    assert result.to_dict()["ci95"]["mean"] == [low, high]
    (alike,) = (shared_data / "wild").glob("*smb-length-5786__input.pcap.gz")  # all delays are 1 us: nothing is open
    assert "at least" not in str(rtt(alike))
