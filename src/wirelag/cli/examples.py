"""What the help of every command opens with: examples, each with what it is for. A test parses them all."""

from collections.abc import Iterable
from typing import Final

Example = tuple[str, str]  # a line for a shell, and what it is for

EXAMPLES: Final[dict[str, tuple[Example, ...]]] = {
    "info": (
        ("wirelag info capture.pcap", "what is in it, and which commands can measure it"),
        ("wirelag info monday/*.pcap.gz", "several captures: each one, and all together"),
        ("tcpdump -i eth0 -c 1000 -w - | wirelag info -", "packets from a pipe"),
    ),
    "rtt": (
        ("wirelag rtt capture.pcap", "delay to the server and to the client"),
        ("wirelag rtt capture.pcap --by server --html page.html", "which server is slow, with charts"),
        ("wirelag rtt capture.pcap --sla 'server.p99<50ms'", "exit code 3 if p99 is 50 ms or more"),
    ),
    "response": (
        ("wirelag response capture.pcap", "latency of every server"),
        ("wirelag response mirror.pcap --server 10.1.0.1:443", "one server, from one direction alone"),
        ("wirelag response capture.pcap --exchanges all.csv", "every request with its response"),
    ),
    "oneway": (
        ("wirelag oneway here.pcap there.pcap", "delay and loss between two points"),
        ("wirelag oneway a.pcap b.pcap c.pcap --interval 10s", "two segments, every 10 seconds"),
        ("wirelag oneway here.pcap there.pcap --by destination", "which destinations wait"),
    ),
    "cut": (
        ("wirelag cut here.pcap --direction '10.0.0.0/8>' -o here.syn", "a few kilobytes that stand for these packets"),
        ("wirelag cut a.pcap --direction '10.0.0.0/8>' --interval 10s -o a.syn", "the same for every 10 seconds"),
        ("wirelag oneway here.syn there.syn", "compare with the other point's file"),
    ),
    "flows": (
        ("wirelag flows behind.pcap", "every flow, by the reference packets in the capture"),
        ("wirelag flows behind.pcap --upstream before.pcap", "by packets that both captures hold"),
        ("wirelag flows behind.pcap --by destination --sla 'mean<5ms'", "which destinations wait too long"),
    ),
    "marking": (
        ("wirelag marking here.pcap there.pcap", "the lowest bit of the DSCP is the colour"),
        ("wirelag marking here.pcap there.pcap --field dscp:2 --period 10s", "another bit, and a known period"),
        ("sudo wirelag marking eth0 eth1 --duration 60s --period 10s --in-kernel", "live, through this host"),
    ),
    "report": (
        ("wirelag report captures/", "wirelag-report/index.html: all of them, worst first"),
        ("wirelag report monday/ tuesday/ --port 443 -o pages", "a part of their traffic"),
        ("wirelag report captures/ --sla 'server.p99<50ms'", "exit code 3 if any breaks it"),
    ),
    "telemetry": (
        ("wirelag telemetry capture.pcap", "delays of hops (IOAM), loss of QUIC connections"),
        ("wirelag telemetry capture.pcap --timestamps ptp", "routers write nanoseconds"),
        ("wirelag telemetry capture.pcap --every-port --port 8443", "QUIC on a port of its own"),
    ),
    "path": (
        ("wirelag path network.json captures/", "which hop adds the delay, from captures at routers"),
        ("wirelag path network.json AB.json BC.json --html path.html", "from reports of segments, with charts"),
        ("wirelag path network.json captures/ --from A --to D", "one path"),
    ),
    "plan": (
        ("wirelag plan network.json --upgrade 5", "the five routers to measure at first"),
        ("wirelag plan network.graphml --upgrade 10 --html plan.html", "the same with charts"),
        ("wirelag plan network.json --upgrade 5 --write-agents agents/", "settings for their agents"),
    ),
    "watch": (
        ("wirelag watch eth0 rtt", "round-trip delay, now"),
        ("wirelag watch eth0 response --by server", "response latency of every server"),
        ("wirelag watch eth0 rtt --prometheus 127.0.0.1:9464", "the same for Prometheus"),
    ),
    "stamp": (
        ("wirelag stamp reflect 10.0.0.1 --allow 10.0.0.0/8", "answer test packets of these networks"),
        ("wirelag stamp send 10.0.0.1", "100 packets to a router or to the line above"),
        ("wirelag stamp send 10.0.0.1 --count 1000 --every 10ms --format json", "more of them, for programs"),
    ),
    "agent": (
        ("wirelag agent agent.toml", "measure, until it is stopped"),
        ("wirelag agent agent.toml --check", "try settings, collector and token, and print the plan"),
        ("wirelag agent --point A --interface eth0 --collector https://noc:8321", "without a file"),
    ),
    "collect": (
        ("wirelag collect collect.toml", "receive, store and serve"),
        ("wirelag collect collect.toml --check", "try the settings; nothing is changed"),
        ("wirelag collect collect.toml --forget OLD", "forget an agent that is gone"),
    ),
    "balance": (
        ("wirelag balance --config balance.toml", "balance, until it is stopped"),
        ("wirelag balance --config balance.toml --dry-run", "measure, and only print the weights"),
        ("wirelag balance --config balance.toml -r capture.pcap --dry-run", "weights from a capture"),
    ),
    "compare": (
        ("wirelag compare before.json after.json", "what got slower, by more than chance"),
        ("wirelag compare before.json after.json --exit-code", "for scripts: exit code 3 if anything did"),
        ("wirelag compare before.json after.json --format json", "for programs"),
    ),
    "simulate": (
        ("wirelag simulate -o capture.pcap --truth truth.parquet", "traffic with known delays"),
        ("wirelag simulate --points 2 --loss 1% -o up.pcap -o down.pcap", "one path, seen at both ends"),
        ("wirelag simulate --queue 0.7 -o before.pcap -o behind.pcap", "a busy queue"),
    ),
    "score": (
        ("wirelag score report.json truth.parquet", "errors of the mean, deviation and quantiles"),
        ("wirelag score report.json truth.parquet --leg server", "those of one leg"),
        ("wirelag score report.json truth.parquet --format json", "for programs"),
    ),
    "doctor": (
        ("wirelag doctor", "what works for this user"),
        ("sudo wirelag doctor", "what works for root"),
        ("wirelag doctor --format json", "for programs"),
    ),
}
_SLOW: Final = {  # a parameter that makes a command exit with 3, and what this means
    "sla": "an agreement (--sla) does not hold, or cannot be shown to",
    "exit_code": "something got slower (--exit-code)",
}


def examples_of(command: str) -> tuple[Example, ...]:
    """The examples of a command."""
    return EXAMPLES[command]


def exits_of(parameters: Iterable[str]) -> list[tuple[str, str]]:
    """The exit codes of a command with these parameters, and what they mean."""
    return [
        ("0", "done; warnings are on standard error"),
        ("2", "a file or an option is wrong; standard error says which"),
        *(("3", _SLOW[one]) for one in parameters if one in _SLOW),
        ("70", "a fault of wirelag itself; WIRELAG_DEBUG=1 shows where"),
        ("130", "stopped with Ctrl-C"),
    ]
