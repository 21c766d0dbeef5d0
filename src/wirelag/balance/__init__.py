"""Balancing by latency: which backend new connections go to, and the share of the load that each gets."""
