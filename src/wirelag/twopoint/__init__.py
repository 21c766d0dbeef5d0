"""Shared parts of two-point methods: alignment, direction, time spans, references."""
