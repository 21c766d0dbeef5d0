"""Mergeable state: what a meter's `cut` yields, and what travels between points."""
