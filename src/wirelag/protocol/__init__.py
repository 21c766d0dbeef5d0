"""What agents and the collector say to each other; no I/O."""
