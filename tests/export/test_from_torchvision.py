"""Networks of torchvision bring the recipe of the weights that fit them."""

from __future__ import annotations

import pytest

pytest.importorskip("torchvision", reason="torchvision is not installed: its networks are its own")

from edgeopt.export.from_torch import recipe_of_torchvision
from edgeopt.export.network import NetworkInput


def test_a_network_of_torchvision_is_known_by_its_parameters() -> None:
    from torchvision import models

    inputs = [NetworkInput("images", (1, 3, 224, 224))]
    recipe, notes = recipe_of_torchvision(models.squeezenet1_1(), "torchvision.models", "squeezenet1_1", inputs)
    assert recipe is not None
    assert (recipe.task, recipe.preprocess.crop_from, recipe.preprocess.mean) == (
        "classification",
        256,
        (0.485, 0.456, 0.406),
    )
    assert len(recipe.class_names) == 1000
    assert "random weights" in notes[0].detail
    other, notes = recipe_of_torchvision(models.squeezenet1_1(num_classes=7), "nets", "net", inputs)
    assert (other, notes) == (None, ())
