"""The options of two-point methods, shared by `oneway`, `cut` and `path`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Final

from wirelag.cli.options import METHOD, replace_parameter
from wirelag.cli.parser import Declared, Option
from wirelag.units import size_bytes

IDS = "Packet ids"

Direction = Annotated[
    str | None,
    Option(
        "--direction",
        metavar="SRC>DST",
        help="Only packets from SRC to DST; each an address, a network, or empty.",
        panel="Packets",
    ),
]
Nat = Annotated[bool, Option("--nat", help="Leave addresses and ports out: NAT changes them.", panel=IDS)]
Prefix = Annotated[int, Option("--prefix", metavar="BYTES", help="Payload bytes in packet ids.", panel=IDS)]


def _estimator(names: str, text: str) -> Any:
    return Annotated[str, Option("--estimator", metavar=names, help=text, panel=METHOD)]


EstimatorName = _estimator("join|lda|finecomb|rda", "join: every packet, exact. The others: from a few kilobytes.")
SmallEstimatorName = _estimator("lda|finecomb|rda", "What a few kilobytes are kept for.")
Rows = Annotated[
    int | None, Option("--rows", metavar="N", help="lda, finecomb: rows, in all banks together.", panel=METHOD)
]
Losses = Annotated[
    str | None,
    Option("--loss", metavar="SHARES", help="lda, finecomb: loss rates to tune for, such as 0.1%,5%.", panel=METHOD),
]
PerInterval = Annotated[
    int | None,
    Option("--packets-per-interval", metavar="N", help="lda: packets per interval to tune for.", panel=METHOD),
]
Banks = Annotated[
    int, Option("--banks", metavar="K", help="rda: number of banks (2 as in the paper, 3 or 4).", panel=METHOD)
]
NoCheck = Annotated[bool, Option("--no-check", help="rda: without the check field, as in the paper.", panel=METHOD)]
Buckets = Annotated[
    int | None,
    Option("--buckets", metavar="N", help="rda: number of buckets; default: as needed (cut: 1023).", panel=METHOD),
]
Rateless = Annotated[bool, Option("--rateless", help="rda: coded symbols until they decode.", panel=METHOD)]
Deviation = Annotated[
    str,
    Option(
        "--deviation",
        metavar="rows|collapse",
        help="Standard deviation from all rows, or from collapsed rows, as in the papers.",
        panel=METHOD,
    ),
]
Tail = Annotated[int, Option("--tail", metavar="N", help="Packets sampled for quantiles (not join).", panel=METHOD)]
Memory = Annotated[
    str, Option("--memory", metavar="SIZE", help="join, rda: memory for packet ids and times.", panel=METHOD)
]
Seed = Annotated[int, Option("--seed", metavar="S", help="Seed of all random choices.", panel=METHOD)]
CutBy = Annotated[
    str | None,
    Option(
        "--cut",
        metavar="packets|clock",
        help="Cut intervals at packets that both points see (lda's default), or by the clock.",
        panel=METHOD,
    ),
]
ControlPort = Annotated[
    int | None,
    Option("--control-port", metavar="PORT", help="Cut intervals at control packets to this port.", panel=METHOD),
]

_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "nat": (Nat, False),
    "prefix": (Prefix, 16),
    "estimator": (EstimatorName, "join"),
    "rows": (Rows, None),
    "loss": (Losses, None),
    "packets_per_interval": (PerInterval, None),
    "banks": (Banks, 3),
    "no_check": (NoCheck, False),
    "buckets": (Buckets, None),
    "rateless": (Rateless, False),
    "deviation": (Deviation, "rows"),
    "tail": (Tail, 2048),
    "memory": (Memory, "512MiB"),
    "seed": (Seed, 0),
    "cut": (CutBy, None),
    "control_port": (ControlPort, None),
}


def with_method(
    without: tuple[str, ...] = (), **others: tuple[Any, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a two-point method to a command, which gets them as one argument, `method`.

    `others` are options of its own in place of the usual ones.
    """
    options = [
        Declared(name, kind, default) for name, (kind, default) in (_OPTIONS | others).items() if name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def chosen(**given: Any) -> None:
            from wirelag.measure.methods import Method

            parts = {option.name: given.pop(option.name) for option in options}
            parts["memory"] = size_bytes(parts["memory"], "memory")
            command(**given, method=Method(**parts))

        return replace_parameter(chosen, command, "method", options)

    return decorate
