"""The messages between agents and the collector; no I/O."""
