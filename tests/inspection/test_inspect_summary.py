"""`inspect` for a reader: a language model has two caches a layer, which are two lines and not sixty."""

from __future__ import annotations

from edgeopt.graph.tensors import TensorSpec
from edgeopt.inspection.inspect_summary import _folded


def cache(layer: int, part: str = "key", heads: int = 3) -> TensorSpec:
    return TensorSpec(f"past.{layer}.{part}", "float32", (1, heads, "past", 64))


def test_tensors_that_differ_in_a_number_alone_are_one_line():
    ids = TensorSpec("input_ids", "int64", (1, "n"))
    caches = [cache(layer, part) for layer in range(30) for part in ("key", "value")]
    assert _folded([ids, *caches]) == [
        str(ids),
        "past.(0-29).key float32 1x3xpastx64",
        "past.(0-29).value float32 1x3xpastx64",
    ]


def test_tensors_of_another_shape_or_with_gaps_are_told_as_they_are():
    few = [cache(0), cache(1), cache(2)]
    assert _folded(few) == [str(spec) for spec in few]
    mixed = [*(cache(layer) for layer in (0, 2, 3, 7)), cache(1, heads=1)]
    assert _folded(mixed) == ["past.(0,2,3,7).key float32 1x3xpastx64", "past.1.key float32 1x1xpastx64"]
    assert _folded([TensorSpec("a", "float32", ())]) == [str(TensorSpec("a", "float32", ()))]
