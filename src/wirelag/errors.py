"""The error that a user sees when something cannot be done: one line, no traceback."""


class WirelagError(Exception):
    """One clear line that names the file, the place and the way out; the command line exits with 2."""


class NoPacketsError(WirelagError):
    """A capture holds nothing to measure: a question that can have an empty result has one."""


class MissingExtraError(WirelagError):
    """Something needs packages that only an extra installs."""

    def __init__(self, what: str, needs: str = "the extra live", extra: str = "live") -> None:
        super().__init__(f"{what} needs {needs}: pip install 'wirelag[{extra}]'")


class SettingError(WirelagError, ValueError):
    """A setting has a value that it cannot have. The command line names its option, Python its argument."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}


def visible(text: str) -> str:
    r"""Text with its control characters spelled out: names of files must not steer a terminal.

    >>> print(visible("a\x1b[31m.pcap"))
    a\x1b[31m.pcap
    """
    return text.translate(_CONTROL)


def need_polars(what: str) -> None:
    """Raise one line that says how to get polars, unless it is there."""
    try:
        import polars  # noqa: F401
    except ImportError:
        raise MissingExtraError(what, "polars", "tables") from None
