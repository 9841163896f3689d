"""Models that NPUs trip over: each is placed after an automatic rewrite, or refused with the node and the reason."""

from __future__ import annotations

import npu_models
import numpy as np
import pytest
from fixture_models import adapt
from npu_models import frames

from edgeopt.errors import UnsupportedError
from edgeopt.executors.qnn import EXECUTOR, PROVIDER
from edgeopt.steps.compile._numbers import check_numbers, compile_model, options_for
from edgeopt.steps.compile._placement import CPU, explain_placement
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp
from edgeopt.system.declared.target import find_target

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

V73 = find_target("qualcomm-htp-v73")
PLACED = {
    "conv_relu": set(),
    "gelu_erf": {"fuse_gelu"},
    "dynamic_batch": set(),
    "double": {"make_float32"},
    "recurrent": set(),
    "transformer": {"fuse_gelu", "fuse_layernorm"},
}
REFUSED = {
    "bare_erf": ("Erf", r"Operators of type Erf are not supported"),
    "suppression": ("NonMaxSuppression", r"max_output_boxes_per_class must be provided"),
}


def adapted(name):
    model = getattr(npu_models, name)()
    shapes = {one.name: tuple(d if isinstance(d, int) else 1 for d in one.shape) for one in model.inputs}
    return adapt(model, V73, shapes, frames(model, 2))


@pytest.mark.parametrize("name", PLACED)
def test_after_its_rewrites_every_node_is_on_the_npu(name):
    outcome = adapted(name)
    assert PLACED[name] <= outcome.changes.keys()
    found = explain_placement(outcome.model, V73)
    assert found.verdict == f"all {len(found.nodes)} nodes on the NPU"
    assert found.copies == 0


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("form", ["fp16", "w8a8", "w8a16"])
def test_the_npu_computes_what_the_cpu_computes(name, form):
    model = adapted(name).model
    inputs = frames(model)
    made = model
    if form != "fp16":
        made = place_htp(model, study_htp(model, inputs, V73), V73, None if form == "w8a16" else frozenset()).model
    numbers = check_numbers(made, V73, inputs, model)
    assert numbers.device.sqnr_db > 25
    assert numbers.nodes > 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_nothing_mends_is_refused_with_its_reason(name):
    op, reason = REFUSED[name]
    model = adapted(name).model
    found = explain_placement(model, V73)
    assert [(one.op, one.provider) for one in found.refused] == [(op, CPU)]
    assert f"CPU 1: {op} x1;" in found.verdict
    with pytest.raises(UnsupportedError, match=rf"{op} .*{reason}"):
        EXECUTOR.open(model.data, options_for(V73))


def test_the_rewrite_that_mends_a_node_is_named():
    found = explain_placement(npu_models.dynamic_batch(), V73)
    assert found.verdict == "NPU 0, CPU 1: Conv x1 (-> fixed shapes); 0 copies"
    assert "shape" in found.refused[0].reason
    found = explain_placement(npu_models.double(), V73)
    assert found.verdict == "NPU 0, CPU 2: Conv x1 (-> float32), Relu x1 (-> float32); 0 copies"


def test_copies_over_the_border_are_counted():
    assert explain_placement(npu_models.bare_erf(), V73).copies == 2


@pytest.fixture(scope="module")
def quantized():
    model = adapted("gelu_erf").model
    inputs = frames(model)
    return place_htp(model, study_htp(model, inputs, V73), V73).model


@pytest.mark.parametrize("embed", [True, False])
def test_a_compiled_binary_is_one_node_and_computes_the_same(quantized, embed, tmp_path):
    inputs = frames(quantized, 2)
    made = compile_model(quantized, V73, tmp_path / "out" / "model.onnx", inputs, embed=embed)
    assert made.socs == ("43",)
    assert (made.binary is None) == embed
    assert made.size_bytes == (made.binary or made.file).stat().st_size > 1000
    session = EXECUTOR.open(made.file, options_for(V73))
    assert [(one.op, one.provider) for one in session.placement()] == [("EPContext", PROVIDER)]
    direct = EXECUTOR.open(quantized.data, options_for(V73))
    for one in inputs:
        np.testing.assert_array_equal(session.run(one)["y"], direct.run(one)["y"])
    session.close()
    direct.close()


def test_compiling_twice_gives_the_same_binary(quantized, tmp_path):
    inputs = frames(quantized, 1)
    made = [compile_model(quantized, V73, tmp_path / n / "model.onnx", inputs, embed=False) for n in ("a", "b")]
    assert made[0].sha256 == made[1].sha256


def test_one_binary_for_several_socs_names_them_and_says_that_it_was_not_loaded(quantized, tmp_path):
    made = compile_model(quantized, V73, tmp_path / "m" / "model.onnx", frames(quantized, 1), socs=("43", "57"))
    assert made.socs == ("43", "57")
    assert "not loaded" in made.notes[0].detail
    assert made.file.is_file()


@pytest.mark.parametrize("arch", ["v69", "v75", "v79", "v81"])
def test_every_newer_npu_takes_the_model_and_computes_the_same(quantized, arch):
    target = find_target(f"qualcomm-htp-{arch}")
    assert check_numbers(quantized, target, frames(quantized)).device.sqnr_db > 25
