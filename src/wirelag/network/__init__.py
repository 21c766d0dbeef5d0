"""The network as a whole: routers, links, segments, and what to measure where."""
