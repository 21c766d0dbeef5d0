"""Pseudorandom numbers that follow from what they belong to: a retransmission carries the same bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def scramble(*words: npt.NDArray[Any] | int) -> Words:
    """Mix integers into 64 bits, each with the rounds of splitmix64."""
    mixed: Words = np.zeros(1, np.uint64)
    for word in words:
        mixed = (mixed ^ np.asarray(word).astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
