"""Clients of a balanced site in the lab."""

import json

import numpy as np
import numpy.typing as npt

from lab.balance import Site
from lab.clients import Load
from lab.processes import Process
from tests.support.waiting import until

LONG_S = 600.0  # longer than any test: clients are stopped
SHORT_LIVES = Load(lifetime="exponential:300000")


def received(place: Site, number: int) -> int:
    said = place.network.run(f"server{number}", "ip", "-s", "-j", "link", "show", "eth0")
    return int(json.loads(said)[0]["stats64"]["rx"]["packets"])


def traffic(place: Site, *numbers: int) -> None:
    """Wait until each of these servers has received some hundred packets more."""
    before = {number: received(place, number) for number in numbers}
    until(lambda: all(received(place, n) > before[n] + 200 for n in numbers), f"traffic to {numbers}")


def moved(asked: npt.NDArray[np.void]) -> int:
    """Requests answered by another server than the request before in their connection."""
    by_port = asked[np.lexsort((asked["asked_ns"], asked["port"]))]
    same = (by_port["port"][1:] == by_port["port"][:-1]) & (by_port["round"][1:] > 0)
    return int((same & (by_port["server"][1:] != by_port["server"][:-1])).sum())


def stop_client(client: Process, place: Site) -> npt.NDArray[np.void]:
    """Stop it; an error would have ended it before."""
    client.stop()
    said = json.loads(client.said())
    assert said["asked"] == said["answered"]
    asked = place.asked()
    assert not asked["failed"].any()
    assert moved(asked) == 0
    return asked
