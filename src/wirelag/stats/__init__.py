"""Numbers only: distributions, moments, intervals of confidence."""
