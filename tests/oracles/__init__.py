"""The papers and laws in plain Python, packet by packet: the tests' oracle, never a fallback."""
