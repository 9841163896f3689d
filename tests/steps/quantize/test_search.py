from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from encoders import encoder
from small_nets import ALL, HERE, Net, detector, frames, mobile, residual_batchnorm

from edgeopt.errors import NoteKind, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, open_graph, quantize
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime, LayerTimes, time_layers
from edgeopt.steps.quantize.keep_float.layers import fastest_front
from edgeopt.steps.quantize.patterns import WEIGHTED, key
from edgeopt.steps.quantize.search.attempt import Attempt, SearchResult, for_labels, ranked
from edgeopt.steps.quantize.search.proposals import form_order, untried_forms, with_float, with_front
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules


def cosine(model: Model, source: Model) -> float:
    one, other = (EXECUTOR.open(each.data, SessionOptions()) for each in (model, source))
    cosines = []
    for frame in frames(source, 2, 9):
        a, b = (next(iter(session.run(frame).values())).ravel() for session in (one, other))
        cosines.append(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    return float(np.mean(cosines))


def searched(model: Model, seed: int = 0) -> SearchResult:
    """Return what a search finds where every form is as fast as another."""
    return search_int8(
        model,
        frames(model),
        HERE,
        agreement=lambda one: cosine(one, model),
        speed=lambda one: 1.2,
        forms=(Form.QDQ, Form.NHWC),
        seed=seed,
    )


def test_the_seed_decides_which_positions_the_scores_rest_on() -> None:
    model = mobile()
    first, again, other = (searched(model, seed).scores_db for seed in (0, 0, 1))
    assert first == again
    assert first.keys() == other.keys()
    assert first != other


def attempt(speed: float, agreement: float) -> Attempt:
    return Attempt("one", Outcome(mobile(), {}), agreement, speed)


def test_valid_attempts_come_first_the_fastest_of_them_ahead() -> None:
    slow, fast, wrong, slower = attempt(1.1, 0.99), attempt(1.5, 0.9), attempt(2.0, 0.5), attempt(0.9, 0.999)
    assert ranked([slow, wrong, slower, fast], 0.85) == (fast, slow, slower, wrong)


def test_equal_speeds_are_ordered_by_agreement() -> None:
    one, other = attempt(1.300, 0.90), attempt(1.305, 0.95)
    assert ranked([one, other], 0.85)[0] is other


def test_speeds_that_noise_cannot_tell_apart_are_ordered_by_agreement_and_then_by_who_came_first() -> None:
    """1.309 and 1.311 lie on two sides of a step of 0.02, wherever steps begin; groups begin at the fastest."""
    first, second, third = attempt(1.309, 0.95), attempt(1.311, 0.95), attempt(1.27, 0.97)
    assert ranked([first, second, third], 0.85) == (third, first, second)
    assert ranked([second, first, third], 0.85) == (third, second, first)
    assert ranked([attempt(1.2, 0.99), first], 0.85)[0] is first


def test_a_layer_that_is_faster_in_float_in_some_rounds_only_stays_on_integers() -> None:
    model = mobile()
    graph, border = open_graph(model), BorderTime(1.0, 0.0)

    def round_of(*values: tuple[int, int]) -> LayerTimes:
        return LayerTimes(times_of(graph, list(values)), border)

    sure, unsure = (10, 500), [(100, 110), (110, 100)]
    rounds = tuple(round_of(sure, unsure[i], *[(500, 10)] * 8) for i in range(2))
    together = replace(round_of(sure, unsure[0], *[(500, 10)] * 8), rounds=rounds)
    first = {key(graph.nodes(*WEIGHTED)[0])}
    for make in (with_float, with_front):
        assert make(model, first_variant(Form.NHWC), together).front == first


def times_of(graph: object, values: list[tuple[int, int]]) -> dict[str, LayerTime]:
    return {key(node): LayerTime(*pair) for node, pair in zip(graph.nodes(*WEIGHTED), values, strict=False)}


def test_the_float_front_ends_where_the_saved_time_is_largest() -> None:
    graph = open_graph(mobile())
    front, saved = fastest_front(graph, times_of(graph, [(10, 50), (10, 5), (10, 40), (50, 10), (50, 10), (50, 10)]))
    assert front == set(graph.nodes(*WEIGHTED)[:3])
    assert saved == 65


def test_no_front_is_kept_where_integers_are_faster() -> None:
    graph = open_graph(mobile())
    assert fastest_front(graph, times_of(graph, [(50, 10)] * 7)) == (set(), 0)


def test_a_gain_below_the_resolution_of_the_profile_is_no_gain() -> None:
    graph = open_graph(mobile())
    assert fastest_front(graph, times_of(graph, [(1000, 1010)] + [(5000, 1000)] * 6)) == (set(), 0)


def test_every_layer_has_both_times() -> None:
    model = detector()
    frame = next(frames(model))
    twin = quantize(model, [frame], HERE, form=Form.NHWC).model
    times = time_layers(model, twin, frame, 1)
    assert len(times.layers) == len(open_graph(model).nodes(*WEIGHTED))
    assert all(one.float_ns >= 0 and one.integer_ns >= 0 for one in times.layers.values())
    assert times.border.of((1, 16, 32, 32)) >= times.border.of((1, 16, 8, 8)) >= 0


def test_the_search_reports_each_attempt_and_says_why_the_first_won() -> None:
    model, told = detector(), []
    found = search_int8(
        model,
        frames(model),
        HERE,
        agreement=lambda one: cosine(one, model),
        speed=lambda one: 1.5 if "QLinearConv" in one.op_counts else 1.1,
        forms=(Form.QDQ, Form.NHWC),
        on_attempt=told.append,
    )
    assert len(told) == len(found.attempts) >= 5
    best = found.attempts[0]
    assert "QLinearConv" in best.outcome.model.op_counts
    assert best.agreement > 0.99
    assert found.reason.startswith(f"{best.name}: about 1.50 times as fast as the float model. Its agreement is")
    assert "; int8 qdq (1.10 times as fast" in found.reason


def test_without_time_one_attempt_is_still_made() -> None:
    model = mobile()
    found = search_int8(model, frames(model), HERE, agreement=lambda one: 1.0, speed=lambda one: 2.0, time_limit_s=0.0)
    assert [one.name for one in found.attempts] == ["int8 qdq"]
    (note,) = [one for one in found.notes if one.kind is NoteKind.WARNING]
    assert note.detail == "the search ran out of time after 1 form"
    assert note.more.startswith("untried: ")
    assert any("rounded with inputs" in one for one in note.names)


def test_a_first_form_that_is_slower_than_another_engines_is_the_only_one() -> None:
    model = mobile()
    limits = {"agreement": lambda _: 1.0, "speed": lambda _: 2.0}
    assert len(search_int8(model, frames(model), HERE, **limits, least_speed=2.1).attempts) == 1
    assert len(search_int8(model, frames(model), HERE, **limits, least_speed=1.9).attempts) > 1


def test_where_grids_are_found_as_it_runs_the_first_of_both_forms_is_tried() -> None:
    model, forms = ALL["vision_transformer"](), (Form.QDQ, Form.DYNAMIC)

    def speed(made: Model) -> float:
        return 3.0 if "DynamicQuantizeLinear" in made.op_counts else 1.0

    limits = {"agreement": lambda _: 1.0, "speed": speed, "forms": forms}
    slow = search_int8(model, frames(model), HERE, **limits, least_speed=3.1)
    assert {one.name for one in slow.attempts} == {"int8 qdq", "int8 dynamic"}
    fast = search_int8(model, frames(model), HERE, **limits, least_speed=2.9)
    assert len(fast.attempts) > 2
    assert fast.attempts[0].name == "int8 dynamic"


def test_a_profile_of_integer_ops_without_found_grids_is_told_what_it_lacks() -> None:
    forms, products = (Form.QDQ, Form.NHWC), encoder(depth=1)
    (note,) = untried_forms(products, forms)
    assert note.hint.startswith('forms = ["qdq", "nhwc", "dynamic"] in [int8] tries it')
    assert not untried_forms(products, (*forms, Form.DYNAMIC))
    assert not untried_forms(products, (Form.QDQ,))
    assert not untried_forms(mobile(), forms)


def perceptron() -> Model:
    net = Net(size=8, channels=1)
    x = net.op("Tanh", net.op("Reshape", "x", net.constant("rows", np.array([8, 8]))))
    for i in range(3):
        weights = net.constant(f"w{i}", np.asarray(net.chance.normal(0, 1, (8, 8)), np.float32))
        x = net.op("Tanh", net.op("MatMul", x, weights))
    return net.model(x)


@pytest.mark.parametrize(("others", "leads"), [(1.5, False), (0.5, True)])
def test_a_form_whose_time_nobody_knows_ranks_as_one_as_fast_as_float(others: float, leads: bool) -> None:
    model = perceptron()

    def speed(made: Model) -> float | None:
        return None if "DynamicQuantizeLinear" in made.op_counts else others

    limits = {"agreement": lambda _: 1.0, "speed": speed, "forms": (Form.QDQ, Form.DYNAMIC)}
    attempts = search_int8(model, frames(model), HERE, **limits, least_speed=1.0).attempts
    assert (attempts[0].speed_ratio is None) == leads
    assert any(attempt.speed_ratio is None for attempt in attempts)


def test_no_form_is_tried_twice_under_two_names_nor_ranges_where_none_are_stored() -> None:
    model, forms = perceptron(), (Form.QDQ, Form.DYNAMIC)

    def speed(made: Model) -> float:
        return 3.0 if "DynamicQuantizeLinear" in made.op_counts else 1.5

    found = search_int8(model, frames(model), HERE, agreement=lambda _: 0.5, speed=speed, forms=forms)
    names = [one.name for one in found.attempts]
    assert len({one.outcome.model.fingerprint for one in found.attempts}) == len(names) > 3
    assert not [name for name in names if "dynamic" in name and "ranges" in name]
    assert not [one.detail for one in found.notes if "could not be made" in one.detail]


def test_grids_found_as_it_runs_are_for_models_of_products_alone() -> None:
    forms = (Form.QDQ, Form.NHWC, Form.DYNAMIC)
    assert form_order(ALL["vision_transformer"](), forms) == [Form.NHWC, Form.QDQ, Form.DYNAMIC]
    assert form_order(mobile(), forms) == [Form.NHWC, Form.QDQ]


def test_a_search_with_time_enough_leaves_nothing_untried() -> None:
    model = mobile()
    found = search_int8(model, frames(model), Int8Rules(), agreement=lambda one: 1.0, speed=lambda one: 2.0)
    assert not any("untried" in note.more for note in found.notes)


def test_a_form_that_is_slower_is_ranked_but_refused_in_words() -> None:
    model = mobile()
    found = search_int8(model, frames(model), HERE, agreement=lambda one: 0.5, speed=lambda one: 0.8)
    assert "not good enough" in found.reason
    assert any("islands below 20 dB" in one.name for one in found.attempts)


def test_a_form_that_cannot_run_is_named_and_the_others_are_still_tried() -> None:
    model = detector()

    def speed(one: Model) -> float:
        if "QLinearConv" in one.op_counts:
            raise RuntimeError("no kernel for QLinearConv\nand a long story")
        return 1.2

    found = search_int8(
        model, frames(model), HERE, agreement=lambda one: 0.99, speed=speed, forms=(Form.QDQ, Form.NHWC)
    )
    assert found.attempts
    assert not any("QLinearConv" in one.outcome.model.op_counts for one in found.attempts)
    (note,) = [note for note in found.notes if note.kind is NoteKind.WARNING]
    assert "could not be made: RuntimeError: no kernel for QLinearConv" in note.detail
    assert "long story" not in str(note)


def test_where_no_form_can_be_made_the_float_model_stays() -> None:
    model = mobile()

    def speed(one: Model) -> float:
        raise RuntimeError("no such kernel")

    found = search_int8(model, frames(model), HERE, agreement=lambda one: 1.0, speed=speed)
    assert not found.attempts
    assert found.reason.startswith(
        "The float model stays: no INT8 form of it could be made: RuntimeError: no such kernel"
    )
    assert "no such kernel" in str(found.notes)


def test_a_form_without_integers_is_no_candidate() -> None:
    model = mobile()
    found = search_int8(
        model, frames(model), Int8Rules(ops=("Softmax",)), agreement=lambda one: 1.0, speed=lambda one: 1.2
    )
    assert not found.attempts
    assert "every layer stays in float" in str(found.notes)
    assert "no INT8 form of it could be made: every layer stays in float" in found.reason


def test_all_that_labels_may_judge_say_why() -> None:
    model = detector()
    found = searched(model)
    for most in (1, 2, 3):
        for one in for_labels(found.attempts, most):
            told = f"{one.name}: about 1.20 times as fast as the float model. Its agreement is"
            assert one.reason.startswith(f"{told} {one.agreement:.3f}.")
            assert "weighted layers" in one.reason
    assert found.reason == found.attempts[0].reason


@pytest.mark.parametrize("name", ALL)
def test_the_search_agrees_with_the_float_model_on_every_family(name: str) -> None:
    model = ALL[name]()
    found = searched(model)
    assert found.attempts[0].agreement > 0.98
    assert "not good enough" not in found.reason


def test_a_second_search_takes_the_calibration_of_the_first_and_reads_a_few_images_only() -> None:
    model, told = mobile(), list[int]()
    first = search_int8(model, frames(model, 12), HERE, agreement=lambda one: 0.99, speed=lambda one: 1.2)
    read = frames(model, 12)
    rules = Int8Rules(activation_dtype="int8", forms=("inputs",))
    second = search_int8(
        model,
        read,
        rules,
        agreement=lambda one: 0.99,
        speed=lambda one: 1.2,
        forms=(Form.INPUTS,),
        progress=told.append,
        known=first.calibration,
    )
    assert told == []
    assert len(list(read)) == 12 - 8
    alone = search_int8(
        model, frames(model, 12), rules, agreement=lambda one: 0.99, speed=lambda one: 1.2, forms=(Form.INPUTS,)
    )
    assert second.scores_db == alone.scores_db
    assert second.attempts[0].outcome.model.data == alone.attempts[0].outcome.model.data


def test_a_calibration_that_lacks_a_tensor_is_made_again() -> None:
    model, told = mobile(), list[int]()
    few = search_int8(
        model, frames(model), Int8Rules(ops=("Gemm",)), agreement=lambda one: 0.99, speed=lambda one: 1.2
    ).calibration
    found = search_int8(
        model,
        frames(model),
        HERE,
        agreement=lambda one: 0.99,
        speed=lambda one: 1.2,
        progress=told.append,
        known=few,
    )
    assert told[-1] == 4
    assert len(found.scores_db) > len(few.observations)


def test_calibration_is_kept_in_the_folder_it_is_given_and_damage_is_noted(tmp_path: Path) -> None:
    model = mobile()

    def search() -> SearchResult:
        return search_int8(
            model, frames(model), HERE, agreement=lambda one: 0.99, speed=lambda one: 1.2, cache=tmp_path
        )

    assert search().notes == ()
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    assert any("damaged calibration chunk" in note.detail for note in search().notes)


def test_only_tensors_on_integers_are_asked_how_sensitive_the_answer_is() -> None:
    model = mobile()
    found = search_int8(model, frames(model), HERE, agreement=lambda one: 0.5, speed=lambda one: 1.2)
    assert found.sensitivities_db
    assert found.rounded < found.scores_db.keys()


def test_a_residual_network_is_searched_after_its_batch_normalization_went_into_convolutions() -> None:
    original = residual_batchnorm()
    inputs = list(frames(original, 4))
    model = fuse(original, inputs).model
    assert original.op_counts["BatchNormalization"] == 5
    assert "BatchNormalization" not in model.op_counts
    found = search_int8(
        model,
        inputs,
        HERE,
        agreement=lambda one: cosine(one, original),
        speed=lambda one: 1.2,
        forms=(Form.QDQ, Form.NHWC),
    )
    assert found.attempts[0].agreement > 0.98
    assert max(one.outcome.model.op_counts.get("QLinearConv", 0) for one in found.attempts) >= 3


def test_batch_normalization_that_stays_is_no_obstacle() -> None:
    model = residual_batchnorm()
    found = search_int8(model, frames(model), HERE, agreement=lambda one: cosine(one, model), speed=lambda one: 1.2)
    assert found.attempts[0].agreement > 0.98


def test_an_old_opset_is_refused_with_the_remedy() -> None:
    model = mobile()
    model.proto.opset_import[0].version = 11
    old = Model(model.proto, "old")
    with pytest.raises(UnsupportedError, match="old has opset 11"):
        quantize(old, frames(old), HERE)
    assert first_variant(Form.QDQ).form is Form.QDQ


def test_depthwise_layers_without_pairs_are_tried_where_pairs_stand_on_inputs() -> None:
    model = fuse(mobile(), list(frames(mobile(), 1))).model
    grouped = grouped_of(model)

    def speed(made: Model) -> float:
        return 1.2 + 0.1 * all(before_of(made, node) != "DequantizeLinear" for node in grouped_of(made))

    given = {"agreement": lambda one: 0.99, "speed": speed, "forms": (Form.INPUTS,)}
    found = search_int8(model, frames(model, 12), Int8Rules(forms=("inputs",)), **given)
    assert grouped
    assert f"{len(grouped)} layers in float" in found.attempts[0].name


def group_of(node: onnx.NodeProto) -> int:
    return next((one.i for one in node.attribute if one.name == "group"), 1)


def grouped_of(model: Model) -> list[onnx.NodeProto]:
    return [node for node in model.proto.graph.node if node.op_type == "Conv" and group_of(node) > 1]


def before_of(model: Model, node: onnx.NodeProto) -> str:
    makers = {name: one.op_type for one in model.proto.graph.node for name in one.output}
    return makers.get(node.input[0], "")


def test_a_speed_that_the_next_session_does_not_show_is_not_believed() -> None:
    model, seen = fuse(mobile(), list(frames(mobile(), 1))).model, dict[str, int]()

    def speed(made: Model) -> float:
        seen[made.fingerprint] = seen.get(made.fingerprint, 0) + 1
        return 1.5 if seen[made.fingerprint] == 1 else 0.9

    given = {"agreement": lambda one: 0.99, "speed": speed, "forms": (Form.INPUTS,)}
    found = search_int8(model, frames(model, 12), Int8Rules(forms=("inputs",)), **given)
    believed = [one for one in found.attempts if one.is_valid(0.85)]
    assert max(seen.values()) > 1
    assert all(seen[one.outcome.model.fingerprint] == 1 for one in believed)  # only what nothing spoke against
    assert min(one.speed_ratio for one in found.attempts) == 0.9
