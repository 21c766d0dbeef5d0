"""Fixtures of several modules here."""

from tests.support.balancer_program import make

__all__ = ["make"]
