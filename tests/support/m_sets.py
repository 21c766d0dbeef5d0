"""Agents that follow the collector's m-sets, and the network of the sets."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from tests.support.waiting import PATIENCE_S
from wirelag.agent.config import Config
from wirelag.agent.settings import SCHEMA
from wirelag.network.topology import Topology
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, encode
from wirelag.transport.http import MEDIA_TYPE

AGENT = """
point = "C"
interface = "lo"
interval = "1s"
[m_set]
by = "collector"
every = "10ms"
"""


def config_of(folder: Path, text: str = AGENT) -> Config:
    path = folder / "agent.toml"
    path.write_text(text)
    return Config.of(SCHEMA.load(str(path)))


def write_network(path: Path, topology: Topology) -> None:
    """Write atomically, so that no reader sees a part."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(topology.to_json()))
    new.rename(path)


def says(url: str, point: str, config: Config, has_ns: int) -> None:
    now_ns = time.time_ns()
    record = {"start_ns": now_ns, "end_ns": now_ns, "name": None, "class": None, "m_set_ns": has_ns}
    message = Message("status", point, None, Interval(now_ns, now_ns), config.terms, records=(record,), sent_ns=now_ns)
    post(url, encode(message))


@contextmanager
def agents(url: str, config: Config, has_ns: dict[str, int]) -> Iterator[dict[str, int]]:
    """Agents that say every second which m-set they have, as real ones do: one that is silent for 30 s counts as gone.

    Change the entry of an agent to give it another m-set.
    """
    done = Event()

    def keep_saying() -> None:
        while not done.wait(1.0):
            for point, valid_ns in list(has_ns.items()):
                with suppress(OSError):  # a busy collector turns it away: it says so again, as agents do
                    says(url, point, config, valid_ns)

    for point, valid_ns in has_ns.items():
        says(url, point, config, valid_ns)
    thread = Thread(target=keep_saying)
    thread.start()
    try:
        yield has_ns
    finally:
        done.set()
        thread.join()


def post(url: str, data: bytes) -> None:
    """Send a message to the collector."""
    import urllib.request

    request = urllib.request.Request(f"{url}/v1/messages", data, {"Content-Type": MEDIA_TYPE})
    with urllib.request.urlopen(request, timeout=PATIENCE_S):
        pass
