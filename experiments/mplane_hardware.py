"""mPlane, section V: what an LDA costs in a chip, for given link rates.

The paper: a counter of 72 bits (32 for packets, 40 for the sum of timestamps); 1,000 of them take 0.13 mm^2 of SRAM in
a 65-nm process, the logic beside them 0.1 mm^2. This gives the area for any number of bits. The link determines the
bits of a counter: it must count the packets of an interval that may fall into one row, and sum their delays; sums may
wrap, because only differences of sums matter. Packets have 250 bytes, as in the paper.
"""

import math

from traces import arguments, show

from wirelag.network.classes import framed

RATES_GBPS = (1, 10, 40, 100, 400, 800)
PACKET_BYTES = 250
COUNTERS = 1024
SAMPLED = 0.5  # at most one packet in two goes into a row, as in the paper's example of banks
LONGEST_NS = 100_000_000  # the longest delay that must fit: a queue of 100 ms
MM2_PER_BIT = 0.13 / (1000 * 72)
LOGIC_MM2 = 0.1
CHIP_MM2 = 100.0  # the low end: 10 mm x 10 mm
CLOCK_HZ = 400e6
PORTS = (8, 16, 48)


def bits_of(rate_gbps: float, interval_s: float) -> tuple[int, int, int]:
    """Packets of an interval, and the bits of a row's count and sum.

    A row gets its share of the packets, plus six standard deviations.
    """
    packets = round(rate_gbps * 1e9 / 8 / PACKET_BYTES * interval_s)
    share = packets * SAMPLED / COUNTERS
    most = share + 6 * math.sqrt(share) + 1
    return packets, math.ceil(math.log2(most)), math.ceil(math.log2(most * LONGEST_NS))


def main() -> None:
    arguments(__doc__)
    bits = COUNTERS * 72
    area = bits * MM2_PER_BIT
    doubled = 2 * (2 * area + LOGIC_MM2)  # counters twice as wide, all at both ends
    rows = [
        ("counters", COUNTERS, 1000),
        ("bits", bits, 72_000),
        ("SRAM, mm2", area, 0.13),
        ("logic, mm2", LOGIC_MM2, 0.1),
        ("both, mm2", area + LOGIC_MM2, 0.23),
        ("wider, at both ends, mm2", doubled, "< 1"),
        ("share of a chip of 100 mm2, %", 100 * doubled / CHIP_MM2, "< 1"),
        ("packets of 1,500 bytes an interval", math.ceil(bits / 8 / 1472), 7),
        ("control traffic at 1 s, kbps", 8 * framed(bits // 8) / 1e3, 72),
    ]
    show("one LDA of 1,024 counters", ("", "ours", "paper"), rows)
    table: list[tuple[object, ...]] = []
    for rate in RATES_GBPS:
        for interval_s in (0.1, 1.0):
            packets, count_bits, sum_bits = bits_of(rate, interval_s)
            wire = framed(COUNTERS * (count_bits + sum_bits) // 8)
            table.append(
                (
                    f"{rate} Gbps, {interval_s:g} s",
                    packets,
                    count_bits,
                    sum_bits,
                    COUNTERS * (count_bits + sum_bits) * MM2_PER_BIT + LOGIC_MM2,
                    8 * wire / interval_s / 1e3,
                    100 * 8 * wire / interval_s / (rate * 1e9),
                    CLOCK_HZ / (packets / interval_s),
                )
            )
    header = ("link", "packets", "bits, count", "bits, sum", "mm2", "control, kbps", "% of the link", "cycles a packet")
    show(
        "bits that a counter needs, so that a delay of 100 ms fits; at most one packet in two is counted", header, table
    )
    table = []
    for ports in PORTS:
        pairs = ports * ports
        memory = 2 * 2 * pairs * bits
        table.append((ports, pairs, memory / 8e6, memory * MM2_PER_BIT, 8 * pairs * framed(bits // 8) / 1e6))
    title = "a router that measures every pair of ports: at both ends, two copies"
    show(title, ("ports", "pairs", "MB", "SRAM, mm2", "control at 1 s, Mbps"), table)


if __name__ == "__main__":
    main()
