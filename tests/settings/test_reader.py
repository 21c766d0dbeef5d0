"""The reader of settings: kinds and bounds, places of values, and one line for each problem."""

from typing import Any

import pytest

from wirelag.errors import WirelagError
from wirelag.settings import (
    ADDRESS,
    FLAG,
    RATE,
    SHARE,
    TEXT,
    Key,
    Kind,
    Schema,
    choice,
    duration,
    listed,
    named,
    number,
    size,
    whole,
)

SCHEMA = Schema(
    (
        Key("name", TEXT, None, "what it is called", "--name", required=True),
        Key("cut.every", duration("1ms", "1m"), "1s", "how often", "--every"),
        Key("cut.most", whole(1, 9), 3, "how many"),
    ),
    {"hosts": (2, (Key("name", TEXT, None, "its name"), Key("to", ADDRESS, None, "its address", required=True)))},
)


def problems(document: dict[str, Any]) -> list[str]:
    with pytest.raises(WirelagError) as caught:
        SCHEMA.read(document, "a.toml").check()
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (TEXT, "x", "x"),
        (FLAG, True, True),
        (SHARE, "0.5%", 0.005),
        (RATE, "8Mbps", 1_000_000),
        (ADDRESS, "2001:DB8::1", "2001:db8::1"),
        (whole(0, 3), 3, 3),
        (number(0, 3), 2.5, 2.5),
        (duration("1s", "2d"), "2d", 172_800 * 10**9),
        (size(), "1KiB", 1024),
        (choice("a", "b"), "b", "b"),
        (named("[a-z]+", "letters"), "ab", "ab"),
        (listed(whole(0, 3)), [1, 2], (1, 2)),
        (listed(whole(0, 3)), 1, (1,)),
    ],
)
def test_values_that_a_kind_reads(kind: Kind, value: Any, read: Any) -> None:
    assert kind.read(value) == read


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (TEXT, 5, "5 is not text"),
        (TEXT, " ", "is empty"),
        (FLAG, 1, "1 is neither true nor false"),
        (SHARE, "2", "'2' is not a share"),
        (RATE, "0bps", "'0bps' is out of range"),
        (ADDRESS, "here", "'here' is not an address"),
        (whole(0, 3), True, "True is not a whole number"),
        (whole(0, 3), 4, "4 is out of range: 0 to 3"),
        (number(0, 3), float("nan"), "nan is not a number"),
        (duration("1s"), "1ms", "1ms is out of range: at least 1s"),
        (duration("1s", "2s"), "1h", "1h is out of range: 1s to 2s"),
        (size("1KiB", "1MiB"), "1B", "1B is out of range: 1KiB to 1MiB"),
        (choice("a", "b"), "c", "'c' is not one of a, b"),
        (named("[a-z]+", "letters"), "A", "'A' is not a name: use letters"),
        (listed(whole(0, 3)), [1, 9], "9 is out of range"),
        (TEXT, ["x" * 999], "…"),
    ],
)
def test_values_that_a_kind_refuses(kind: Kind, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match="is ") as caught:
        kind.read(value)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


def test_values_and_defaults() -> None:
    settings = SCHEMA.read({"name": "x", "cut": {}, "hosts": [{"name": "h", "to": "::1"}]}, "a.toml")
    settings.check()
    assert (settings["name"], settings["cut.every"], settings["cut.most"]) == ("x", 10**9, 3)
    assert (settings.given("cut"), settings.given("cut.every")) == (True, False)
    assert [settings[at + "to"] for at in settings.rows("hosts")] == ["::1"]


def test_flags_win_and_errors_name_them() -> None:
    settings = SCHEMA.read({"name": "x", "cut": {"every": "2s"}}, "a.toml")
    settings.put_flags({"--every": "3s", "--name": None})
    settings.check()
    assert settings["cut.every"] == 3 * 10**9
    assert str(settings.wrong("cut.every", "no")) == "--every: no"
    assert str(settings.wrong("name", "no")) == "a.toml: name: no"
    assert settings.stated() == (
        "given: name = 'x', cut.every = '3s' (--every); all other settings have their defaults"
    )


def test_every_problem_is_a_line_with_its_place() -> None:
    assert problems(
        {"nmae": "x", "cut": {"every": 1, "zzz": 2}, "hosts": [{"name": "h", "to": "?"}, {"name": "i"}]}
    ) == [
        "a.toml: nmae: unknown setting; did you mean name?",
        'a.toml: cut.every: 1 is not text: write it in quotes, "like this"',
        "a.toml: cut.zzz: unknown setting; known: cut.every, cut.most",
        "a.toml: hosts.h.to: '?' is not an address: write 192.0.2.1 or 2001:db8::1",
        "a.toml: name (--name): is missing: what it is called",
        "a.toml: hosts.i.to: is missing: its address",
    ]
    assert problems({"name": "x", "a\nb": 3}) == ["a.toml: 'a\\nb': unknown setting; known: name, cut, hosts"]
    assert problems({"name": "x", "host": {"to": 1}}) == ["a.toml: host: unknown setting; did you mean hosts?"]
    assert problems({"name": "x", "cut": 3}) == ["a.toml: cut: is a table: write [cut]"]
    assert problems({"name": "x", "zzz": 3}) == ["a.toml: zzz: unknown setting; known: name, cut, hosts"]
    assert problems({"name": "x", "hosts": 3}) == ["a.toml: hosts: write [[hosts]] for each of them"]
    assert problems({"name": "x", "hosts": [{}]}) == ["a.toml: hosts: a table is empty: fill it in, or remove it"]
    assert problems({"name": "x", "hosts": [{"to": "::1"}] * 3}) == ["a.toml: hosts: 3 tables are too many: at most 2"]
