"""One module per question, and the one loop that drives meters."""
