"""The difference between the clocks of two points."""
