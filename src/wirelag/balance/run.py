"""One run of the balancer: steering in the kernel, or measuring what another balancer sends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from wirelag.errors import SettingError, WirelagError
from wirelag.transport.audit import Audit

if TYPE_CHECKING:
    from wirelag.balance.loop import Step
    from wirelag.balance.serving import Serving
    from wirelag.balance.settings import BackendSettings, Config
    from wirelag.capture.live import Source
    from wirelag.ebpf.balance import Balancers
    from wirelag.ebpf.service import Dataplane, Reading, Way
    from wirelag.settings import Rereading

BRIEFLY_S: Final = 0.02  # wait for a host asked before: the next interval asks again


def tell(line: str) -> None:
    """Print a line to standard error."""
    print(f"wirelag balance: {line}", file=sys.stderr, flush=True)


def check_here(configs: Sequence[Config], interface: str, steers: bool) -> None:
    """Raise or warn as a run on this machine would."""
    from wirelag.balance.ways import way_to
    from wirelag.capture.neighbours import PATIENCE_S
    from wirelag.ebpf.balance import problems

    common = configs[0]
    found = problems(interface, common.pins) if steers else []
    if common.audit is not None and not os.path.isdir(folder := os.path.dirname(os.path.abspath(common.audit))):
        found.append(f"audit: there is no folder {folder}")
    if found:
        raise WirelagError("\n".join(f"{common.path}: {line}" for line in found))
    for config in configs:
        for one in config.backends:
            if one.name in config.fair and (one.mac is None or one.via != "l2"):
                try:
                    way_to(one, config, PATIENCE_S)
                except WirelagError as error:
                    print(f"warning: {config.path}: {one.name}: {error}; left out until it replies", file=sys.stderr)


def _open(configs: Sequence[Config]) -> Balancers:
    from wirelag.balance.settings import MOST_BACKENDS
    from wirelag.ebpf.balance import Wanted, open_balancers

    interface = configs[0].interface
    assert interface is not None
    wanted = [
        Wanted(
            name=one.name,
            service=one.service,
            table_size=one.table_size,
            connections=one.connections,
            most_backends=MOST_BACKENDS,
            idle_ns=one.idle_ns,
            most_new=one.most_new,
            secret=one.secret,
            method=one.method,
            mtu=one.tunnel.mtu,
            gue_port=one.tunnel.port,
        )
        for one in configs
    ]
    return open_balancers(wanted, interface, configs[0].pins)


class Run:
    """One run of the balancer: the source of readings, and the destination of weights, for each service."""

    def __init__(self, configs: Sequence[Config], form: str, prometheus: str | None, length_ns: int | None) -> None:
        self._configs, self._form, self._prometheus, self._length_ns = tuple(configs), form, prometheus, length_ns
        self._stopped, self._reload = threading.Event(), False
        self._again: Rereading | None = None
        self._audit = Audit(None)
        self._services: list[Serving] = []

    @property
    def _common(self) -> Config:
        """What all services have in common."""
        return self._configs[0]

    def _tell_of(self, config: Config) -> Callable[[str], None]:
        """Lines for people about a service: named, if there are several."""
        return tell if len(self._configs) == 1 else lambda line: tell(f"{config.name}: {line}")

    def steer(self) -> None:
        """Steer packets in the kernel."""
        from wirelag.balance.health import Health
        from wirelag.balance.loop import Balancer
        from wirelag.balance.serving import Serving
        from wirelag.capture.privileges import all_may_read, drop_privileges

        common = self._common
        with ExitStack() as stack:
            self._audit = Audit(common.audit)  # what can fail comes before packets are balanced
            stack.callback(self._audit.close)
            if self._prometheus is not None:
                from wirelag.render.prometheus import Exporter

                Exporter(self._prometheus, lambda: ()).close()
            kernel = _open(self._configs)
            carries = any(one.table() is not None for one in kernel.services)
            try:
                loops = [
                    Balancer(config, dataplane, self._ways(config), self._tell_of(config))
                    for config, dataplane in zip(self._configs, kernel.services, strict=True)
                ]
            except WirelagError:  # leave nothing behind that carried no packets
                kernel.close(leave=carries)
                raise
            stack.callback(kernel.close, leave=True)
            # What is open is enough from here on. The file is read again on SIGHUP.
            drop_privileges(stay=not all_may_read(common.path))
            tell(kernel.description)
            for name in kernel.gone:
                tell(f"{name}: is no longer in the file: its connections are forgotten, and its packets pass")
            self._audit.say("start", where=kernel.description, services=[one.name for one in self._configs])
            stack.enter_context(self._signals(lambda: None))
            for config, loop in zip(self._configs, loops, strict=True):
                health = Health(config, self._tell_of(config))
                stack.callback(health.close)
                self._services.append(Serving(loop, self._audit, self._tell_of(config), health))
            self._go(stack, self._ticks(kernel.services), lambda: None)
        if common.pins is None:
            tell("nothing was pinned: the balancer has ended, and packets go to this host")
        else:
            tell(
                f"the kernel balances on with these weights; `wirelag balance --config {common.path} --remove` ends it"
            )

    def _ways(self, config: Config) -> Callable[[BackendSettings], Way]:
        """How backends are reached; a host that was asked before is waited for briefly."""
        from wirelag.balance.ways import way_to
        from wirelag.capture.neighbours import PATIENCE_S

        asked = set[str]()

        def way(one: BackendSettings) -> Way:
            patience_s = BRIEFLY_S if one.address in asked else PATIENCE_S
            asked.add(one.address)
            return way_to(one, config, patience_s)

        return way

    def measure(self, command: str | None, read: list[str], speed: float | None) -> None:
        """Measure packets that another balancer sends."""
        from wirelag.balance.apply import Applier
        from wirelag.balance.health import Health
        from wirelag.balance.loop import Balancer
        from wirelag.balance.serving import Serving
        from wirelag.balance.watching import Watching, readings_of
        from wirelag.ebpf.service import Way

        watched = [Watching(one.service, one.method) for one in self._configs]

        def listed() -> None:
            for config, one in zip(self._configs, watched, strict=True):
                one.list(config.backends, lambda backend: self._mac(backend, bool(read)))

        with ExitStack() as stack:
            self._audit = Audit(self._common.audit)
            stack.callback(self._audit.close)
            listed()
            source = stack.enter_context(_closing(self._source(read, speed, keep=command is not None)))
            for config in self._configs:
                health = applier = None
                say = self._tell_of(config)
                if unseen := [one.name for one in config.backends if one.via != "l2"]:
                    say(f"packets in tunnels are not looked into: nothing will be known of {', '.join(unseen)}")
                if command is not None:
                    if not read:
                        health = Health(config, say)
                        stack.callback(health.close)
                    try:
                        applier = Applier(command, config.service, say, config.name)
                    except ValueError as error:
                        raise SettingError("apply", str(error)) from None
                    stack.callback(applier.close)
                loop = Balancer(config, None, lambda one: Way(one.mac or b""))
                self._services.append(Serving(loop, self._audit, say, health, applier))
            stack.enter_context(self._signals(source.stop))
            self._go(stack, readings_of(watched, source, self._common.interval_ns), listed)
        for line in source.warnings:
            print(f"warning: {line}", file=sys.stderr)
        for one in self._services:
            last = one.totals.last
            if last is not None and last.counters.get("unknown_backend") and not any(one.balancer.heard.values()):
                self._tell_of(one.config)(
                    f"no packet to {one.config.service.address} has a backend's address or MAC address: "
                    "capture where the balancer sends, not where it receives"
                )

    def _mac(self, one: BackendSettings, replayed: bool) -> bytes | None:
        if one.mac is not None or replayed or self._common.interface is None:
            return one.mac
        from wirelag.capture.neighbours import mac_of

        try:
            return mac_of(one.address, self._common.interface)
        except WirelagError:
            return None  # its address identifies it

    def _source(self, read: list[str], speed: float | None, keep: bool) -> Source:
        from wirelag.capture.live import Live, Replay

        if read:
            return Replay(read, speed=speed)
        from wirelag.capture.privileges import drop_privileges

        assert self._common.interface is not None
        source = Live(self._common.interface)
        if not keep:  # the command needs its user's privileges
            drop_privileges()
        return source

    def _ticks(self, services: Sequence[Dataplane]) -> Iterator[list[Reading]]:
        """A reading of each service at the end of each interval, by a monotonic clock, and looks at it before."""
        import time

        from wirelag.balance.controller import LOOKS

        due_s, looked = time.monotonic(), 0
        while True:
            due_s = max(due_s + self._common.interval_ns / LOOKS / 1e9, time.monotonic())
            if self._stopped.wait(due_s - time.monotonic()):
                return
            looked = (looked + 1) % LOOKS
            if looked:
                for one, service in zip(self._services, services, strict=True):
                    one.balancer.react(service.peek())
            else:
                yield [one.read() for one in services]

    def _go(self, stack: ExitStack, readings: Iterator[list[Reading]], listed: Callable[[], None]) -> None:
        from wirelag.balance.metrics import exporter
        from wirelag.balance.settings import Config
        from wirelag.settings import Rereading

        lock = threading.Lock()
        if self._prometheus is not None:
            totals = [one.totals for one in self._services]
            stack.callback(exporter(self._prometheus, lock, totals).close)
        show = stack.enter_context(self._shown())
        passed_ns = 0  # counted in intervals: a clock may step
        for reading in readings:
            if self._reload:
                self._reload = False
                self._again = Rereading(lambda: Config.load_all(self._common.path))
            if self._again is not None:
                self._load_again(self._again, listed)
            for one, each in zip(self._services, reading, strict=True):
                entry = one.step(each)
                with lock:
                    one.totals.add(entry)
            show()
            passed_ns += self._common.interval_ns
            if self._length_ns is not None and passed_ns >= self._length_ns:
                break

    def _load_again(self, reading: Rereading, listed: Callable[[], None]) -> None:
        """Read the file after SIGHUP, once an interval, until two reads are alike. A wrong file changes nothing."""
        try:
            configs = reading.next()
            if configs is None:
                return
            self._again = None
            wanted = {one.name: one for one in configs}
            here = [one.config.name for one in self._services]
            if sorted(wanted) != sorted(here):
                raise WirelagError(f"{self._common.path}: services: others than before need a restart")
        except WirelagError as error:
            self._again = None
            for line in str(error).splitlines():
                tell(f"{line}; nothing changed")
            return
        for one in self._services:
            one.reload(wanted[one.config.name])
        self._configs = tuple(one.config for one in self._services)
        listed()

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
    def _shown(self) -> Iterator[Callable[[], None]]:
        """What shows an interval: the last one of each service."""
        if self._form == "jsonl":
            yield lambda: print("".join(f"{json.dumps(one.to_json())}\n" for one in self._last()), end="", flush=True)
            return
        from wirelag.balance.view import View, plain_lines

        named = len(self._services) > 1
        if not sys.stdout.isatty():
            yield lambda: print(
                "".join(f"{line}\n" for one in self._last() for line in plain_lines(one, named)), end="", flush=True
            )
            return
        from rich.console import Group
        from rich.live import Live as Screen

        views = [View(config, named) for config in self._configs]
        with Screen(Group(*(view.draw() for view in views)), auto_refresh=False, transient=True) as screen:

            def show() -> None:
                for view, entry in zip(views, self._last(), strict=True):
                    view.add(entry)
                screen.update(Group(*(view.draw() for view in views)), refresh=True)

            yield show

    def _last(self) -> list[Step]:
        return [one.totals.last for one in self._services if one.totals.last is not None]


@contextmanager
def _closing(source: Source) -> Iterator[Source]:
    try:
        yield source
    finally:
        source.close()
