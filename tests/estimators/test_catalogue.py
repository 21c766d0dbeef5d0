"""The catalogue of methods: names, abilities, and no module that compares names."""

import ast
from pathlib import Path

import pytest

from tests.support.places import ROOT
from wirelag.collector.tally import Tally
from wirelag.estimators.catalogue import NAMES, between_points, capabilities_of, crosses, estimator_class
from wirelag.estimators.protocol import Capabilities
from wirelag.measure import methods, plan

SOURCE = ROOT / "src" / "wirelag"
ROOMS = ("agent", "balance", "collector", "ebpf", "network", "protocol", "transport", "twopoint")
NOT_METHODS = {
    *("drive", "catalogue", "later", "matchers", "pirate_confidence", "protocol", "records", "__init__"),
    *("fridge_plan", "fridge_rows", "fridge_weights"),  # parts of one
    "loss_bits",  # it gives loss alone, no delay
}


def test_every_module_is_in_the_catalogue() -> None:
    modules = {path.stem for path in (SOURCE / "estimators").glob("*.py")}
    assert set(NAMES) == modules - NOT_METHODS


@pytest.mark.parametrize("name", NAMES)
def test_every_method_lists_its_abilities(name: str) -> None:
    kind = estimator_class(name)
    assert isinstance(kind.can, Capabilities)
    assert kind.can == capabilities_of(name)
    assert getattr(kind, "name", name) == name
    assert kind.can.one_sided == (kind.points == ("downstream",))
    assert hasattr(kind, "added") or not kind.can.delimited


@pytest.mark.parametrize("name", [name for name in NAMES if estimator_class(name).can.in_kernel])
def test_kernel_methods_have_a_program_of_their_name(name: str) -> None:
    assert (SOURCE / "ebpf" / f"{name}.py").exists()


def test_abilities() -> None:
    assert between_points(live=True) == ("lda", "finecomb", "rda", "rli")
    assert between_points(live=False) == ("join",)
    assert between_points(in_kernel=True) == ("lda",)
    assert between_points(second_round=True) == ("rda",)
    assert [name for name in NAMES if crosses(name)] == ["join", "lda", "finecomb", "rda"]


def test_an_unknown_name_is_reported() -> None:
    assert capabilities_of("tomorrow") is None
    assert capabilities_of(["rda"]) is None
    assert not crosses(None)
    with pytest.raises(ValueError, match="unknown estimator 'os'; known: match, "):
        estimator_class("os")


def test_stored_names_are_looked_up() -> None:
    assert [Tally(estimator=name).counts_sent for name in ("rli", "rda", "tomorrow")] == [False, True, True]


@pytest.mark.parametrize("path", [path for room in ROOMS for path in (SOURCE / room).glob("*.py")], ids=str)
def test_no_module_compares_the_name_of_a_method(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            words = {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)}
            assert not words & set(NAMES), f"{path}:{node.lineno}"


def test_options_offer_the_methods_of_the_catalogue() -> None:
    """The names are written again where `--help` must not import numpy."""
    assert set(methods.ESTIMATORS) == set(between_points(one_sided=False))
    assert set(plan.ESTIMATORS) == set(between_points(one_sided=False, live=True))
