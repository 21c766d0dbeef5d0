"""Settings of `wirelag balance`: one file, one line for each problem."""

from pathlib import Path

import pytest

from tests.support.balance_loop import S
from tests.support.balancer_packets import CONFIG, SERVICE
from tests.support.command import wirelag
from wirelag.balance.settings import BackendSettings, Config
from wirelag.ebpf.service import Service
from wirelag.errors import WirelagError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lb.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def test_a_file_with_everything(tmp_path: Path) -> None:
    path = tmp_path / "web.toml"
    path.write_text(
        'interface = "eth0"\ninterval = "1s"\ndrain = ["web4"]\ndrain_limit = "1m"\nprometheus = "9465"\n'
        '[policy]\nhigh = 2\nlow = 1.1\nfloor = "0.5%"\nincrement = 0.2\nquiet = 5\n'
        '[table]\nsize = 1009\nconnections = 4096\nidle = "30s"\n' + CONFIG + "weight = 3\n",
        encoding="utf-8",
    )
    config = Config.load(str(path))
    assert config.service == Service(SERVICE, (80,), "tcp")
    assert config.policy.floor == 0.005
    assert config.policy.high == 2
    assert config.fair == {"web1": 1.0, "web2": 1.0, "web3": 1.0}
    assert config.pins == "/sys/fs/bpf/wirelag/web"
    assert (config.interval_ns, config.drain_ns, config.table_size) == (S, 60 * S, 1009)
    assert config.backends[3] == BackendSettings("web4", "10.0.0.14", bytes.fromhex("02000000000e"), 3.0)


def test_the_method_follows_the_protocol(config: Path) -> None:
    text = config.read_text(encoding="utf-8")
    found = []
    for before in ("", 'method = "modes"\n'):
        for protocol in ("tcp", "udp"):
            config.write_text(
                before + text.replace("[service]", f'[service]\nprotocol = "{protocol}"'), encoding="utf-8"
            )
            found.append(Config.load(str(config)).method)
    assert found == ["auto", "modes", "modes", "modes"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[service]", 'drain = ["web9"]\n[service]', "drain: unknown backend web9; did you mean web4?"),
        ("10.0.0.12", "10.0.0.11", "backends.web2.address: 10.0.0.11: web1 has it, too"),
        ("00:0c", "00:0b", "backends.web2.mac: 02:00:00:00:00:0b: web1 has it, too"),
        ('"web2"', '"web1"', "backends.web1.name: web1: two backends have it"),
        ("10.0.0.12", SERVICE, "backends.web2.address: is the service's address: give the backend's own"),
        (
            "[service]",
            "[policy]\nfloor = 0.2\n[service]",
            "policy.floor: 0.2 is too much for 4 backends: at most 0.125",
        ),
        ("10.0.0.12", "127.0.0.1", "backends.web2.address: 127.0.0.1 is not the address of one host on a network"),
        (SERVICE, "224.0.0.1", "service.address: 224.0.0.1 is not the address of one host on a network"),
        ("ports = [80]", "ports = [80, 443, 80]", "service.ports: 80 is there 2 times"),
        ("[service]", '[health]\npath = "up"\n[service]', "health.path: 'up' is not a path: write /health"),
        ("[service]", '[health]\npath = "/\\r\\nX: y"\n[service]', "health.path: '/\\r\\nX: y' is not a path"),
        (
            "[service]",
            'method = "auto"\n[service]\nprotocol = "udp"',
            "method: auto needs TCP headers, and the service is udp: use modes",
        ),
        (
            "ports = [80]",
            'ports = [80]\nprotocol = "udp"\n[health]\ncheck = "http"',
            "health.port: is missing: the service is udp; name a port where backends accept TCP",
        ),
        ("[service]", "[policy]\nlow = 2\n[service]", "policy.low: 2 is above policy.high (1.5)"),
        ("[service]", "[policy]\nhihg = 2\n[service]", "policy.hihg: unknown setting; did you mean policy.high?"),
        ("[service]", "[table]\nsize = 1000\n[service]", "table.size: 1000 is not prime; use 65537"),
        ("[service]", "[table]\nsize = 211\n[service]", "table.size: 211 is too small for 4 backends"),
        ("[service]", "policy = 3\n[service]", "policy: is a table: write [policy]"),
        ("[service]", 'interval = "1h"\n[service]', "interval: 1h is out of range: 100ms to 60s"),
        ("[service]", 'prometheus = "x"\n[service]', "prometheus: 'x' is not an address"),
        (
            "[service]",
            'drain = ["web1","web2","web3","web4"]\n[service]',
            "backends: all drain or have weight 0",
        ),
        ("ports = [80]", "ports = [0]", "service.ports: 0 is out of range: 1 to 65535"),
        ("ports = [80]", 'protocol = "sctp"', "service.protocol: 'sctp' is not one of tcp, udp"),
        (f'address = "{SERVICE}"', "", "service.address: is missing: address that clients connect to"),
        ("10.0.0.12", "10.0.0", "backends.web2.address: '10.0.0' is not an address"),
        (
            "02:00:00:00:00:0c",
            "01:00:00:00:00:0c",
            "backends.web2.mac: 01:00:00:00:00:0c is not the address of one host",
        ),
        ('name = "web2"', "", "backends.1.name: is missing"),
        ('"web2"', '"web 2"', "'web 2' is not a name"),
        ("[[backends]]", "[backends]", "is not TOML"),
    ],
)
def test_each_problem_is_a_line(config: Path, before: str, after: str, said: str) -> None:
    text = config.read_text(encoding="utf-8")
    assert before in text
    config.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(WirelagError) as error:
        Config.load(str(config))
    assert any(line.startswith(f"{config}: ") and said in line for line in str(error.value).splitlines()), error.value


def test_all_problems_are_reported_at_once(config: Path) -> None:
    text = CONFIG.replace("ports = [80]", "ports = [0]").replace("10.0.0.12", "10.0.0.11")
    config.write_text('drain = ["web9"]\n' + text, encoding="utf-8")
    done = wirelag("balance", "--config", config, "--check", code=2)
    assert len(done.stderr.splitlines()) == 3
    assert all(line.startswith(f"wirelag: {config}: ") for line in done.stderr.splitlines())
