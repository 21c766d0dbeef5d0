"""Captures by their names: `a.pcap`, `b.pcapng.zst`, `ring.pcap07`."""

import re
from typing import Final

CAPTURE: Final = re.compile(r"\.(pcap|pcapng|cap|dmp)\d*(\.(gz|zst|xz))?$", re.IGNORECASE)
