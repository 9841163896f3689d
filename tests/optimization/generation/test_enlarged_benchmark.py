"""The model that benchmarks enlarge: ONNX Runtime holds matrices that are alike once, as those of no real model are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

FILE = Path(__file__).parents[3] / "benchmarks" / "generation" / "enlarged.py"


def test_no_two_matrices_of_the_enlarged_model_are_alike(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("enlarged", FILE)
    assert spec is not None
    assert spec.loader is not None
    enlarged = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(enlarged)
    monkeypatch.setattr(enlarged, "INNER", 512)

    enlarged.write_large(tmp_path)

    stored = (tmp_path / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(stored[:8], "little")
    places = {name: entry["data_offsets"] for name, entry in json.loads(stored[8:begin]).items()}
    matrices = {name: stored[begin + first : begin + end] for name, (first, end) in places.items() if "_proj" in name}
    assert len(matrices) == 7 * enlarged.LAYERS
    assert len(set(matrices.values())) == len(matrices)
