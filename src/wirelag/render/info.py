"""What `wirelag info` prints."""

from __future__ import annotations

from typing import Any, Final

from wirelag.units import format_duration, format_size

SKIPPED: Final = {
    "link_type": "with an unsupported link type",
    "not_ip": "not IP (ARP, LLDP, ...)",
    "cut": "cut before the end of the IP header",
    "malformed": "with an impossible IP header",
    "layers": "with too many nested tags, labels or tunnels",
    "no_timestamp": "without a usable timestamp",
}


def table(result: dict[str, Any], files: list[dict[str, Any]]) -> list[str]:
    """Each file, all files together, and what can be measured."""
    lines = []
    for facts in files:
        compression = f", {facts['compression']}" if facts["compression"] else ""
        lines += [f"{facts['file']} ({facts['format']}{compression})", *_facts(facts)]
    if len(files) > 1:
        lines += ["both captures" if len(files) == 2 else f"all {len(files)} captures", *_facts(result)]
    lines.append("what wirelag can measure here")
    said = [_SAID[verdict["applies"], verdict["sure"]] for verdict in result["commands"]]
    width = max(4, *map(len, said))
    for word, verdict in zip(said, result["commands"], strict=True):
        lines.append(f"  {word:<{width}} wirelag {verdict['command']:<9} {verdict['why']}")
    return lines


_SAID: Final = {(True, True): "yes", (True, False): "probably", (False, True): "no", (False, False): "probably not"}


def _facts(facts: dict[str, Any]) -> list[str]:
    named = (
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
    )
    return [f"  {name:<9} {text}" for name, text in named if text]


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
    return text + (f"; time goes back {facts['backwards']:,} times" if facts["backwards"] else "")


def _captured(facts: dict[str, Any]) -> str:
    if not facts["packets"]:
        return ""
    limit = f"at most {facts['snaplen']:,} bytes per packet; " if facts["snaplen"] else ""
    share = facts["snapped"] / facts["packets"]
    return limit + (f"{share:.0%} of packets are cut" if facts["snapped"] else "every packet is whole")


def _filter(facts: dict[str, Any]) -> str:
    passed = facts["packets"] - facts["filtered"] - sum(facts["skipped"].values())
    return f"{passed:,} packets pass it; the lines below cover only those" if facts["filtered"] else ""


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
