from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BATCH_ROWS: int
BATCH_BYTES: int
MORE: int
FULL: int
BROKEN: int

def columns() -> list[tuple[str, str, int]]: ...
def decode_frame(
    frame: bytes,
    wire_length: int,
    link_type: int,
    tunnels: bool = False,
    fields: int = 15,
    prefix: int = 16,
    seed: int = 0,
) -> dict[str, int] | str: ...

class Reader:
    def __init__(
        self,
        *,
        tunnels: bool = False,
        fields: int = 15,
        prefix: int = 16,
        seed: int = 0,
        nets: Sequence[tuple[int, int, int, int]] = (),
        ports: Sequence[int] = (),
        protocols: Sequence[int] = (),
        from_ns: int = ...,
        to_ns: int = ...,
        relative: bool = False,
    ) -> None: ...
    def feed(
        self,
        data: npt.NDArray[np.uint8],
        start: int,
        stop: int,
        base: int,
        memory: npt.NDArray[np.uint8],
        row: int,
    ) -> tuple[int, int, int, int]: ...
    def statistics(self) -> dict[str, Any]: ...
