"""One op for each attention, where ONNX Runtime's transformer optimizer recognises it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from encoders import Encoder, encoder
from first_outputs import answers
from small_nets import ALL, frames

from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph
from edgeopt.steps._attention import fuse_attention, joins_attention
from edgeopt.system.declared.target import Target


def test_an_encoder_gets_one_op_an_attention_and_answers_the_same():
    model = encoder()
    seen = list(frames(model, 2))
    made = fuse_attention(model, seen)
    assert made.changes == {"attention": 2}
    assert "Softmax" not in made.model.op_counts
    assert made.model.op_counts["MatMul"] == 12  # the products with weights stay apart, so that they can be integers
    np.testing.assert_allclose(answers(made.model, seen), answers(model, seen), rtol=1e-3, atol=1e-4)
    require_valid(made.model.proto, "fused")
    graph = Graph.from_model(made.model)
    graph.infer_shapes()
    assert all(graph.shape(value) is not None for node in graph.nodes() for value in node.outputs)


@pytest.mark.parametrize("name", [name for name in ALL if name != "vision_transformer"])
def test_a_model_without_attention_comes_back_as_it_is(name):
    model = ALL[name]()
    made = fuse_attention(model, list(frames(model, 1)))
    assert made.model is model
    assert not made.changes
    assert not made.notes


def test_an_attention_of_another_form_stays_and_keeps_its_answers(monkeypatch):
    plain = Encoder.op

    def over_queries(self, op, *inputs, **attributes):
        return plain(self, op, *inputs, **({"axis": 2} if op == "Softmax" else attributes))

    monkeypatch.setattr(Encoder, "op", over_queries)
    model = encoder(depth=1)
    seen = list(frames(model, 2))
    made = fuse_attention(model, seen).model
    np.testing.assert_allclose(answers(made, seen), answers(model, seen), rtol=1e-3, atol=1e-4)


def test_python_is_as_it_was_and_the_tools_are_loaded_for_transformers_only():
    code = (
        "import sys; from encoders import encoder; from small_nets import ALL, frames\n"
        "from edgeopt.steps._attention import fuse_attention\n"
        "import edgeopt.steps.simplify\n"
        "def fuse(model): return fuse_attention(model, list(frames(model, 1))).changes\n"
        "fuse(ALL['residual']()); path, before = list(sys.path), set(sys.modules)\n"
        "changes = [fuse(encoder(depth=1)) for _ in range(2)]\n"
        "new = [one for one in set(sys.modules) - before if 'transformers' in one or one in ('float16', 'metrics')]\n"
        "print(changes[0] == changes[1] == {'attention': 1}, sys.path == path, new)"
    )
    folder = Path(__file__).parents[2] / "fixtures"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert shown.stdout.strip() == "True True []"


@pytest.mark.parametrize(
    ("executor", "provider", "expected"),
    [
        ("onnxruntime", "CPUExecutionProvider", True),
        ("onnxruntime", "CoreMLExecutionProvider", False),
        ("openvino", "CPU", False),
    ],
)
def test_only_onnx_runtime_on_a_cpu_gets_its_own_op(executor, provider, expected):
    assert joins_attention(Target("t", "cpu", executor, "", (provider,), ("fp32",))) is expected
