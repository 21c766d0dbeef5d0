"""The network as a whole: routers, links, segments, what to measure where."""
