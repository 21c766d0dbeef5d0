"""The options of two-point methods, shared by `oneway` and `cut`: estimators, packet ids, delimiters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from wirelag.cli.options import METHOD, one_of, ranged, size_of

if TYPE_CHECKING:
    from wirelag.estimators.finecomb import Finecomb
    from wirelag.estimators.join import Join
    from wirelag.estimators.lda import Lda
    from wirelag.estimators.rda import Rda
    from wirelag.packets.addresses import Direction as Way
    from wirelag.packets.batch import PacketId
    from wirelag.packets.grouping import Grouping
    from wirelag.packets.intervals import Delimiters

IDS = "Which packets are the same"
MOST_BANKS: Final = 8
GROUPS: Final = ("flow", "source", "destination", "prefix", "dscp")
_BY: Final = {"source": "client", "destination": "server"}  # a packet's source is what rtt calls the client

Direction = Annotated[
    str | None,
    typer.Option(
        "--direction",
        metavar="SRC>DST",
        help="Packets from SRC to DST alone; each an address, a network, or nothing.",
        rich_help_panel="Which packets",
    ),
]
Nat = Annotated[
    bool, typer.Option("--nat", help="Addresses and ports change in between: leave them out.", rich_help_panel=IDS)
]
Prefix = Annotated[
    int,
    typer.Option("--prefix", metavar="BYTES", help="Bytes of payload that tell packets apart.", rich_help_panel=IDS),
]
EstimatorName = Annotated[
    str,
    typer.Option(
        "--estimator",
        metavar="join|lda|finecomb|rda",
        help="join: every packet, exact. The others: from what few kilobytes tell.",
        rich_help_panel=METHOD,
    ),
]
Rows = Annotated[
    int | None,
    typer.Option("--rows", metavar="N", help="Rows of lda (of all banks) and finecomb.", rich_help_panel=METHOD),
]
Losses = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="SHARES", help="lda, finecomb: loss to tune banks for, 0.1%,5% say.", rich_help_panel=METHOD
    ),
]
PerInterval = Annotated[
    int | None,
    typer.Option("--packets-per-interval", metavar="N", help="lda: packets to tune banks for.", rich_help_panel=METHOD),
]
Banks = Annotated[
    int, typer.Option("--banks", metavar="K", help="rda: banks (2 as in the paper, or 3, 4).", rich_help_panel=METHOD)
]
NoCheck = Annotated[
    bool, typer.Option("--no-check", help="rda: without the check field, as in the paper.", rich_help_panel=METHOD)
]
Buckets = Annotated[
    int | None,
    typer.Option(
        "--buckets", metavar="N", help="rda: in all; default: what is needed (cut: 1023).", rich_help_panel=METHOD
    ),
]
Rateless = Annotated[
    bool, typer.Option("--rateless", help="rda: coded symbols until it decodes.", rich_help_panel=METHOD)
]
Deviation = Annotated[
    str,
    typer.Option(
        "--deviation",
        metavar="rows|collapse",
        help="Between rows, or the papers' collapse of rows.",
        rich_help_panel=METHOD,
    ),
]
Tail = Annotated[
    int,
    typer.Option(
        "--tail", metavar="N", help="Packets whose times are kept for quantiles (not join).", rich_help_panel=METHOD
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="join, rda: for ids and times.", rich_help_panel=METHOD)
]
Seed = Annotated[int, typer.Option("--seed", metavar="S", help="Of all coins.", rich_help_panel=METHOD)]
CutBy = Annotated[
    str | None,
    typer.Option(
        "--cut",
        metavar="packets|clock",
        help="Where intervals end: lda at packets both points see (default), others by the clock.",
        rich_help_panel=METHOD,
    ),
]
ControlPort = Annotated[
    int | None,
    typer.Option(
        "--control-port", metavar="PORT", help="Intervals end at control packets to it.", rich_help_panel=METHOD
    ),
]


def direction_of(text: str) -> Way:
    """The direction, or a usage error."""
    from wirelag.packets.addresses import Direction as Way

    try:
        return Way.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--direction") from None


def packet_id_of(nat: bool, prefix: int, seed: int) -> PacketId:
    """What packet ids are made of."""
    from wirelag.packets.batch import PacketId

    if not 0 <= prefix <= 64:
        raise typer.BadParameter("goes from 0 to 64", param_hint="--prefix")
    return PacketId(flow=not nat, prefix=prefix, seed=seed)


def estimator_of(
    name: str,
    *,
    rows: int | None,
    loss: str | None,
    packets: int | None,
    banks: int,
    no_check: bool,
    buckets: int | None,
    rateless: bool,
    deviation: str,
    tail: int,
    memory: str,
    seed: int,
) -> Join | Lda | Finecomb | Rda:
    """The estimator that the options ask for."""
    one_of(name, ("join", "lda", "finecomb", "rda"), "--estimator")
    one_of(deviation, ("rows", "collapse"), "--deviation")
    size = size_of(memory, "--memory")
    ranged(rows, 2, 1 << 24, "--rows")
    ranged(banks, 2, 4, "--banks")
    ranged(buckets, banks, 1 << 26, "--buckets")
    ranged(tail, 1, 1 << 24, "--tail")
    ranged(seed, 0, (1 << 64) - 1, "--seed")
    ranged(packets, 1, 1 << 40, "--packets-per-interval")
    ranged(size, 1 << 10, 1 << 37, "--memory")
    if name == "join":
        from wirelag.estimators.join import Join

        return Join(size, seed)
    if name == "lda":
        return _lda(rows, loss, packets, deviation, tail, seed)
    if name == "finecomb":
        from wirelag.estimators.finecomb import Finecomb
        from wirelag.estimators.lda import tuned

        every = rows or 1024
        shift = tuned(packets or 1_000_000, _shares(loss)[-1:], every)[0] if loss else 0
        return Finecomb(every, shift, min(every, 4096), deviation, tail, seed)  # type: ignore[arg-type]
    from wirelag.estimators.rda import Rda

    return Rda(banks, buckets, not no_check, rateless, deviation=deviation, tail=tail, memory=size, seed=seed)  # type: ignore[arg-type]


def _lda(rows: int | None, loss: str | None, packets: int | None, deviation: str, tail: int, seed: int) -> Lda:
    from wirelag.estimators.lda import Lda, tuned

    every = rows or 1024
    shifts = Lda().shifts
    if loss is not None or packets is not None:
        losses = _shares(loss or "0.1%,5%")
        shifts = tuned(packets or 1_000_000, losses, max(1, every // len(losses)))
    return Lda(max(2, every // len(shifts)), shifts, deviation, tail, seed)  # type: ignore[arg-type]


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(share_of(part, "--loss") for part in text.split(","))
    if len(shares) > MOST_BANKS:
        raise typer.BadParameter(f"has more than {MOST_BANKS} shares", param_hint="--loss")
    return shares


def share_of(text: str, option: str) -> float:
    """A share such as 1% or 0.01, or a usage error."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise typer.BadParameter(f"{text!r} is not a share: write 1% or 0.01", param_hint=option)
    return share


def delimiters_of(
    estimator: Join | Lda | Finecomb | Rda,
    interval_ns: int | None,
    cut_by: str | None,
    port: int | None,
    packets: int | None,
) -> Delimiters | None:
    """How intervals of so many packets are delimited: None means by the clock."""
    from wirelag.packets.intervals import Delimiters

    if cut_by is not None:
        one_of(cut_by, ("packets", "clock"), "--cut")
    if estimator.name != "lda":
        if cut_by == "packets" or port is not None:
            raise typer.BadParameter("only lda is cut at packets; the others need not be", param_hint="--cut")
        return None
    if interval_ns is None and (cut_by is not None or port is not None):
        raise typer.BadParameter("cuts intervals, and there are none without --interval", param_hint="--cut")
    if port is not None and cut_by == "clock":
        raise typer.BadParameter("cuts at packets: leave out --cut clock", param_hint="--control-port")
    ranged(port, 1, 65535, "--control-port")
    if interval_ns is None or cut_by == "clock":
        return None
    return Delimiters(interval_ns, Delimiters.bits_for(packets) if packets else 10, estimator.seed, port)


def grouping_of(by: str | None, ipv4_prefix: int, ipv6_prefix: int, most: int) -> Grouping | None:
    """The classes of traffic that the options ask for."""
    from wirelag.packets.grouping import Grouping

    ranged(ipv4_prefix, 0, 32, "--ipv4-prefix")
    ranged(ipv6_prefix, 0, 128, "--ipv6-prefix")
    ranged(most, 1, 1 << 20, "--most-groups")
    if by is None:
        return None
    one_of(by, GROUPS, "--by")
    return Grouping(_BY.get(by, by), ipv4_prefix, ipv6_prefix, most)  # type: ignore[arg-type]
