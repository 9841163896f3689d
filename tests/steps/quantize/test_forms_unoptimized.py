"""Faults that forms once had, judged with the engine's optimizations off against the float model so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_nets import form_faults
from onnx import TensorProto, helper
from small_nets import ALL, HERE, Net, frames
from unoptimized import answers_apart, answers_here, error_ratio

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, open_graph, quantize
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.patterns import limits
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.steps.quantize.spatial import repeats_of, resize_factors
from edgeopt.steps.simplify import simplify

CASES = ("bf16_weights", "clip_dynamic", "if_captures", "mixed_scale_head", "resize_fpn", "stale_value_info")
ERRS = ("layernorm_keepdims0", "norm_scale_widens")
"""Those whose float model the engine's optimizer spoils or refuses, so that no form can be judged behind it."""
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def rows(folder: Path, model: Model, count: int = 16) -> list[Tensors]:
    """A few of the samples that calibrate: their first axis counts them where the input has no batch."""
    held = np.load(folder / "calib.npz")
    ranks = {one.name: len(one.shape) for one in model.inputs}
    return [
        {key: held[key][i] if held[key].ndim == ranks[key] + 1 else held[key][i : i + 1] for key in held.files}
        for i in range(count)
    ]


def fresh(folder: Path) -> tuple[list[Tensors], list[Tensors]]:
    """Inputs that calibration has not seen, and what the engine answers with all optimizations off."""
    held = np.load(folder / "fresh.npz")
    inputs: dict[str, dict[str, Any]] = {}
    expected: dict[str, dict[str, Any]] = {}
    for key in held.files:
        number, _, name = key.partition(".")
        side, name = (expected, name.removeprefix("out.")) if name.startswith("out.") else (inputs, name)
        side.setdefault(number, {})[name] = held[key]
    return list(inputs.values()), [expected[number] for number in inputs]


@pytest.mark.parametrize("name", [*CASES, *ERRS])
def test_every_form_of_a_case_answers_as_the_unoptimized_engine_does(name: str, data: Path) -> None:
    folder = data / "cases" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    model = load_model(folder / f"{name}.onnx")
    inputs, expected = fresh(folder)
    simple = simplify(model, {}, inputs[:2], float16=False)
    fused = fuse(simple.model, inputs[:2])
    assert not [one for one in (*simple.notes, *fused.notes) if one.kind == "warning"]
    findings = study(fused.model, open_graph(fused.model), rows(folder, model), HERE)
    made = [make_variant(fused.model, findings, HERE, first_variant(form))[0] for form in Form]
    integer = [one.model.data for one in made]
    answers = answers_apart([fused.model.data, *integer], inputs, "none")
    answers += answers_apart(integer, inputs) if name not in ERRS else []
    assert error_ratio(expected, answers[0]) < 1e-4
    most = 0.2 if name in ERRS else 0.1
    assert max(error_ratio(expected, one) for one in answers[1:]) < most, answers
    assert any("INT8 covers 0 of" not in str(one.notes) for one in made)


def branches(*between: tuple[str, dict[str, Any]]) -> Model:
    """A net whose If reads, in both branches, what ops make of an early layer."""
    net = Net()
    early = held = net.op("Relu", net.conv("x", 3, 16, 3))
    for op, attributes in between:
        held = net.op(op, held, *([early] if op == "Add" else []), **attributes)
    limit = net.constant("limit", np.float32(0))
    is_bright = net.op("Greater", net.op("ReduceMean", "x", keepdims=0), limit)

    def branch(op: str) -> Any:
        made = helper.make_tensor_value_info(f"{op}_inside", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, [held], [made.name])], op, [], [made])

    chosen = net.op("If", is_bright, then_branch=branch("Neg"), else_branch=branch("Abs"))
    late = net.op("Relu", net.conv(chosen, 16, 16, 3))
    side = net.op("Relu", net.conv(net.op("Relu", net.conv(early, 16, 16, 3)), 16, 16, 3))
    return net.model(net.conv(late, 16, 8), net.conv(side, 16, 8), name="branches")


WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    "between", [(), (("Identity", {}),), (("MaxPool", WINDOW),), (("Add", {}), ("Identity", {}))], ids=str
)
def test_what_a_branch_reads_stays_in_float_and_ends_no_engine(between: Any) -> None:
    model = branches(*between)
    inputs = list(frames(model, 3))
    expected = answers_here(model.data, inputs)
    findings = study(model, open_graph(model), inputs, HERE)
    made = [make_variant(model, findings, HERE, first_variant(form))[0] for form in (Form.QDQ, Form.NHWC, Form.INPUTS)]
    for answer in answers_apart([one.model.data for one in made], inputs):
        assert error_ratio(expected, answer) < 0.25, answer
    for one in made:
        assert any("branches of If" in note.detail for note in one.notes)
        assert "INT8 covers 0 of" not in str(one.notes)


def resized(attributes: dict[str, Any], factors: tuple[float, ...], *, by_sizes: bool = False) -> Model:
    net = Net(size=28)
    x = net.op("Relu", net.conv("x", 3, 16, 3, stride=2))
    x = net.op("Relu", net.conv(x, 16, 16, 3))
    if by_sizes:
        large = net.op("Resize", x, "", "", net.constant("sizes", np.array(factors, np.int64)), **attributes)
    else:
        large = net.op("Resize", x, "", net.constant("scales", np.array(factors, np.float32)), **attributes)
    x = net.op("Relu", net.conv(large, 16, 16, 3))
    return net.model(net.conv(x, 16, 8), name="resized")


@pytest.mark.parametrize("form", [Form.NHWC, Form.INPUTS])
@pytest.mark.parametrize(
    ("place", "rounding", "factors"),
    [
        ("asymmetric", "floor", (1, 1, 2.05, 1.6)),
        ("asymmetric", "ceil", (1, 1, 2, 2)),
        ("half_pixel", "round_prefer_floor", (1, 1, 3, 2)),
        ("half_pixel", "round_prefer_ceil", (1, 1, 0.45, 0.77)),
        ("align_corners", "floor", (1, 1, 2.05, 3)),
        ("pytorch_half_pixel", "round_prefer_floor", (1, 1, 2.05, 2.5)),
    ],
)
def test_a_resize_takes_the_same_pixels(form: Form, place: str, rounding: str, factors: tuple[float, ...]) -> None:
    how = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
    assert_same(resized(how, factors), form)


def test_a_resize_to_sizes_takes_the_same_pixels() -> None:
    for sizes in ((1, 16, 28, 28), (1, 16, 27, 31), (1, 16, 6, 39)):
        assert_same(resized(NEAREST, sizes, by_sizes=True), Form.NHWC)  # scales made of 31 / 14 cut it to 30


def assert_same(model: Model, form: Form, *, most: float = 0.12) -> None:
    """A form of a model lies no farther from it than rounding takes it."""
    inputs = list(frames(model, 3))
    made = quantize(model, inputs, HERE, form=form).model
    assert error_ratio(answers_here(model.data, inputs), answers_here(made.data, inputs)) < most


def test_the_factors_of_a_resize_are_those_that_are_written() -> None:
    cut = Graph.from_model(resized(NEAREST, (1, 1, 2.05, 2)))
    cut.infer_shapes()
    (node,) = cut.nodes("Resize")
    assert resize_factors(cut, node) == pytest.approx((1, 1, 2.05, 2))  # though 14 became 28 in both
    assert repeats_of(node, (1, 1, 2.05, 2)) is None
    assert repeats_of(node, (1, 1, 2.0, 3.0)) == (2, 3)


def limited(op: str) -> Model:
    """A net with a limit that is computed of the picture itself."""
    net = Net()
    top = net.op("ReduceMean", net.op("Abs", "x"), keepdims=0)
    x = net.op("Relu", net.conv("x", 3, 16, 3))
    x = net.conv(x, 16, 16, 3)
    low = net.constant("low", np.float32(-0.5))
    inputs = {"Clip": [x, low, top], "Clip without a low end": [x, "", top], "Min": [x, top], "Max": [x, top]}[op]
    x = net.conv(net.op(op.partition(" ")[0], *inputs), 16, 16, 3)
    return net.model(net.conv(net.op("Relu", x), 16, 8), name="limited")


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC, Form.INPUTS])
@pytest.mark.parametrize("op", ["Clip", "Clip without a low end", "Min", "Max"])
def test_a_limit_that_is_computed_still_limits(op: str, form: Form) -> None:
    assert_same(limited(op), form)


def test_a_computed_limit_is_no_absent_one() -> None:
    graph = Graph.from_model(limited("Clip without a low end"))
    assert limits(graph, graph.nodes("Clip")[0]) is None
    net = Net()
    graph = Graph.from_model(net.model(net.op("Clip", "x", "", net.constant("high", np.float32(6)))))
    assert limits(graph, graph.nodes("Clip")[0]) == (-np.inf, 6)


@pytest.mark.parametrize("name", ALL)
def test_no_form_of_a_small_net_is_off_by_more_than_rounding(name: str) -> None:
    model = ALL[name]()
    inputs = list(frames(model, 4))
    assert not list(form_faults(model, inputs, answers_here(model.data, inputs)))
