"""Sizes of which most values are multiples, in plain Python: a part of `pirate_auto.py`.

Follows the section "Sizes" of `docs/reference/pirate.md`.
"""

from dataclasses import dataclass

TRUSTED, MOST_VOTES = 8, 32


@dataclass
class Size:
    """A size of which values are multiples."""

    bytes: int = 0
    votes: int = 0

    def vote(self, value: int, least: int) -> str:
        """The fate of the size: "changed", "given up", or nothing."""
        if self.votes == 0:
            self.bytes, self.votes = value, 1
        elif value % self.bytes == 0:
            self.votes = min(self.votes + 1, MOST_VOTES)
        elif value >= least and self.bytes % value == 0:
            self.bytes, self.votes = value, 1
            return "changed"
        elif self.votes <= 2:
            self.votes = 0
            return "given up"
        else:
            self.votes -= 2
        return ""


@dataclass
class Mean:
    """A size, in 1/8 bytes, of which values are roughly multiples."""

    eighths: int = 0
    votes: int = 0

    def multiple(self, payload: int) -> int | None:
        """How many of it are in a payload, if that can be trusted."""
        p, mean = 8 * payload, self.eighths
        j = (p + mean // 2) // mean if mean else 0
        if j > 0 and 16 * abs(p - j * mean) <= min(j, 4) * mean:
            self.votes = min(self.votes + 1, MOST_VOTES)
            if j == 1:
                self.eighths += (p - mean) >> 3
            return j if self.votes >= TRUSTED else None
        if p < mean or self.votes <= 2:
            self.eighths, self.votes = p, 1
        else:
            self.votes -= 2
        return None


def believed(votes: int, is_so: bool, cost: int) -> int:
    return min(votes + 1, MOST_VOTES) if is_so else max(votes - cost, 0)
