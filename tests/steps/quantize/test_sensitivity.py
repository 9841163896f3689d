from __future__ import annotations

from small_nets import detector, frames

from edgeopt.steps.quantize.api import open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.grids.affine import make_affine
from edgeopt.steps.quantize.keep_float.sensitivity import sensitivities_db
from edgeopt.system.declared.target import Int8Rules


def test_a_coarse_grid_on_one_tensor_makes_it_the_most_sensitive() -> None:
    model = detector()
    findings = study(model, open_graph(model), frames(model), Int8Rules())
    names = [name for name in findings.affines if name.startswith("mul_")][:4]
    coarse = {**findings.affines, names[2]: make_affine(-500.0, 500.0)}
    found = sensitivities_db(model, names, coarse, list(frames(model, 2)))
    assert next(iter(found)) == names[2]
    assert sorted(found) == sorted(names)
    assert list(found.values()) == sorted(found.values())


def test_a_tensor_that_no_node_reads_is_left_out() -> None:
    model = detector()
    output = model.outputs[0].name
    assert sensitivities_db(model, [output], {output: make_affine(0.0, 1.0)}, list(frames(model, 1))) == {}
