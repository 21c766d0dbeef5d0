"""`wirelag balance`: sends new connections to the servers that respond fast, or prints the weights it would set."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

from wirelag.cli.options import check_address, one_of, speed_of
from wirelag.cli.parser import Option, UsageError
from wirelag.errors import WirelagError

MEASURE: Final = "Measurement without steering"


def _option(*flags: str, metavar: str | None = None, says: str, panel: str | None = None) -> Any:
    return Option(*flags, metavar=metavar, help=says, panel=panel)


def balance(
    config: Annotated[str, _option("--config", metavar="FILE", says="Service, backends and settings (TOML).")],
    check: Annotated[bool, _option("--check", says="Check the settings, print the plan, and exit.")] = False,
    remove: Annotated[
        bool, _option("--remove", says="Remove the program and its maps from the kernel; the service stops.")
    ] = False,
    dry_run: Annotated[
        bool, _option("--dry-run", says="Only print the weights it would set, as JSON lines.", panel=MEASURE)
    ] = False,
    apply: Annotated[
        str | None,
        _option(
            "--apply", metavar="COMMAND", says="Run this command with new weights, for another balancer.", panel=MEASURE
        ),
    ] = None,
    read: Annotated[
        list[str] | None, _option("-r", "--read", metavar="CAPTURE", says="Replay this capture instead.", panel=MEASURE)
    ] = None,
    speed: Annotated[str, _option("--speed", metavar="Nx|max", says="Replay speed.", panel=MEASURE)] = "1x",
    method: Annotated[
        str | None, _option("--method", metavar="auto|modes", says="As in wirelag response, instead of the file's.")
    ] = None,
    length: Annotated[str | None, _option("--for", metavar="D", says="Exit after this time.")] = None,
    output_format: Annotated[
        str | None, _option("--format", metavar="table|jsonl", says="Live view, or one line of JSON per interval.")
    ] = None,
    prometheus: Annotated[
        str | None, _option("--prometheus", metavar="ADDRESS", says="Serve /metrics at this address: 127.0.0.1:9465.")
    ] = None,
) -> None:
    """Balance connections by response latency.

    Only packets from clients pass the balancer (direct server return). When the command ends, the kernel balances on
    with the last weights; the next start takes over. SIGHUP reloads the file. With `pins = false` the balancer ends
    with the command, and needs no bpffs.
    """
    from wirelag.balance.run import Run, check_here, tell
    from wirelag.balance.settings import Config
    from wirelag.units import duration_ns

    if method is not None:
        one_of(method, ("auto", "modes"), "--method")
    form = output_format or ("jsonl" if dry_run else "table")
    one_of(form, ("table", "jsonl"), "--format")
    length_ns = duration_ns(length, "for") if length else None
    services = Config.load_all(config)
    if method is not None:
        services = tuple(replace(one, method=method) for one in services)  # type: ignore[arg-type]
    common = services[0]
    if prometheus is not None:
        check_address(prometheus)
    if remove:
        from wirelag.ebpf.balance import remove_balancer

        if common.pins is None:
            out = "stop the command to end it; to remove a pinned balancer, give the setting it was started with"
            tell(f"{config}: pins = false: nothing is pinned, so there is nothing to remove; {out}")
        elif not remove_balancer(common.pins):
            tell(f"{common.pins}: nothing is pinned there")
        return
    if check:
        from wirelag.balance.view import forecast

        named = len(services) > 1
        print("\n".join(line for one in services for line in forecast(one, named)), flush=True)
        if common.interface is not None:
            check_here(services, common.interface, steers=not (dry_run or apply))
        return
    if dry_run and apply is not None:
        raise UsageError("--dry-run applies nothing: give only one of the two", option="--apply")
    measured = dry_run or apply is not None
    if read and not measured:
        raise UsageError("a capture cannot be steered: add --dry-run or --apply", option="-r")
    if method == "auto" and any(one.service.protocol == "udp" for one in services) and not measured:
        raise UsageError("the kernel measures udp by modes only: add --dry-run or --apply", option="--method")
    if common.interface is None and not read:
        raise WirelagError(
            f"{config}: interface is missing: name the one where packets to {common.service.address} arrive"
        )
    run = Run(services, form, prometheus or common.prometheus, length_ns)
    if measured:
        run.measure(apply, read or [], speed_of(speed))
    else:
        run.steer()
