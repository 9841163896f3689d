"""A repair is one file: what a search tries, tells and makes again comes from there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from small_nets import frames, mobile

from edgeopt.steps.quantize import repairs
from edgeopt.steps.quantize.repairs import Repair, all_repairs
from edgeopt.steps.quantize.search.decisions import make_again
from edgeopt.steps.quantize.search.decisions_file import from_plain, to_plain
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Int8Rules

OURS = ["rescaling", "gptq", "smoothquant", "bias_correction", "equalization", "fitted_silu"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    offered = {repairs.__name__: {"towards": "fixture_repair"}}
    monkeypatch.setattr(registry, "_installed", lambda package: offered.get(package, {}))
    registry.names_in.cache_clear()
    yield
    registry.names_in.cache_clear()


def test_ours_are_found_by_their_files_in_their_order():
    assert sorted(all_repairs()) == sorted(OURS)
    assert [one.order for one in all_repairs().values()] == sorted(one.order for one in all_repairs().values())
    assert all(isinstance(one, Repair) for one in all_repairs().values())


def test_a_variant_tells_its_repairs_in_their_order_whatever_was_asked_first():
    variant = Variant().repaired(fitted_silu=frozenset({"a"}), smoothquant=0.5).repaired(gptq=True)
    assert str(variant) == "int8 qdq, rounded with inputs, smoothed by 0.5, 1 SiLU as fitted HardSwish"
    assert variant.repaired(gptq=False, smoothquant=0.0, fitted_silu=frozenset()) == Variant()


def test_a_repair_of_another_package_is_tried_told_and_made_again(installed: None) -> None:
    found = search_int8(
        mobile(), frames(mobile()), Int8Rules(), agreement=lambda _: 1.0, speed=lambda _: 1.2, least_agreement=0.5
    )
    tried = {one.name: one for one in found.attempts if "towards zero" in one.name}
    assert {name.partition("towards zero ")[2].split(",")[0] for name in tried} == {"by 1", "by 2"}
    plain = next(one for one in found.attempts if one.name == "int8 qdq")
    for one in tried.values():
        assert one.outcome.model.data != plain.outcome.model.data
        again = from_plain(json.loads(json.dumps(to_plain(one.decisions))))
        assert make_again(mobile(), again).model.data == one.outcome.model.data
