"""The settings tables in the reference pages equal the schemas, and each schema is valid."""

import pytest

from tests.support import settings_tables
from tests.support.settings_tables import BEGIN, FOLDER, PAGES, page
from wirelag.collector.following import Follow
from wirelag.collector.settings import Settings
from wirelag.collector.store import Retention
from wirelag.settings import Key, Schema


def _keys(schema: Schema) -> list[Key]:
    return [*schema.keys, *(key for _, keys in schema.tables.values() for key in keys)]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_settings_of_its_schema(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.count(BEGIN) == 1
    assert page(text, PAGES[name]) == text, "run make docs"


def test_a_stale_page_is_found() -> None:
    text = (FOLDER / "agent.md").read_text(encoding="utf-8")
    assert page(text.replace("`64MiB`", "`63MiB`", 1), PAGES["agent.md"]) == text
    assert settings_tables.main(["--check"]) == 0


@pytest.mark.parametrize("schema", PAGES.values(), ids=PAGES)
def test_every_default_can_be_read_and_every_setting_has_help(schema: Schema) -> None:
    names = [key.name for key in schema.keys]
    assert len(names) == len(set(names))
    for key in _keys(schema):
        key.value()
        assert key.help
        assert "\n" not in key.help


def test_defaults_of_the_collector_equal_those_of_its_parts() -> None:
    settings = Settings.of({"topology": "net.json", "follow": {}}, "here")
    assert settings.retention == Retention()
    assert settings.follow == Follow()
