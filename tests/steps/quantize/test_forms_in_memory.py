"""A search for INT8 holds no form of a model above 2 GB, and no second copy, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

SEARCHED = """
import json, sys
from pathlib import Path
import numpy as np
import edgeopt.graph.model as models
from edgeopt.graph.files.large_constants import kept_in
from edgeopt.graph.model import load_model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.machine.memory import give_back
from edgeopt.system.declared.target import Int8Rules

def held():
    give_back()
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(told["RssAnon"].split()[0]) * 1024

def made(model, findings):
    forms = [first_variant(one) for one in (Form.NHWC, Form.INPUTS, Form.DYNAMIC)]
    return [make_variant(model, findings, rules, one)[0].model for one in forms]

models._TWO_GB, rules = 1 << 20, Int8Rules()
path, folder = map(Path, sys.argv[1:])
model = load_model(path)
assert model.is_outside
frames = [{"x": np.random.default_rng(i).random((1, 1024), np.float32)} for i in range(4)]
findings = study(model, open_graph(model), frames, rules)
before = held()
inside = made(model, findings)
in_memory = held() - before
del inside
with kept_in(folder):
    before = held()
    outside = made(model, findings)
    in_files = held() - before
    sizes = [one.size_bytes for one in outside]
print(json.dumps({"in_memory": in_memory, "in_files": in_files, "sizes": sizes}))
"""
WIDTH, LAYERS = 1024, 24


def write_large(path: Path) -> None:
    """Write 96 MiB of weights beside a chain of matrices."""
    body = " ".join(f"m{i} = MatMul({f'r{i - 1}' if i else 'x'}, w{i}) r{i} = Relu(m{i})" for i in range(LAYERS))
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 13]> large (float[1, {WIDTH}] x) => (float[1, {WIDTH}] y) '
        f"{{ {body} y = Identity(r{LAYERS - 1}) }}"
    )
    drawn = np.random.default_rng(0).normal(0, np.sqrt(2 / WIDTH), (WIDTH, WIDTH)).astype(np.float32)
    weights = [onnx.numpy_helper.from_array(np.roll(drawn, i, axis=0), f"w{i}") for i in range(LAYERS)]
    proto.graph.initializer.extend(weights)
    onnx.save(proto, str(path), save_as_external_data=True, location="large.bin", size_threshold=0)


@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
def test_forms_of_a_large_model_take_files_in_place_of_memory(tmp_path: Path) -> None:
    write_large(tmp_path / "large.onnx")
    told = [sys.executable, "-c", SEARCHED, str(tmp_path / "large.onnx"), str(tmp_path / "forms")]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    weights = 4 * WIDTH**2 * LAYERS
    assert all(weights / 5 < one < weights / 3 for one in found["sizes"]), "all of them hold integers"
    assert found["in_memory"] > 0.8 * sum(found["sizes"]), "what is measured would show them"
    assert found["in_files"] < 0.25 * sum(found["sizes"])
