"""`wirelag balance`: new connections go to the servers that answer in time; or, what that would be."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wirelag.cli.options import duration_ns, one_of, speed_of
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.balance.loop import Balancer, Entry
    from wirelag.balance.settings import Config, Wanted
    from wirelag.capture.live import Source
    from wirelag.cli.balance_apply import Applier
    from wirelag.ebpf.service import Dataplane, Reading

MEASURE = "Measure, do not steer"
BRIEFLY_S = 0.02  # to wait for an answer of who has been asked before: the next interval asks again


def _option(*flags: str, metavar: str | None = None, says: str, panel: str | None = None) -> Any:
    return typer.Option(*flags, metavar=metavar, help=says, rich_help_panel=panel)


def balance(
    config: Annotated[str, _option("--config", metavar="FILE", says="Service, backends and settings, as TOML.")],
    check: Annotated[bool, _option("--check", says="Say what would happen, and end.")] = False,
    remove: Annotated[
        bool, _option("--remove", says="Take the program and its maps out of the kernel: the service ends here.")
    ] = False,
    dry_run: Annotated[
        bool, _option("--dry-run", says="Print the weights it would set, as JSON lines.", panel=MEASURE)
    ] = False,
    apply: Annotated[
        str | None,
        _option("--apply", metavar="COMMAND", says="Run this with new weights: for another balancer.", panel=MEASURE),
    ] = None,
    read: Annotated[
        list[str] | None,
        _option(
            "-r", "--read", metavar="CAPTURE", says="Packets of this capture, not of the interface.", panel=MEASURE
        ),
    ] = None,
    speed: Annotated[str, _option("--speed", metavar="Nx|max", says="How fast it is read.", panel=MEASURE)] = "1x",
    method: Annotated[
        str,
        _option("--method", metavar="modes|auto", says="As in wirelag response; the kernel has modes.", panel=MEASURE),
    ] = "modes",
    length: Annotated[str | None, _option("--for", metavar="D", says="End after this long.")] = None,
    output_format: Annotated[
        str | None, _option("--format", metavar="table|jsonl", says="A view, or a line of JSON for each interval.")
    ] = None,
    prometheus: Annotated[
        str | None, _option("--prometheus", metavar="ADDRESS", says="Serve /metrics there: 127.0.0.1:9465.")
    ] = None,
) -> None:
    """Balance connections over servers by how late they answer, which never pass here (direct server return).

    Traffic flows on when it ends, with the last weights; started again it takes over. SIGHUP reads the file again.
    With `pins = false` in the file the balancer ends with the command, and needs no bpffs.
    """
    from wirelag.balance.settings import Config

    one_of(method, ("modes", "auto"), "--method")
    form = output_format or ("jsonl" if dry_run else "table")
    one_of(form, ("table", "jsonl"), "--format")
    length_ns = duration_ns(length, "--for") if length else None
    settings = Config.load(config)
    if prometheus is not None:
        _need_address(prometheus)
    if remove:
        from wirelag.ebpf.balance import remove_balancer

        if settings.pins is None:
            out = "stopping it ends it; one that was started with pins is removed with that setting"
            _tell(f"{config}: pins = false: nothing is pinned, so there is nothing to remove; {out}")
        elif not remove_balancer(settings.pins):
            _tell(f"{settings.pins}: nothing is pinned there")
        return
    if check:
        from wirelag.cli.balance_view import forecast

        print("\n".join(forecast(settings)), flush=True)
        if settings.interface is not None:
            _check_here(settings, settings.interface, steers=not (dry_run or apply))
        return
    if dry_run and apply is not None:
        raise typer.BadParameter("--dry-run applies nothing: leave one of them out", param_hint="--apply")
    measured = dry_run or apply is not None
    if read and not measured:
        raise typer.BadParameter("a capture can be measured, not steered: add --dry-run or --apply", param_hint="-r")
    if method != "modes" and not measured:
        raise typer.BadParameter("the kernel has modes: add --dry-run or --apply", param_hint="--method")
    if settings.interface is None and not read:
        raise WirelagError(f"{config}: interface: is missing: where do packets for {settings.service.address} arrive?")
    run = _Run(settings, form, prometheus or settings.prometheus, length_ns)
    if measured:
        run.measure(apply, read or [], speed, method)
    else:
        run.steer()


def _check_here(config: Config, interface: str, steers: bool) -> None:
    """What a run on this machine would refuse, or warn of."""
    from wirelag.capture.neighbours import mac_of
    from wirelag.ebpf.balance import problems

    found = problems(interface, config.pins) if steers else []
    if found:
        raise WirelagError("\n".join(f"{config.path}: {line}" for line in found))
    for one in config.backends:
        if one.mac is None and one.name in config.fair:
            try:
                mac_of(one.address, interface)
            except WirelagError as error:
                print(f"warning: {config.path}: {one.name}: {error}; it is left out until it answers", file=sys.stderr)


def _tell(line: str) -> None:
    print(f"wirelag balance: {line}", file=sys.stderr, flush=True)


def _need_address(text: str) -> None:
    from wirelag.render.prometheus import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--prometheus") from None


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
    )


class _Run:
    """One run of the command: where readings come from, and where what they lead to goes."""

    def __init__(self, config: Config, form: str, prometheus: str | None, length_ns: int | None) -> None:
        self._config, self._form, self._prometheus, self._length_ns = config, form, prometheus, length_ns
        self._stopped, self._reload = threading.Event(), False

    def steer(self) -> None:
        """Carry packets in the kernel."""
        from wirelag.balance.loop import Balancer
        from wirelag.capture.neighbours import PATIENCE_S, mac_of

        config = self._config
        interface = config.interface
        assert interface is not None
        asked = set[str]()

        def mac(one: Wanted) -> bytes:
            patience_s = BRIEFLY_S if one.address in asked else PATIENCE_S
            asked.add(one.address)
            return one.mac or mac_of(one.address, interface, patience_s)

        with ExitStack() as stack:
            dataplane = _open(config)
            try:
                balancer = Balancer(config, dataplane, mac, _tell)
            except WirelagError:  # what has carried no packets yet is not left behind
                dataplane.close(leave=dataplane.table() is not None)
                raise
            stack.callback(dataplane.close, leave=True)
            _tell(dataplane.description)
            stack.enter_context(self._signals(lambda: None))
            self._go(stack, balancer, self._ticks(dataplane), None, lambda: None)
        if config.pins is None:
            _tell("nothing was pinned: the balancer has ended, and packets pass to this host")
        else:
            _tell(f"traffic flows on with these weights; `wirelag balance --config {config.path} --remove` ends it")

    def measure(self, command: str | None, read: list[str], speed: str, method: str) -> None:
        """Look at packets that another balancer sends."""
        from wirelag.capture.privileges import no_threads

        no_threads()
        from wirelag.balance.loop import Balancer
        from wirelag.cli.balance_apply import Applier
        from wirelag.cli.balance_watch import Watching

        balancer = Balancer(self._config, None, lambda one: one.mac or b"")
        watching = Watching(self._config.service, method)  # type: ignore[arg-type]
        with ExitStack() as stack:
            watching.list(self._config.backends, lambda one: self._mac(one, bool(read)))
            source = stack.enter_context(_closing(self._source(read, speed, keep=command is not None)))
            applier = None
            if command is not None:
                try:
                    applier = Applier(command, self._config.service, _tell)
                except ValueError as error:
                    raise typer.BadParameter(str(error), param_hint="--apply") from None
                stack.callback(applier.close)
            stack.enter_context(self._signals(source.stop))
            readings = watching.readings(source, self._config.interval_ns)

            def listed() -> None:
                watching.list(self._config.backends, lambda one: self._mac(one, bool(read)))

            last = self._go(stack, balancer, readings, applier, listed)
        for line in source.warnings:
            print(f"warning: {line}", file=sys.stderr)
        if last is not None and last.counters.get("unknown_backend") and not any(balancer.heard.values()):
            _tell(
                f"no packet to {self._config.service.address} has a backend's address or MAC address: "
                "look where the balancer sends, not where it receives"
            )

    def _mac(self, one: Wanted, replayed: bool) -> bytes | None:
        if one.mac is not None or replayed or self._config.interface is None:
            return one.mac
        from wirelag.capture.neighbours import mac_of

        try:
            return mac_of(one.address, self._config.interface)
        except WirelagError:
            return None  # it is told apart by its address alone

    def _source(self, read: list[str], speed: str, keep: bool) -> Source:
        from wirelag.capture.live import Live, Replay

        if read:
            return Replay(read, speed=speed_of(speed))
        from wirelag.capture.privileges import drop_privileges

        assert self._config.interface is not None
        source = Live(self._config.interface)
        if not keep:  # a command that is to be run needs what its user may do
            drop_privileges()
        return source

    def _ticks(self, dataplane: Dataplane) -> Iterator[Reading]:
        """A reading at the end of each interval, by a clock that nobody sets."""
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
    ) -> Entry | None:
        from wirelag.cli.balance_metrics import Totals
        from wirelag.cli.balance_view import TooShort

        short = TooShort()
        totals, lock = Totals(), threading.Lock()
        if self._prometheus is not None:
            stack.callback(totals.exporter(self._prometheus, lock, applier).close)
        show = stack.enter_context(self._shown())
        passed_ns = 0  # by intervals: a clock may be set
        entry = None
        for reading in readings:
            if self._reload:
                self._reload = False
                self._load_again(balancer, listed)
            entry = balancer.step(reading)
            with lock:
                totals.add(entry)
            if applier is not None:
                applier.offer(self._config.backends, entry.decision.weights)
            show(entry)
            if short.add(entry):
                _tell(short.line)
            passed_ns += self._config.interval_ns
            if self._length_ns is not None and passed_ns >= self._length_ns:
                break
        return entry

    def _load_again(self, balancer: Balancer, listed: Callable[[], None]) -> None:
        """What SIGHUP asks for. A file that is wrong changes nothing."""
        from wirelag.balance.loop import fixed
        from wirelag.balance.settings import Config

        try:
            config = Config.load(self._config.path)
            for name in fixed(self._config, config):
                _tell(f"{config.path}: {name}: stays as it was until the next start")
            changes = balancer.reload(config)
        except WirelagError as error:
            for line in str(error).splitlines():
                _tell(f"{line}; all stays as it was")
            return
        self._config = balancer.config
        listed()
        said = "; ".join(f"{c.name} {c.reason}: {c.before:.1%} to {c.after:.1%}" for c in changes)
        _tell(f"{config.path}: read again{f': {said}' if said else ''}")

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
    def _shown(self) -> Iterator[Callable[[Entry], None]]:
        if self._form == "jsonl":
            yield lambda entry: print(json.dumps(entry.to_json()), flush=True)
            return
        from wirelag.cli.balance_view import View, plain_lines

        if not sys.stdout.isatty():
            yield lambda entry: print("".join(f"{line}\n" for line in plain_lines(entry)), end="", flush=True)
            return
        from rich.live import Live as Screen

        view = View(self._config)
        with Screen(view.draw(), auto_refresh=False, transient=True) as screen:

            def show(entry: Entry) -> None:
                view.add(entry)
                screen.update(view.draw(), refresh=True)

            yield show


@contextmanager
def _closing(source: Source) -> Iterator[Source]:
    try:
        yield source
    finally:
        source.close()
