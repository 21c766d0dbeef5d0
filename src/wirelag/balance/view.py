"""What `wirelag balance` shows: each backend's share, latency and load, what moved and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wirelag.ebpf.balance_maps import BYTES_EACH
from wirelag.ebpf.service import Counts
from wirelag.units import format_duration, format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from wirelag.balance.controller import Latency
    from wirelag.balance.loop import Step
    from wirelag.balance.settings import BackendSettings, Config

BAR: Final = 20
SHOWN_CHANGES: Final = 8
SHOWN_BACKENDS: Final = 32
SHORT: Final = 8  # requests per connection: too few for a latency
SURE: Final = 100  # epochs without an estimate
STYLES: Final = {"slow": "bold yellow", "silent": "bold red", "unknown": "dim", "draining": "cyan", "down": "red"}


def forecast(config: Config, named: bool = False) -> list[str]:
    """The forecast of `--check`; `named`: there are several services."""
    service, fair = config.service, config.fair
    ports = ", ".join(map(str, service.ports)) or "all ports"
    total, floors = sum(fair.values()), config.policy.floors({name: 1 / len(fair) for name in fair})
    policy = config.policy
    pins = f"pinned in {config.pins}" if config.pins else "not pinned: it ends with its process"
    paper, least = ("", f"{max(floors.values()):.2%}") if config.controller == "wirelag" else (", as the paper", "0")
    memory = BYTES_EACH << (config.connections - 1).bit_length()
    lines = [
        f"{config.path}: {f'{config.name}, ' if named else ''}{service.address}, {service.protocol} {ports}, "
        + (f"at {config.interface}" if config.interface else "no interface: for captures only"),
        f"every {format_duration(config.interval_ns)}, by {config.method}{paper}: a backend above {policy.high:g} "
        f"times the lowest latency loses weight, down to {least}; one below {policy.low:g} times may gain",
        f"table of {config.table_size:,} entries, room for {config.connections:,} connections "
        f"({memory >> 20} MiB), {pins}",
    ]
    health = config.health
    if health.kind is not None:
        each, limit = format_duration(health.interval_ns), format_duration(health.timeout_ns)
        lines.append(
            f"health: {health.kind} at port {health.port} every {each}; {health.fall} failures in a row "
            f"(no reply within {limit} is one) take a backend out{'' if health.strict else ', if it has passed before'}"
        )
    for one in config.backends:
        share = f"{fair[one.name] / total:.1%}" if one.name in fair else "drains"
        lines.append(f"{one.name}: {one.address}, {_way(one, config)}, {share}")
    return lines


def _way(one: BackendSettings, config: Config) -> str:
    """How a backend is reached."""
    if one.via == "l2":
        return one.mac.hex(":") if one.mac else "MAC from the neighbour table"
    tunnel = "IP in IP" if one.via == "ipip" else f"IP in UDP to port {config.tunnel.port}"
    return f"{tunnel} by {one.mac.hex(':') if one.mac else 'the route to it'}"


def plain_lines(entry: Step, named: bool = False) -> list[str]:
    """The changes and their reasons, as one line if there are any; `named`: with the service."""
    by_reason: dict[str, list[str]] = {}
    for change in sorted(entry.decision.changes, key=lambda change: change.after - change.before):
        by_reason.setdefault(change.reason, []).append(f"{change.name} {change.after:.1%}")
    said = "; ".join(f"{', '.join(shares)}: {reason}" for reason, shares in by_reason.items())
    service = f"{entry.service}: " if named else ""
    return [f"{format_time(entry.time_ns)} UTC  {service}{said}"] if said else []


@dataclass(slots=True)
class TooShort:
    """Detects, once, that connections are too short for a latency, so weights cannot follow it."""

    abstained: int = 0
    requests: int = 0
    opened: int = 0
    told: bool = False  # warned, or no need to

    def add(self, entry: Step) -> bool:
        """Add an interval; returns whether to warn now."""
        self.told = self.told or any(counts.count for counts in entry.counts.values())
        for counts in entry.counts.values():
            self.abstained += counts.abstained
            self.requests += counts.requests
            self.opened += counts.opened
        if self.told or self.abstained < SURE or self.requests > SHORT * self.opened:
            return False
        self.told = True
        return True

    @property
    def line(self) -> str:
        """The warning."""
        each = self.requests / max(1, self.opened)
        return f"connections are too short for a latency ({each:.1f} requests each; it takes about 10): weights stay"


class View:
    """Holds recent intervals, and draws them."""

    def __init__(self, config: Config, named: bool = False) -> None:
        self._config, self._named = config, named
        self._entry: Step | None = None
        self._changes: deque[str] = deque(maxlen=SHOWN_CHANGES)

    def add(self, entry: Step) -> None:
        """Add an interval."""
        self._entry = entry
        self._changes.extend(plain_lines(entry))

    def draw(self) -> RenderableType:
        """The whole view, for rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        entry = self._entry
        name = f"{self._config.name}: " if self._named else ""
        service = f"{name}{self._config.service.address} at {self._config.interface or 'captures'}"
        if entry is None:
            return Text(f"{service}: waiting for the first interval to end")
        table = Table(box=None, pad_edge=False)
        table.add_column("backend")
        table.add_column("share", justify="right")
        table.add_column("", width=BAR)
        table.add_column("latency")
        for name in ("requests/s", "connections", "samples"):
            table.add_column(name, justify="right")
        table.add_column("standing")
        names = entry.names
        per_second = 1e9 / self._config.interval_ns
        for name in names[:SHOWN_BACKENDS]:
            weight, counts = entry.decision.weights.get(name, 0.0), entry.counts.get(name, Counts())
            standing = entry.standing(name)
            table.add_row(
                name,
                f"{weight:.1%}",
                "█" * round(BAR * weight),
                latency_text(entry.decision.latencies.get(name), counts),
                f"{counts.requests * per_second:,.0f}",
                f"{counts.connections:,}",
                f"{counts.count:,}",
                standing,
                style=STYLES.get(standing),
            )
        failed = ", ".join(f"{count:,} {what}" for what, count in entry.counters.items() if count)
        head = f"{service}  {format_time(entry.time_ns)} UTC  {'steers' if entry.steered else 'measures only'}"
        more = [f"and {len(names) - SHOWN_BACKENDS} more"] if len(names) > SHOWN_BACKENDS else []
        tail = [*more, *self._changes, *([f"counted: {failed}"] if failed else []), "Ctrl-C stops"]
        return Group(Text(head, style="bold"), table, Text("\n".join(tail), no_wrap=True, overflow="ellipsis"))


def latency_text(latency: Latency | None, counts: Counts) -> str:
    """The mean, with its interval."""
    if latency is None:
        short = counts.abstained and not counts.count and counts.requests <= SHORT * counts.opened
        return "connections too short" if short else "unknown"
    mean, low, high = map(format_duration, (latency.mean_ns, latency.least_ns, latency.most_ns))
    return f"{mean}, {low} to {high}"
