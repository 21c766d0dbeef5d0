"""What a user is told when something cannot be done: one line, no traceback."""


class WirelagError(Exception):
    """One clear line that names the file, the place and the way out; the command line exits with 2."""
