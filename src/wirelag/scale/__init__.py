"""Work on many machines: where tasks run, and what they have finished."""
