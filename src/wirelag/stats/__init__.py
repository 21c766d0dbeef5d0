"""Numbers only: distributions, moments, confidence intervals."""
