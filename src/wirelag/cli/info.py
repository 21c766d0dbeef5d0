"""`wirelag info`: what is in a capture, and what can be measured from it."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wirelag.cli.options import Captures, End, Hosts, Nets, Ports, Protocols, Quiet, Start, Tunnels, make_filter
from wirelag.cli.progress import with_progress
from wirelag.errors import WirelagError
from wirelag.units import format_duration, format_size

if TYPE_CHECKING:
    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.measure.info import Survey, Verdict

LINKS = {
    0: "NULL", 1: "Ethernet", 9: "PPP", 12: "raw IP", 14: "raw IP", 50: "PPP in HDLC", 51: "PPPoE", 101: "raw IP",
    104: "Cisco HDLC", 108: "LOOP", 113: "Linux cooked (SLL)", 204: "PPP with direction", 228: "IPv4", 229: "IPv6",
    276: "Linux cooked (SLL2)",
}  # fmt: skip
SKIPPED = {
    "link_type": "of a link type that wirelag does not read",
    "not_ip": "not IP (ARP, LLDP, ...)",
    "cut": "cut before the end of the IP header",
    "malformed": "with an impossible IP header",
    "layers": "with too many tags, labels or tunnels",
    "no_timestamp": "without a usable timestamp",
}


def info(
    captures: Captures,
    hosts: Hosts = None,
    nets: Nets = None,
    ports: Ports = None,
    protocols: Protocols = None,
    start: Start = None,
    end: End = None,
    tunnels: Tunnels = False,
    output_format: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print it.")] = "table",
    quiet: Quiet = False,
) -> None:
    """Say what is in a capture and which wirelag commands can measure it, and why."""
    if output_format not in ("table", "json"):
        raise typer.BadParameter(f"{output_format!r} is not one of table, json", param_hint="--format")
    wanted = make_filter(hosts, nets, ports, protocols, start, end)

    from wirelag.capture.files import Capture
    from wirelag.capture.pcap import CaptureStatistics
    from wirelag.measure.info import Survey, common_share, verdicts
    from wirelag.packets.batch import PacketId

    several = len(captures) > 1
    total, statistics = Survey(), CaptureStatistics()
    files, ids, errors = [], [], []
    for path in captures:
        survey = Survey(with_ids=several)
        try:
            capture = Capture([path], filter=wanted, tunnels=tunnels, packet_id=PacketId() if several else None)
            for batch in with_progress(capture, quiet):
                survey.observe(batch)
        except WirelagError as error:
            errors.append(str(error))
            continue
        for line in capture.warnings:
            print(f"warning: {line}", file=sys.stderr)
        survey.conversations.settle()
        files.append(_of_file(capture, survey))
        ids.append(survey.ids)
        statistics = statistics + capture.statistics
        total.merge(survey)
    if files:
        common = max((common_share(a, b) for i, a in enumerate(ids) for b in ids[:i]), default=None)
        result = _facts(statistics, total) | {"commands": [_plain(verdict) for verdict in verdicts(total, common)]}
        if several:
            result["files"] = files
        if output_format == "json":
            print(json.dumps(result if several else files[0] | result, indent=2))
        else:
            _print_table(result, files)
    if errors:
        raise WirelagError("\n".join(errors))


def _of_file(capture: "Capture", survey: "Survey") -> dict[str, Any]:
    file = capture.files[0]
    about = {"file": file.name, "format": capture.statistics.format, "compression": file.compression or None}
    return about | _facts(capture.statistics, survey) | {"warnings": capture.warnings}


def _facts(statistics: "CaptureStatistics", survey: "Survey") -> dict[str, Any]:
    """What was counted, as the JSON has it."""
    from wirelag.packets.batch import Flag, Kind

    seen, tcp = survey.conversations, survey.kinds[Kind.TCP]
    both = seen.count(seen.both_ways)
    return {
        "packets": statistics.packets,
        "bytes": statistics.wire_bytes,
        "first": None if statistics.first_ns is None else statistics.first_ns / 1e9,
        "last": None if statistics.last_ns is None else statistics.last_ns / 1e9,
        "time_resolution": statistics.resolution_ns / 1e9,
        "backwards": statistics.backwards,
        "snaplen": statistics.snaplen,
        "snapped": statistics.snapped,
        "filtered": statistics.filtered,
        "skipped": statistics.skipped,
        "links": [{"type": t, "name": LINKS.get(t), "packets": n} for t, n in statistics.links.items()],
        "kinds": {kind.name.lower(): n for kind, n in survey.kinds.items() if n},
        "flags": {str(flag.name).lower(): n for flag, n in survey.flags.items() if n and flag is not Flag.REVERSE},
        "tcp_timestamps": survey.flags[Flag.TIMESTAMPS] / tcp if tcp else None,
        "conversations": seen.count(),
        "directions": {"both": both, "one": seen.count() - both, "client_only": seen.count(seen.client_only)},
    }


def _plain(verdict: "Verdict") -> dict[str, Any]:
    from wirelag.cli import COMMANDS

    missing = verdict.applies and verdict.command not in COMMANDS
    why = verdict.why + (" (the command is not in this version yet)" if missing else "")
    return {"command": verdict.command, "applies": verdict.applies, "why": why}


def _print_table(result: dict[str, Any], files: list[dict[str, Any]]) -> None:
    for facts in files:
        compression = f", {facts['compression']}" if facts["compression"] else ""
        print(f"{facts['file']} ({facts['format']}{compression})")
        _print_facts(facts)
    if len(files) > 1:
        print("both captures" if len(files) == 2 else f"all {len(files)} captures")
        _print_facts(result)
    print("what wirelag can measure here")
    for verdict in result["commands"]:
        print(f"  {'yes' if verdict['applies'] else 'no':<4} wirelag {verdict['command']:<9} {verdict['why']}")


def _print_facts(facts: dict[str, Any]) -> None:
    for name, text in (
        ("packets", f"{facts['packets']:,}, {format_size(facts['bytes'])} on the wire"),
        ("time", _time(facts)),
        ("captured", _captured(facts)),
        ("link", ", ".join(f"{link['name'] or link['type']} ({link['packets']:,})" for link in facts["links"])),
        ("filter", _filter(facts)),
        ("kinds", _kinds(facts)),
        ("flags", ", ".join(f"{n:,} {name}" for name, n in facts["flags"].items() if name != "timestamps")),
        ("tunnels", _tunnels(facts)),
        ("seen", _conversations(facts)),
        ("skipped", "; ".join(f"{n:,} {SKIPPED[reason]}" for reason, n in facts["skipped"].items())),
    ):
        if text:
            print(f"  {name:<9} {text}")


def _time(facts: dict[str, Any]) -> str:
    from datetime import UTC, datetime

    if facts["first"] is None:
        return ""
    try:
        first = datetime.fromtimestamp(facts["first"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        first = f"{facts['first']:,.0f} s since 1970"
    span, unit = (facts["last"] - facts["first"]) * 1e9, facts["time_resolution"] * 1e9
    text = f"{first}, for {format_duration(span)}, to {format_duration(unit)}"
    return text + (f"; goes back {facts['backwards']:,} times" if facts["backwards"] else "")


def _captured(facts: dict[str, Any]) -> str:
    if not facts["packets"]:
        return ""
    limit = f"at most {facts['snaplen']:,} bytes a packet; " if facts["snaplen"] else ""
    share = facts["snapped"] / facts["packets"]
    return limit + (f"{share:.0%} of packets are cut" if facts["snapped"] else "every packet is whole")


def _filter(facts: dict[str, Any]) -> str:
    passed = facts["packets"] - facts["filtered"] - sum(facts["skipped"].values())
    return f"{passed:,} packets pass it; what follows is of those alone" if facts["filtered"] else ""


def _kinds(facts: dict[str, Any]) -> str:
    texts = [f"{n:,} {name.upper()}" for name, n in sorted(facts["kinds"].items(), key=lambda item: -item[1])]
    if facts["tcp_timestamps"] is not None:
        texts.append(f"{facts['tcp_timestamps']:.0%} of TCP with timestamps")
    return ", ".join(texts)


def _tunnels(facts: dict[str, Any]) -> str:
    carriers = facts["flags"].get("tunnel", 0)
    return f"{carriers:,} packets carry another packet inside; --tunnels looks at that one" if carriers else ""


def _conversations(facts: dict[str, Any]) -> str:
    seen = facts["directions"]
    plural = "" if facts["conversations"] == 1 else "s"
    text = (
        f"{facts['conversations']:,} conversation{plural}: {seen['both']:,} in both directions, {seen['one']:,} in one"
    )
    return text + (f" ({seen['client_only']:,} client->server)" if seen["client_only"] else "")
