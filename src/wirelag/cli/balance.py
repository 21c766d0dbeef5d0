"""`wirelag balance`: new connections go to the servers that respond in time; or, what that would be."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from wirelag.cli.options import check_address, one_of, speed_of
from wirelag.errors import WirelagError

MEASURE: Final = "Measure, do not steer"


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
    from wirelag.balance.run import Run, check_here, tell
    from wirelag.balance.settings import Config
    from wirelag.units import duration_ns

    one_of(method, ("modes", "auto"), "--method")
    form = output_format or ("jsonl" if dry_run else "table")
    one_of(form, ("table", "jsonl"), "--format")
    length_ns = duration_ns(length, "for") if length else None
    settings = Config.load(config)
    if prometheus is not None:
        check_address(prometheus)
    if remove:
        from wirelag.ebpf.balance import remove_balancer

        if settings.pins is None:
            out = "stopping it ends it; one that was started with pins is removed with that setting"
            tell(f"{config}: pins = false: nothing is pinned, so there is nothing to remove; {out}")
        elif not remove_balancer(settings.pins):
            tell(f"{settings.pins}: nothing is pinned there")
        return
    if check:
        from wirelag.balance.view import forecast

        print("\n".join(forecast(settings)), flush=True)
        if settings.interface is not None:
            check_here(settings, settings.interface, steers=not (dry_run or apply))
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
    run = Run(settings, form, prometheus or settings.prometheus, length_ns)
    if measured:
        run.measure(apply, read or [], speed_of(speed), method)
    else:
        run.steer()
