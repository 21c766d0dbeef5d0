"""Balancing by latency: which backend new connections go to, and how much of the load each one gets."""
