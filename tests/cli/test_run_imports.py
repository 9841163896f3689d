"""`run` of a language model's bundle imports nothing that only makes or compares models: each costs the first token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgeopt.optimization.generation import optimize
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.run import Silence

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
NOT_FOR_ANSWERS = ("onnx", "onnx_ir", "ml_dtypes", "google.protobuf", "torch", "tokenizers", "cv2", "PIL")
RUN = """
import json, sys
from edgeopt.__main__ import main
sys.argv = ["edgeopt", "run", sys.argv[1], "--prompt", "import os", "--output-tokens", "2"]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted(sys.modules)))
"""
LOAD = """
import json, sys, edgeopt
next(iter(edgeopt.Runtime.load(sys.argv[1]).generate("import os")))
print(json.dumps(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lm")
    (folder / "short.txt").write_text((SHIPPED / "held_out.txt").read_text("utf-8")[:6500], "utf-8")
    options = LanguageOptions(
        prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, eval=str(folder / "short.txt"), processes=2
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "FORMS", ())
        report = optimize_language_model(
            "tiny_lm", target="cpu", out=folder / "out", options=options, listener=Silence()
        )
    assert report.bundle is not None
    return report.bundle


@pytest.mark.parametrize("program", [RUN, LOAD], ids=["run", "Runtime.load"])
def test_an_answer_imports_nothing_that_makes_models(bundle, program):
    done = subprocess.run(
        [sys.executable, "-c", program, str(bundle)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert "onnxruntime" in modules
    assert not modules & {*NOT_FOR_ANSWERS, "edgeopt.graph.model", "edgeopt.measurement.opening.right_optimizations"}
