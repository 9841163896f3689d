"""An exact model of weights in blocks writes the same tokens in slots as alone, text by text where it needs pairs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import load_model, save_model
from edgeopt.runtime.availability import find_device
from edgeopt.runtime.decoding.batching import shared_model
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import Asked
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

SHIPPED = Path(__file__).parents[4] / "models" / "tiny_lm"
PROMPTS = ("import os\n", "def walk(top):\n    for", "class", "import os\n\n\ndef read(")
ASKED = Asked(40, ends=False, guesses=0)


def test_slots_of_an_exact_model_write_what_each_text_writes_alone(tmp_path, monkeypatch):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    save_model(make_weight_only(load_model(SHIPPED / "model.onnx"), 4, 128).model, tmp_path / "model.onnx")
    with open_language_model(tmp_path, 1)[0] as model:
        if model.sums is Sums.APART:
            pytest.skip("this processor's kernels sum pairs otherwise too")
        if model.sums is Sums.PAIRED:
            for takes_rows in (lambda *_: True, lambda *_: False):
                monkeypatch.setattr(shared_model, "takes_rows", takes_rows)
                with SharedModel(model, 2) as shared, pytest.raises(UnsupportedError, match="slots are not exact"):
                    shared.generate(PROMPTS[0], Asked(4, exact=True))
        monkeypatch.undo()
        exact = replace(ASKED, exact=True)
        alone = [[piece.token for piece in model.generate(prompt, exact)] for prompt in PROMPTS]
        with SharedModel(model, 4, chunk_tokens=3, exact=True) as shared:
            assert shared.is_together == (model.sums is Sums.ALIKE)
            answers = [shared.generate(prompt, ASKED) for prompt in PROMPTS]
            assert [[piece.token for piece in one] for one in answers] == alone


def test_slots_are_not_exact_where_one_grid_is_for_all_tokens_of_a_run(tmp_path):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    made = make_dynamic(load_model(SHIPPED / "model.onnx"), find_device("cpu").rules_here)
    save_model(made.model, tmp_path / "model.onnx")
    with open_language_model(tmp_path, 1)[0] as model:
        with pytest.raises(UnsupportedError, match="no answer of this model is exact"):
            SharedModel(model, 2, exact=True)
        with SharedModel(model, 2) as shared, pytest.raises(UnsupportedError, match="no answer of this model"):
            shared.generate(PROMPTS[0], Asked(4, exact=True))
