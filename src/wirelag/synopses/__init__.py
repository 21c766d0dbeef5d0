"""Mergeable state: the results of a meter's `cut`, which points exchange."""
