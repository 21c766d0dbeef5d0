"""From columns to the bytes of frames; `kernels/sim_frame.h` writes them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.sim.packets import Packets
from wirelag.sim.traffic import Bools, Connections, Ints


@dataclass(frozen=True)
class Frames:
    """Frames in one buffer: frame i is `buffer[offset[i] : offset[i] + captured[i]]`."""

    time_ns: Ints
    buffer: npt.NDArray[np.uint8]
    offset: Ints
    captured: Ints
    wire: Ints


def build_frames(
    packets: Packets, connections: Connections, rows: Ints, time_ns: Ints, crossed: Bools, snaplen: int, seed: int
) -> Frames:
    """Build the frames of these rows, captured at these times; `crossed` ones are further along the path."""
    snaplen = min(snaplen, 2**32 - 1)
    return Frames(time_ns, *_kernels.sim_frames(packets, connections, rows, crossed, snaplen, seed))


def mark(frames: Frames, colours: Bools) -> None:
    """Set the lowest bit of the DSCP of these frames, which have none; IPv4's checksum follows."""
    at = frames.offset[colours & (frames.captured >= 14 + 12)] + 14
    version = frames.buffer[at] >> 4
    frames.buffer[at[version == 6] + 1] |= 0x40  # the class begins in the middle of a byte
    ipv4 = at[version == 4]
    frames.buffer[ipv4 + 1] |= 4
    sums = 0xFFFF - (frames.buffer[ipv4 + 10].astype(np.uint32) << 8 | frames.buffer[ipv4 + 11]) + 4
    sums = 0xFFFF - ((sums & 0xFFFF) + (sums >> 16))
    frames.buffer[ipv4 + 10], frames.buffer[ipv4 + 11] = sums >> 8, sums & 0xFF
