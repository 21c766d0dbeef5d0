"""Benchmarks of round-trip delay: reading a capture and measuring it, exactly and in a fridge."""

import subprocess
import sys
from pathlib import Path

from wirelag.capture.pcap import CaptureFile
from wirelag.estimators.fridge import Fridge, FridgeMeter
from wirelag.estimators.match import Match, MatchMeter
from wirelag.packets.interval import Interval
from wirelag.synopses.samples import Samples

FRIDGE = Fridge(("tcp",), slots=(1 << 16,), probabilities=(1.0,))
MATCH = Match(("tcp",))


def measured(path: Path, meter: MatchMeter | FridgeMeter) -> Samples:
    """Read a capture, decoding only what is needed, into a meter."""
    for batch in CaptureFile(str(path), packet_id=None):
        meter.observe(batch)
    return meter.cut(Interval(0, 1))


_MATCH_A_FILE = """
import re, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from rtt import MATCH, measured
measured(Path(sys.argv[1]), MATCH.meter("tap"))
fields = dict(re.findall(r"(\\w+):\\s+(\\d+) kB", open("/proc/self/status").read()))
print(int(fields["VmHWM"]) - int(fields["RssFile"]))
"""


def memory_of_matching(path: Path) -> int:
    """Peak private memory in bytes while matching a capture."""
    words = [sys.executable, "-c", _MATCH_A_FILE, str(path), str(Path(__file__).parent)]
    return int(subprocess.run(words, check=True, capture_output=True).stdout) * 1024
