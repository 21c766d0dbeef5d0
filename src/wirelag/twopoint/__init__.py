"""What two points have in common: alignment, direction, spans of time, references."""
