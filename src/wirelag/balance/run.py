"""One run of the balancer: steering in the kernel, or measuring what another balancer sends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from wirelag.errors import SettingError, WirelagError
from wirelag.transport.audit import Audit

if TYPE_CHECKING:
    from wirelag.balance.apply import Applier
    from wirelag.balance.health import Health
    from wirelag.balance.loop import Balancer, Step
    from wirelag.balance.settings import BackendSettings, Config
    from wirelag.capture.live import Source
    from wirelag.ebpf.service import Dataplane, Reading
    from wirelag.settings import Rereading

BRIEFLY_S: Final = 0.02  # wait for a host asked before: the next interval asks again


def tell(line: str) -> None:
    """Print a line to standard error."""
    print(f"wirelag balance: {line}", file=sys.stderr, flush=True)


def check_here(config: Config, interface: str, steers: bool) -> None:
    """Raise or warn as a run on this machine would."""
    from wirelag.capture.neighbours import mac_of
    from wirelag.ebpf.balance import problems

    found = problems(interface, config.pins) if steers else []
    if config.audit is not None and not os.path.isdir(folder := os.path.dirname(os.path.abspath(config.audit))):
        found.append(f"audit: there is no folder {folder}")
    if found:
        raise WirelagError("\n".join(f"{config.path}: {line}" for line in found))
    for one in config.backends:
        if one.mac is None and one.name in config.fair:
            try:
                mac_of(one.address, interface)
            except WirelagError as error:
                print(f"warning: {config.path}: {one.name}: {error}; left out until it replies", file=sys.stderr)


def _open(config: Config) -> Dataplane:
    from wirelag.balance.settings import MOST_BACKENDS
    from wirelag.ebpf.balance import open_balancer

    assert config.interface is not None
    return open_balancer(
        config.service,
        config.interface,
        table_size=config.table_size,
        connections=config.connections,
        most_backends=MOST_BACKENDS,
        idle_ns=config.idle_ns,
        pins=config.pins,
        most_new=config.most_new,
        secret=config.secret,
        method=config.method,
    )


class Run:
    """One run of the balancer: the source of readings, and the destination of weights."""

    def __init__(self, config: Config, form: str, prometheus: str | None, length_ns: int | None) -> None:
        self._config, self._form, self._prometheus, self._length_ns = config, form, prometheus, length_ns
        self._stopped, self._reload = threading.Event(), False
        self._again: Rereading | None = None
        self._health: Health | None = None
        self._audit = Audit(None)

    def steer(self) -> None:
        """Steer packets in the kernel."""
        from wirelag.balance.health import Health
        from wirelag.balance.loop import Balancer
        from wirelag.capture.neighbours import PATIENCE_S, mac_of
        from wirelag.capture.privileges import all_may_read, drop_privileges

        config = self._config
        interface = config.interface
        assert interface is not None
        asked = set[str]()

        def mac(one: BackendSettings) -> bytes:
            patience_s = BRIEFLY_S if one.address in asked else PATIENCE_S
            asked.add(one.address)
            return one.mac or mac_of(one.address, interface, patience_s)

        with ExitStack() as stack:
            self._audit = Audit(config.audit)  # what can fail comes before packets are balanced
            stack.callback(self._audit.close)
            if self._prometheus is not None:
                from wirelag.render.prometheus import Exporter

                Exporter(self._prometheus, lambda: ()).close()
            dataplane = _open(config)
            try:
                balancer = Balancer(config, dataplane, mac, tell)
            except WirelagError:  # leave nothing behind that carried no packets
                dataplane.close(leave=dataplane.table() is not None)
                raise
            stack.callback(dataplane.close, leave=True)
            # What is open is enough from here on. The file is read again on SIGHUP.
            drop_privileges(stay=not all_may_read(config.path))
            tell(dataplane.description)
            self._audit.say("start", where=dataplane.description)
            stack.enter_context(self._signals(lambda: None))
            self._health = Health(config, tell)
            stack.callback(self._health.close)
            self._go(stack, balancer, self._ticks(dataplane), None, lambda: None)
        if config.pins is None:
            tell("nothing was pinned: the balancer has ended, and packets go to this host")
        else:
            tell(
                f"the kernel balances on with these weights; `wirelag balance --config {config.path} --remove` ends it"
            )

    def measure(self, command: str | None, read: list[str], speed: float | None) -> None:
        """Measure packets that another balancer sends."""
        from wirelag.balance.apply import Applier
        from wirelag.balance.health import Health
        from wirelag.balance.loop import Balancer
        from wirelag.balance.watching import Watching

        balancer = Balancer(self._config, None, lambda one: one.mac or b"")
        watching = Watching(self._config.service, self._config.method)
        with ExitStack() as stack:
            self._audit = Audit(self._config.audit)
            stack.callback(self._audit.close)
            watching.list(self._config.backends, lambda one: self._mac(one, bool(read)))
            source = stack.enter_context(_closing(self._source(read, speed, keep=command is not None)))
            applier = None
            if command is not None:
                if not read:
                    self._health = Health(self._config, tell)
                    stack.callback(self._health.close)
                try:
                    applier = Applier(command, self._config.service, tell)
                except ValueError as error:
                    raise SettingError("apply", str(error)) from None
                stack.callback(applier.close)
            stack.enter_context(self._signals(source.stop))
            readings = watching.readings(source, self._config.interval_ns)

            def listed() -> None:
                watching.list(self._config.backends, lambda one: self._mac(one, bool(read)))

            last = self._go(stack, balancer, readings, applier, listed)
        for line in source.warnings:
            print(f"warning: {line}", file=sys.stderr)
        if last is not None and last.counters.get("unknown_backend") and not any(balancer.heard.values()):
            tell(
                f"no packet to {self._config.service.address} has a backend's address or MAC address: "
                "capture where the balancer sends, not where it receives"
            )

    def _mac(self, one: BackendSettings, replayed: bool) -> bytes | None:
        if one.mac is not None or replayed or self._config.interface is None:
            return one.mac
        from wirelag.capture.neighbours import mac_of

        try:
            return mac_of(one.address, self._config.interface)
        except WirelagError:
            return None  # its address identifies it

    def _source(self, read: list[str], speed: float | None, keep: bool) -> Source:
        from wirelag.capture.live import Live, Replay

        if read:
            return Replay(read, speed=speed)
        from wirelag.capture.privileges import drop_privileges

        assert self._config.interface is not None
        source = Live(self._config.interface)
        if not keep:  # the command needs its user's privileges
            drop_privileges()
        return source

    def _ticks(self, dataplane: Dataplane) -> Iterator[Reading]:
        """A reading at the end of each interval, by a monotonic clock."""
        import time

        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self._config.interval_ns / 1e9, time.monotonic())
            if self._stopped.wait(due_s - time.monotonic()):
                return
            yield dataplane.read()

    def _go(
        self,
        stack: ExitStack,
        balancer: Balancer,
        readings: Iterator[Reading],
        applier: Applier | None,
        listed: Callable[[], None],
    ) -> Step | None:
        from wirelag.balance.metrics import Totals
        from wirelag.balance.settings import Config
        from wirelag.balance.view import TooShort
        from wirelag.settings import Rereading

        short = TooShort()
        totals, lock = Totals(), threading.Lock()
        if self._prometheus is not None:
            stack.callback(totals.exporter(self._prometheus, lock, applier).close)
        show = stack.enter_context(self._shown())
        passed_ns = 0  # counted in intervals: a clock may step
        entry, down = None, tuple[str, ...]()
        for reading in readings:
            if self._reload:
                self._reload = False
                self._again = Rereading(lambda: Config.load(self._config.path))
            if self._again is not None:
                self._load_again(self._again, balancer, listed)
            if self._health is not None:
                balancer.set_down(self._health.down())
            entry = balancer.step(reading)
            if entry.decision.changes or entry.down != down:
                down = entry.down
                weights = {name: round(weight, 4) for name, weight in entry.decision.weights.items()}
                self._audit.say("weights applied" if entry.steered else "weights", weights=weights, down=list(down))
            with lock:
                totals.add(entry)
            if applier is not None:
                applier.offer(self._config.backends, entry.decision.weights)
            show(entry)
            if short.add(entry):
                tell(short.line)
            passed_ns += self._config.interval_ns
            if self._length_ns is not None and passed_ns >= self._length_ns:
                break
        return entry

    def _load_again(self, reading: Rereading, balancer: Balancer, listed: Callable[[], None]) -> None:
        """Read the file after SIGHUP, once an interval, until two reads are alike. A wrong file changes nothing."""
        from wirelag.balance.loop import fixed

        try:
            config = reading.next()
            if config is None:
                return
            self._again = None
            for name in fixed(self._config, config):
                tell(f"{config.path}: {name}: unchanged until the next start")
            changes = balancer.reload(config)
        except WirelagError as error:
            self._again = None
            for line in str(error).splitlines():
                tell(f"{line}; nothing changed")
            return
        self._config = balancer.config
        if self._health is not None:
            self._health.configure(self._config)
        listed()
        self._audit.say("reload", backends=[one.name for one in config.backends])
        said = "; ".join(f"{c.name} {c.reason}: {c.before:.1%} to {c.after:.1%}" for c in changes)
        tell(f"{config.path}: reloaded{f': {said}' if said else ''}")

    @contextmanager
    def _signals(self, stop: Callable[[], None]) -> Iterator[None]:
        def end(number: int, frame: FrameType | None) -> None:
            self._stopped.set()
            stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)

        def again(number: int, frame: FrameType | None) -> None:
            self._reload = True

        wanted = {signal.SIGINT: end, signal.SIGTERM: end, signal.SIGHUP: again}
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @contextmanager
    def _shown(self) -> Iterator[Callable[[Step], None]]:
        if self._form == "jsonl":
            yield lambda entry: print(json.dumps(entry.to_json()), flush=True)
            return
        from wirelag.balance.view import View, plain_lines

        if not sys.stdout.isatty():
            yield lambda entry: print("".join(f"{line}\n" for line in plain_lines(entry)), end="", flush=True)
            return
        from rich.live import Live as Screen

        view = View(self._config)
        with Screen(view.draw(), auto_refresh=False, transient=True) as screen:

            def show(entry: Step) -> None:
                view.add(entry)
                screen.update(view.draw(), refresh=True)

            yield show


@contextmanager
def _closing(source: Source) -> Iterator[Source]:
    try:
        yield source
    finally:
        source.close()
