"""What the clocks of two points differ by."""
