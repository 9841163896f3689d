"""Placement by a target's rules, where its toolchain is not here: each node, the reason, the mend, the border."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
from fixture_models import GELU, GELU_NUMBERS, activation, conv_batchnorm, model, numbers

from edgeopt.steps.compile._partition_svg import draw_partition
from edgeopt.steps.compile._placement import CPU, FLOAT32, OPSET, STATIC, check_rules, explain_placement
from edgeopt.system.declared.target import find_target

SVG = "http://www.w3.org/2000/svg"
V73 = find_target("qualcomm-htp-v73")
ABSENT = replace(V73, name="imagined-npu", executor="no_such_engine", package="imagined-compiler")


def erf_between(opset: int = 20):
    return activation("a = Relu(x) [bad] e = Erf(a) y = Neg(e)", opset=opset)


def test_where_the_toolchain_is_absent_the_rules_judge_and_the_verdict_says_so():
    found = explain_placement(conv_batchnorm(), ABSENT)
    assert found.verdict == "all 2 nodes on the NPU (by rule; not compiled: imagined-compiler)"
    assert found.not_compiled == "imagined-compiler"


def test_a_refused_node_has_its_reason_and_the_copies_around_it_are_counted():
    found = explain_placement(erf_between(), ABSENT)
    assert [(one.node, one.op, one.provider) for one in found.refused] == [("bad", "Erf", CPU)]
    assert found.refused[0].reason == "the target has no Erf"
    assert found.verdict.startswith("NPU 2, CPU 1: Erf x1; 2 copies")


def test_the_rewrite_that_mends_a_node_is_named():
    gelu = activation(f"{GELU} m = Mul(x, a) y = Mul(m, half)", opset=20, **GELU_NUMBERS)
    found = explain_placement(gelu, ABSENT)
    assert set(found.mends.values()) == {"fuse_gelu"}
    assert "Erf x1 (-> fuse_gelu)" in found.verdict


def test_a_rewrite_that_the_target_does_not_ask_for_mends_nothing():
    gelu = activation(f"{GELU} m = Mul(x, a) y = Mul(m, half)", opset=20, **GELU_NUMBERS)
    assert explain_placement(gelu, replace(ABSENT, rewrites=())).mends == {}


def test_free_shapes_are_refused_and_mended_by_fixing_them():
    free = model("free (float[n,8] x) => (float[n,8] y) { y = Relu(x) }")
    found = explain_placement(free, ABSENT)
    assert found.refused[0].reason == "the shape of 'x' is not fixed"
    assert set(found.mends.values()) == {STATIC}
    assert not explain_placement(free, replace(ABSENT, static_only=False)).refused


def test_double_precision_is_refused_and_mended_by_float32():
    wide = model("wide (double[2,8] x) => (double[2,8] y) { y = Relu(x) }")
    found = explain_placement(wide, ABSENT)
    assert found.refused[0].reason == "'x' is float64"
    assert set(found.mends.values()) == {FLOAT32}


def test_too_many_dimensions_are_refused():
    deep = model("deep (float[1,1,1,1,2,8] x) => (float[1,1,1,1,2,8] y) { y = Relu(x) }")
    assert check_rules(deep, V73)[0].reason == "'x' has 6 dimensions, more than 5"


def test_an_opset_out_of_range_is_refused():
    old = activation("y = Relu(x)", opset=9)
    assert check_rules(old, V73)[0].reason == "opset 9 is not 11 to 24"
    assert set(explain_placement(old, ABSENT).mends.values()) == {OPSET}


def test_the_picture_shows_every_node_and_names_the_refused():
    drawn = ElementTree.fromstring(draw_partition(explain_placement(erf_between(), ABSENT)))
    cells = drawn.findall(f"{{{SVG}}}rect")
    colours = {cell[0].text: cell.get("fill") for cell in cells}
    assert len(cells) == 3
    assert colours["Erf bad"] != colours["Relu " + next(name for name in colours if "Relu" in name)[5:]]
    assert any("Erf bad: the target has no Erf" in (one.text or "") for one in drawn.findall(f"{{{SVG}}}text"))


def test_a_target_without_rules_refuses_nothing():
    target = find_target("cpu-x86-vnni")
    assert all(not one.reason for one in check_rules(erf_between(), target))


def test_an_engine_that_is_here_is_asked():
    found = explain_placement(conv_batchnorm(), replace(find_target("cpu-x86-vnni"), threads=1))
    assert found.not_compiled == ""
    assert found.verdict.startswith("all ")
    assert found.verdict.endswith("on the CPU")


def test_the_model_itself_is_not_touched():
    before = conv_batchnorm()
    data = before.proto.SerializeToString(deterministic=True)
    explain_placement(before, ABSENT)
    assert before.proto.SerializeToString(deterministic=True) == data


def test_unused_numbers_of_a_model_do_not_count_as_nodes():
    before = activation("y = Relu(x)", spare=numbers(4))
    assert np.prod([len(check_rules(before, V73))]) == 1
