"""Programs inside the kernel: loading, attaching, reading what they counted."""
