"""Programs inside the kernel: loading, attaching, reading their counters."""
