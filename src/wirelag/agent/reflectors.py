"""The settings of reflectors: routers at the other ends of segments that this point measures alone."""

from __future__ import annotations

from dataclasses import dataclass

from wirelag.agent.reflecting import MOST_REQUESTS
from wirelag.errors import WirelagError
from wirelag.settings import Settings
from wirelag.transport.stamp import key_of


@dataclass(frozen=True, slots=True)
class Reflecting:
    """A router that reflects test packets (STAMP), and how often it is asked."""

    name: str
    to: str
    port: int
    every_ns: int
    key: bytes | None
    clock_only: bool = False  # the segments to it are measured otherwise, with an agent there
    link: bool = True  # nothing lies in between


def reflectors_of(settings: Settings) -> tuple[Reflecting, ...]:
    """Routers that reflect test packets; an interval has a bounded number of these."""
    found: list[Reflecting] = []
    for at in settings.rows("reflectors"):
        name, every_ns, path = (settings[at + key] for key in ("name", "every", "key_file"))
        if settings["interface"] is None:
            raise settings.wrong(at + "name", "needs an interface: captures reflect nothing")
        if name == settings["point"] or name in (one.name for one in found):
            raise settings.wrong(at + "name", f"{name} is this point, or named twice; give each its own name")
        if settings["interval"] // every_ns > MOST_REQUESTS:
            raise settings.wrong(at + "every", f"is too short: at most {MOST_REQUESTS:,} requests in an interval")
        try:
            key = None if path is None else key_of(path)
        except WirelagError as error:
            raise settings.wrong(at + "key_file", str(error).partition(";")[0]) from None
        where = settings[at + "to"], settings[at + "port"]
        found.append(Reflecting(name, *where, every_ns, key, settings[at + "for"] == "clock", settings[at + "link"]))
    return tuple(found)
