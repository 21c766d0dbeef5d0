"""The agent's settings: file and flags agree, each error is one line, `--check` reports problems without running."""

import os
import re
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.agent_settings import config_of, problem_of, run
from tests.support.places import ROOT
from wirelag.agent.config import Config
from wirelag.agent.forecast import forecast
from wirelag.agent.settings import SCHEMA
from wirelag.cli.agent import agent
from wirelag.cli.parser import declared_by
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda

REFERENCE_PAGE = ROOT / "docs" / "reference" / "agent.md"
ANY = 'point = "a"\ninterface = "any"\n'
LEAST = 'point = "edge1"\ninterface = "lo"\n'


def test_smallest_file(tmp_path: Path) -> None:
    config = config_of(LEAST, tmp_path)
    assert (config.point, config.interface, config.interval_ns) == ("edge1", "lo", 10**9)
    (measured,) = config.measured
    assert isinstance(measured.terms.estimator, Rda)
    assert measured.terms.delimiters is None
    assert config.collector is None
    assert not config.references


def test_everything(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    config = config_of(
        LEAST
        + f"""
interval = "500ms"
by = "prefix"
filter = "udp"
[collector]
url = "https://collector.example:8321"
token_file = "{tmp_path}/token"
[estimator]
name = "lda"
rows = 64
tail = 128
seed = 7
[packet_id]
nat = true
[cut]
control_port = 5862
control_to = "192.0.2.9"
[spool]
folder = "{tmp_path}/spool"
most = "1MiB"
[clock]
error = "20us"
[[segments]]
name = "edge1>edge2"
direction = "10.0.0.0/8>192.0.2.0/24"
[[segments]]
name = "edge2>edge1"
direction = "192.0.2.0/24>10.0.0.0/8"
packets = "references"
[[references]]
to = "192.0.2.9"
every = "20ms"
link = "100Mbps"
share = "0.1%"
dscp = 46
""",
        tmp_path,
    )
    one, other = config.measured
    assert isinstance(one.terms.estimator, Lda)
    assert one.terms.packet_id.flow is False
    assert one.terms.packet_id.seed == 7
    assert (one.segment, one.terms.direction) == ("edge1>edge2", "10.0.0.0/8>192.0.2.0/24")
    assert (one.terms.filter, other.terms.filter) == ("udp", "udp; references")
    assert other.references_only
    assert config.control == ("192.0.2.9", 5862)
    assert config.clock_error_ns == 20_000
    assert config.spool_bytes == 1 << 20
    (stream,) = config.references
    assert (stream.dscp, stream.injection.link_bytes_per_s, stream.injection.most_share) == (46, 12_500_000, 0.001)
    assert config.collector is not None
    assert config.collector.secret == "open-sesame"
    assert "open-sesame" not in repr(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('interface = "lo"', "point (--point): is missing"),
        ('point = "a b"\ninterface = "lo"', "agent.toml: point: 'a b' is not a name"),
        ('point = "a"', "interface (--interface): name an interface"),
        (LEAST + 'read = ["x.pcap"]', "name an interface to capture on, or captures"),
        (LEAST + 'intervall = "1s"', "agent.toml: intervall: unknown setting; did you mean interval?"),
        (LEAST + "rows = 5", "agent.toml: rows: unknown setting; did you mean estimator.rows?"),
        (LEAST + "[estimator]\nrows = 0", "agent.toml: estimator.rows: 0 is out of range: 1 to"),
        (LEAST + '[estimator]\nrows = "many"', "agent.toml: estimator.rows: 'many' is not a whole number"),
        (
            LEAST + '[estimator]\nname = "join"',
            "estimator.name: 'join' sends every packet, so it needs captures",
        ),
        (LEAST + 'interval = "soon"', "agent.toml: interval: 'soon' is not a duration"),
        (LEAST + 'interval = "1ms"', "agent.toml: interval: 1ms is out of range: 10ms to 1d"),
        (LEAST + 'grace = "2s"', "agent.toml: grace: is longer than the interval: give a shorter one"),
        (LEAST + 'by = "weather"', "agent.toml: by: 'weather' is not one of"),
        (LEAST + '[cut]\nat = "packets"', "agent.toml: cut.at: only lda is cut at packets"),
        (LEAST + '[cut]\ncontrol_to = "192.0.2.1"', "cut.control_port (--control-port): is missing"),
        (LEAST + '[[segments]]\nname = "nowhere"', "agent.toml: segments.nowhere.name: 'nowhere' is not a segment"),
        (LEAST + '[[segments]]\ndirection = "10.0.0.1"', "agent.toml: segments.0.direction: '10.0.0.1' is not a dir"),
        (LEAST + '[[segments]]\nname = "a>b"\n[[segments]]\nname = "a>b"', "duplicate name a>b"),
        (LEAST + "[segments]\nname = 1", "agent.toml: segments: write [[segments]]"),
        (LEAST + '[[references]]\nevery = "1s"', "references.0.to (--reference): is missing"),
        (LEAST + '[[references]]\nto = "example.com"', "agent.toml: references.0.to: 'example.com' is not an address"),
        (
            LEAST + '[[references]]\nto = "::1"\nevery = "1us"',
            "agent.toml: references.0.every: 1us is out of range: at least 1ms",
        ),
        (LEAST + '[collector]\nurl = "collector"', "agent.toml: collector.url: "),
        (LEAST + '[collector]\nurl = "http://192.0.2.1"', "would go to another host in plain text"),
        (LEAST + '[collector]\nurl = "https://u:secret@h"', "secrets do not belong into an address"),
        (LEAST + '[collector]\nurl = "https://h"\ntoken_file = "none"', "collector.token_file: none: cannot read"),
        (LEAST + '[inside]\nby = "ports"', 'agent.toml: interface: must be "any": the inside has several ports'),
        (ANY + '[inside]\nestimator = "rda"', "inside.by: is missing: write ports, or collector"),
        (ANY + '[[ports]]\nto = "B"\ninterface = "eth0"', "inside.by: is missing: write ports, or collector"),
        (ANY + '[inside]\nby = "ports"', "agent.toml: ports: name a port at least"),
        (ANY + '[inside]\nby = "collector"', "m_set.by (--m-set): is missing: only an agent with an m-set is told"),
        (ANY + '[inside]\nby = "ports"\n[[ports]]\nto = "B"', "ports.0.interface: name the interface, or the address"),
        (ANY + '[inside]\nby = "ports"\nestimator = "rli"', "inside.estimator: 'rli' is not one of"),
        ("point = ", "agent.toml: is not TOML"),
    ],
)
def test_each_error_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    line = problem_of(text, tmp_path)
    assert says in line
    assert "secret" not in line.replace("secrets", "")


def test_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(LEAST + 'interval = "10s"\n[[segments]]\nname = "a>b"\n[[segments]]\nname = "a>c"\n')
    code, said = run(str(path), "--check", "--interval", "2s", "--segment", "x>y", "--direction", "10.0.0.1>")
    assert code == 0
    assert "intervals of 2 s" in said
    assert "segment x>y: packets 10.0.0.1>" in said
    assert "a>b" not in said
    assert "given: point = 'edge1', interface = 'lo', interval = '2s' (--interval); all other" in said


def test_flags_that_do_not_go_together() -> None:
    base = ("--check", "--point", "p", "--interface", "lo")
    assert "--segment and --direction" in run(*base, "--segment", "a>b", "--segment", "b>a", "--direction", "::>")[1]
    assert "--every: applies to references, but none is given" in run(*base, "--every", "1s")[1]
    assert "collector (--collector) is missing" in run(*base[1:])[1]


def test_check_reports_the_settings(tmp_path: Path) -> None:
    arguments = ("--point", "p", "--interface", "lo", "--collector", "https://h:1", "--spool", str(tmp_path / "s"))
    code, said = run("--check", *arguments, "--reference", "192.0.2.1", "--link", "10Mbps", "--tail", "64")
    assert code == 2
    assert "https://h:1: unknown host" in said  # test_contact.py asks one that is there
    assert "p: captures on lo, every packet" in said
    assert re.search(r"sends \d+(\.\d+)? k?B for each interval of 100,000 packets", said)
    assert "memory: at most" in said
    assert "clock: " in said
    assert "references to 192.0.2.1 every 10 ms" in said
    assert f"messages wait in {tmp_path}/s, at most" in said
    assert not (tmp_path / "s").exists()  # nothing has happened
    assert "accurate within 5 us, as stated" in " ".join(run("--check", *arguments, "--clock-error", "5us")[1].split())


def test_every_flag_is_a_setting() -> None:
    flags = {key.flag for key in SCHEMA.keys}
    options = {p.default for p in declared_by(agent)}
    assert options <= {None, False}
    shown = set(re.findall(r"(?<![\w-])(--?[a-z][a-z0-9-]*)", run("--help")[1]))
    assert flags <= shown | {None}


def test_examples_of_the_page_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    examples = re.findall(r"```toml\n(.*?)```", REFERENCE_PAGE.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        config_of(example.replace("/etc/wirelag/token", str(tmp_path / "token")), tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"interface": "nowhere0"}, "nowhere0: there is no such interface; there are "),
        ({"interface": "lo", "spool.folder": "/dev/null/wirelag"}, "/dev/null/wirelag: cannot hold waiting messages"),
        pytest.param(
            {"interface": "lo", "filter": "tcp prt"},
            "filter 'tcp prt': ",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason=needs.ROOT),
        ),
    ],
)
def test_check_names_what_would_stop_it(words: dict[str, str], says: str, tmp_path: Path) -> None:
    settings = SCHEMA.load(None)
    for name, value in {"point": "a", "spool.folder": str(tmp_path), **words}.items():
        settings.put(name, value, name)
    with pytest.raises(WirelagError, match=f"^{re.escape(says)}"):
        list(forecast(Config.of(settings)))
