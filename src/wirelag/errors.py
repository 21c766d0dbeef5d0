"""The error that a user sees when something cannot be done: one line, no traceback."""


class WirelagError(Exception):
    """One clear line: what is wrong, where, and what to do. The command line exits with 2."""
