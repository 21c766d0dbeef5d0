"""Which commands have an answer for packets, and why others have none: the one home of what `info` and hints say.

A survey says what there is, a trial what `rtt` and `response` found in it. Where a command has no answer, `Nothing`
says why, and what would help besides another command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from wirelag.measure.survey import TCP, TIMED
from wirelag.packets.batch import Flag, Kind
from wirelag.units import format_duration, many

if TYPE_CHECKING:
    from wirelag.measure.copies import Copies
    from wirelag.measure.survey import Survey
    from wirelag.measure.trial import Trial

FEW: Final = 10  # packets that make no capture
MOST: Final = 0.5  # share of packets that explains that there is nothing
ENOUGH_BYTES: Final = "capture at least 128 bytes of each (tcpdump -s 128)"
ENCRYPTED: Final = (Kind.ESP, Kind.WIREGUARD)
TIMED_KINDS: Final = (Kind.DNS, Kind.NTP, Kind.ICMP, Kind.QUIC)
TWO_POINTS: Final = "measure one-way delay between two points (`oneway`)"
_HELPS: Final = {"too_few": "capture for longer", "paced": TWO_POINTS, "multicast": TWO_POINTS}


class Applicability(NamedTuple):
    """Whether a command can measure what was captured, and why; `sure` if it was tried on all packets."""

    command: str
    applies: bool
    why: str
    sure: bool = True


class Nothing(NamedTuple):
    """Why a command finds nothing, and what would help."""

    why: str
    helps: str = ""


def verdicts(
    survey: Survey,
    trial: Trial,
    common: float | None = None,
    apart: str | None = None,
    copies: Copies | None = None,
    inside: tuple[Survey, Trial] | None = None,
) -> list[Applicability]:
    """What can be measured.

    `common` is the largest share of packets that two of the captures have in common; `apart` says why `oneway`
    cannot compare these two; it is empty if it can, and None if that was not tried. `copies` are two captures that
    `rtt` and `response` do not read as one. `inside` is what was found inside tunnels, if that was tried. `telemetry`
    and `marking` are named only if packets carry what they read.
    """
    between = _oneway(common, apart, copies)
    found = [_rtt(survey, trial), _response(survey, trial)]
    if inside:
        found = [_inside(survey, *pair) for pair in zip(found, (_rtt(*inside), _response(*inside)), strict=True)]
    if copies:
        found = [_one_at_a_time(one, copies) if one.applies else one for one in found]
    return [*found, between, _flows(survey, between), *_marked(trial, common, between)]


# ---- why there is nothing ----


def no_round_trip(survey: Survey) -> Nothing:
    """Why no request shows together with its response."""
    if hidden := _hidden(survey) or _few(survey):
        return hidden
    present = {kind: n for kind, n in survey.kinds.items() if n}
    if not any(kind in present for kind in (Kind.TCP, *TIMED_KINDS)):
        named = " and ".join(f"{n:,} {_name(kind)}" for kind, n in present.items())
        return Nothing(f"no TCP, DNS, NTP, ICMP or QUIC, only {named} packets")
    if present.get(Kind.QUIC, 0) >= MOST * sum(present.values()):
        what = many(present[Kind.QUIC], "QUIC packet")
        return Nothing(f"{what}, whose spin bit does not turn: nothing else of QUIC shows a round trip")
    seen = survey.conversations
    timed = seen.have(TCP) | seen.have(TIMED)
    both, every = seen.count(timed & seen.both_ways), _seen(seen.count(timed))
    if both:
        return Nothing(f"{_seen(both)} in both directions, but no request with its response", "capture for longer")
    if seen.count(timed & seen.client_only):
        return Nothing(f"{every} in one direction only", "capture where both directions pass")
    return Nothing(f"{every} from servers to clients only", "capture where requests pass, too")


def no_response(survey: Survey, trial: Trial) -> Nothing:
    """Why no response is timed."""
    if hidden := _hidden(survey):
        return hidden
    if {kind for kind, n in survey.kinds.items() if n} == {Kind.ICMP}:
        return Nothing("only ICMP, which has no servers")
    if trial.requests and (few := _few(survey)):
        return few
    return Nothing(trial.why_not, _HELPS.get(trial.reason, ""))


def _hidden(survey: Survey) -> Nothing | None:
    """What hides packets from every command, if most are hidden."""
    packets = sum(survey.kinds.values())
    if not packets:
        return Nothing("no IP packets")
    if (short := survey.flags[Flag.SHORT]) >= MOST * packets:
        return Nothing(f"{many(short, 'packet')} without full headers", ENOUGH_BYTES)
    encrypted = {kind: n for kind in ENCRYPTED if (n := survey.kinds[kind])}
    if sum(encrypted.values()) >= MOST * packets:
        named = " and ".join(f"{n:,} {_name(kind)}" for kind, n in encrypted.items())
        return Nothing(f"{named} packets are encrypted, and show no request", "capture where they are not encrypted")
    return None


def _few(survey: Survey) -> Nothing | None:
    packets = sum(survey.kinds.values())
    return Nothing(f"only {many(packets, 'packet')}", "capture for longer") if packets < FEW else None


def tunnelled(survey: Survey) -> str:
    """How many packets carry another one, if most do; empty if not."""
    carriers = survey.flags[Flag.TUNNEL]
    if not carriers or carriers < MOST * sum(survey.kinds.values()):
        return ""
    return f"{many(carriers, 'packet')} {'is' if carriers == 1 else 'are'} tunnelled"


def _name(kind: Kind) -> str:
    return {Kind.WIREGUARD: "WireGuard", Kind.OTHER: "other"}.get(kind, kind.name)


def _seen(conversations: int) -> str:
    return f"{many(conversations, 'conversation')} {'is' if conversations == 1 else 'are'} seen"


# ---- each command ----


def _one_at_a_time(found: Applicability, copies: Copies) -> Applicability:
    way_out = copies.way_out if copies.same_times else "measure one of them"
    return Applicability(found.command, False, f"{copies}: {way_out}", found.sure)


def _inside(survey: Survey, outside: Applicability, inside: Applicability) -> Applicability:
    """What was found outside tunnels; if that is nothing, what --tunnels finds."""
    if outside.applies or not inside.applies:
        return outside
    word = "yes" if inside.sure else "probably"
    return outside._replace(why=f"{tunnelled(survey)}; with --tunnels: {word}, {inside.why}")


def _rtt(survey: Survey, trial: Trial) -> Applicability:
    if not trial.delays:
        return Applicability("rtt", False, no_round_trip(survey).why, trial.whole)
    seen = survey.conversations
    tcp, others = seen.count(seen.both_ways & seen.have(TCP)), seen.count(seen.both_ways & seen.have(TIMED))
    parts = []
    if tcp:
        share = survey.flags[Flag.TIMESTAMPS] / survey.kinds[Kind.TCP]
        parts.append(
            f"{tcp:,} of {seen.count(seen.have(TCP)):,} TCP conversations ({share:.0%} of packets with timestamps)"
        )
    if others:
        names = ", ".join(kind.name for kind in TIMED_KINDS if survey.kinds[kind])
        parts.append(f"{others:,} of {names}")
    told = ", and ".join(parts) or f"{trial.delays:,} requests with their responses"
    return Applicability("rtt", True, f"seen in both directions: {told}")


def _response(survey: Survey, trial: Trial) -> Applicability:
    if not trial.timed:
        return Applicability("response", False, no_response(survey, trial).why, trial.whole)
    seen = survey.conversations
    one_way, both, all_of_them = seen.count(seen.client_only), seen.count(seen.both_ways), seen.count()
    told = f"seen in both directions: {both:,} of {all_of_them:,} conversations"
    if one_way > both:
        told = f"client->server only: {one_way:,} of {all_of_them:,} conversations"
    told += f"; {trial.timed:,} of {trial.servers:,} servers can be timed"
    missing = trial.servers - trial.timed
    told += f", {missing:,} cannot{', most of them' if len(trial.whys) > 1 else ''}: {trial.why_not}" if missing else ""
    return Applicability("response", True, told, trial.whole)


def _oneway(common: float | None, apart: str | None, copies: Copies | None) -> Applicability:
    if common is None:
        return Applicability("oneway", False, "one capture: add another of the same traffic from a second point")
    if copies and copies.same_times:
        why = f"{copies.one} and {copies.other} have packets in common at the same times: one capture, not two points"
        return Applicability("oneway", False, why)
    if copies and copies.translated:
        return Applicability("oneway", True, f"{copies}: use --nat", sure=False)
    if common < 0.01:
        return Applicability("oneway", False, f"the captures have {common:.1%} of their packets in common")
    if apart:
        return Applicability("oneway", False, apart)
    why = f"two captures have {common:.0%} of their packets in common"
    return Applicability("oneway", True, why, sure=apart is not None)


def _flows(survey: Survey, between: Applicability) -> Applicability:
    references = survey.kinds[Kind.STAMP]
    if references:
        return Applicability("flows", True, f"{references:,} STAMP reference packets", sure=False)
    if between.applies:
        why = "packets common to two captures can serve as reference packets"
        return Applicability("flows", True, why, sure=False)
    return Applicability("flows", False, "no STAMP reference packets (UDP port 862)")


def _marked(trial: Trial, common: float | None, between: Applicability) -> list[Applicability]:
    found, marks = [], trial.marks
    if marks is None:
        return []
    parts = [many(marks.traced, "packet") + " with a trace of IOAM"] if marks.traced else []
    parts += [many(marks.carrying, "direction") + " of QUIC with loss bits"] if marks.carrying else []
    if parts:
        found.append(Applicability("telemetry", True, ", and ".join(parts), trial.whole))
    if marks.colours:
        name, period_ns = next(iter(marks.colours.items()))
        told = f"the colour {name} changes every {format_duration(period_ns)}"
        told += "" if name == "dscp:0" else f" (--field {name})"
        if common is None:
            told += ", but one capture: add another of the same traffic from a second point"
        elif not between.applies:
            told += f", but {between.why}"
        found.append(Applicability("marking", between.applies, told, sure=False))
    return found
