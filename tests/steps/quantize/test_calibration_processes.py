from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_faults import ARE_X86, divided_by_constants, whole_numbers_divided
from onnx import helper, numpy_helper
from small_nets import Net, detector, frames, residual, vision_transformer

from edgeopt.errors import UnsupportedError
from edgeopt.executors._child import EngineAbortError
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import open_graph
from edgeopt.steps.quantize.calibration.calibrate import CHUNK_IMAGES, Calibration, calibrate, most_processes
from edgeopt.steps.quantize.calibration.observation import Part, Spread, draw_block
from edgeopt.steps.quantize.calibration.processes import Crew
from edgeopt.steps.quantize.calibration.watching import Watcher, groups_of, is_narrow, shapes_of, with_outputs
from edgeopt.steps.quantize.patterns import channel_axis
from edgeopt.steps.quantize.scheme import watched
from edgeopt.system.declared.target import Int8Rules

IMAGES = 2 * CHUNK_IMAGES + 1


def axes_of(model: Model) -> dict[str, int]:
    graph = open_graph(model)
    return {name: channel_axis(graph, value) for name, value in watched(graph, Int8Rules()).items()}


def assert_same(one: Calibration, other: Calibration) -> None:
    assert (one.images, one.spread_ratio) == (other.images, other.spread_ratio)
    assert one.observations.keys() == other.observations.keys()
    for name, mine in one.observations.items():
        theirs = other.observations[name]
        for field in ("low", "high", "samples"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(theirs, field), strict=True)
        a, b = mine.histogram, theirs.histogram
        assert (a.low, a.high, a.exponent, a.first) == (b.low, b.high, b.exponent, b.first)
        np.testing.assert_array_equal(a.counts, b.counts)


@pytest.mark.parametrize("make", [residual, detector, vision_transformer])
def test_the_result_is_the_same_to_the_last_bit_with_any_number_of_processes(make: Any) -> None:
    model = make()
    alone, together = (calibrate(model, frames(model, IMAGES), axes_of(model), processes=n) for n in (1, 3))
    assert_same(alone, together)


def scores_of_tokens() -> Model:
    """Return a model that reads rows of any number of tokens, and compares each with all: its scores are square."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Transpose", ["y"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["y", "turned"], ["scores"]),
    ]
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "scores",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, "tokens", 8])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [1, "tokens", "tokens"])],
        [numpy_helper.from_array(weight, "w")],
    )
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "scores")


def test_texts_of_any_length_are_watched_and_tokens_are_no_channels(tmp_path: Path) -> None:
    model, chance = scores_of_tokens(), np.random.default_rng(1)
    lengths = [5, 5, 3, 90, *chance.integers(1, 100, IMAGES - 4).tolist()]
    texts = [{"x": chance.standard_normal((1, length, 8)).astype(np.float32)} for length in lengths]
    axes = {"y": -1, "scores": -1}
    alone, together, kept, again = (
        calibrate(model, texts, axes, processes=processes, cache=cache)
        for processes, cache in ((1, None), (3, None), (1, tmp_path), (1, tmp_path))
    )
    for other in (together, kept, again):
        assert_same(alone, other)
    expected = [text["x"][0] @ numpy_helper.to_array(model.proto.graph.initializer[0]) for text in texts]
    rows, scores = alone.observations["y"], alone.observations["scores"]
    np.testing.assert_allclose(rows.low, np.concatenate(expected).min(axis=0), atol=1e-5)
    assert rows.samples.shape[1] == 8
    assert scores.high == pytest.approx(max((each @ each.T).max() for each in expected), rel=1e-5)
    assert scores.low.shape == scores.samples.shape[1:] == (1,)


def test_other_processes_really_take_part() -> None:
    model, axes = residual(), {"x": 1, "relu_1": 1}
    images = list(frames(model, CHUNK_IMAGES))
    groups = [["relu_1"]]
    plan = {"axes": axes, "groups": groups, "threads": 1, "seed": 0}
    crew = Crew(1, model.data, plan)
    while (future := crew.submit(images, 0)) is None:
        assert crew._last[0].result(60) is not None
    found = future.result(60)
    crew.close()
    watcher = Watcher(model, axes, groups, threads=1, seed=0)
    here = watcher.watch(images, 0)
    watcher.close()
    assert found is not None
    assert found.images == here.images
    np.testing.assert_array_equal(found.seen["relu_1"].low, here.seen["relu_1"].low)


def test_a_process_that_dies_costs_its_chunk_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, axes = residual(), {"x": 1, "relu_1": 1}
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.processes._MODULE", "edgeopt.no_such_module")
    found = calibrate(model, frames(model, IMAGES), axes, processes=2)
    assert_same(found, calibrate(model, frames(model, IMAGES), axes, processes=1))


@ARE_X86
def test_an_engine_that_aborts_in_another_process_is_not_tried_on_the_same_images_here() -> None:
    model = whole_numbers_divided()
    fatal = {"a": np.full(4, np.iinfo(np.int64).min), "b": np.full(4, -1, np.int64)}
    crew = Crew(1, model.data, {"axes": {"y": 0}, "groups": [["y"]], "threads": 1, "seed": 0})
    while (future := crew.submit([fatal], 0)) is None:
        assert crew._last[0].result(60) is not None
    with pytest.raises(EngineAbortError, match=r"^ONNX Runtime died of SIGFPE while watching tensors of it"):
        future.result(60)
    assert crew.submit([fatal], 0) is None, "it is gone"
    crew.close()


@ARE_X86
def test_what_aborts_at_its_first_run_is_watched_without_optimizations_or_is_one_error() -> None:
    with guarded():
        watcher = Watcher(divided_by_constants(), {"y": 0}, [["y"]], threads=1, seed=0)
        with pytest.raises(EngineAbortError, match="SIGFPE"):
            watcher.watch([{"x": np.ones(4, np.float32)}], 0)
        assert watcher.entries == UNOPTIMIZED
        watcher.close()


def test_a_small_job_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    model, started = residual(), []
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.Crew", lambda *given: started.append(given))
    calibrate(model, frames(model, IMAGES), {"x": 1})
    assert not started


def test_a_bad_image_in_another_process_names_input_and_image() -> None:
    model = residual()

    def images() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for i, frame in enumerate(frames(model, 40)):
            if i >= 6:
                frame["x"][0, 0, 0, 0] = np.nan
            yield frame

    with pytest.raises(UnsupportedError, match=r"input 'x' is NaN for calibration image \d+"):
        calibrate(model, images(), {"x": 1}, processes=2)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2] / "fixtures")!r})
        from small_nets import frames, residual
        from edgeopt.steps.quantize.calibration.calibrate import calibrate
        model = residual()
        print("images", calibrate(model, frames(model, 9), {{"x": 1, "relu_1": 1}}, processes=2).images)
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "images 9\n", done.stderr


def test_progress_ends_at_the_number_of_images_and_never_goes_back() -> None:
    model, done = residual(), list[int]()
    calibrate(model, frames(model, IMAGES), {"x": 1, "relu_1": 1}, processes=2, progress=done.append)
    assert done[-1] == IMAGES
    assert done == sorted(done)


def test_a_group_computes_only_what_it_needs() -> None:
    model = residual()
    assert len(Model(_parsed(with_outputs(model, ["relu_1"])), "part").proto.graph.node) == 2


def _parsed(data: bytes) -> Any:
    return onnx.load_from_string(data)


def test_tensors_go_together_as_long_as_they_fit_and_a_larger_one_goes_alone() -> None:
    sizes = {"a": 40, "b": 40, "large": 200, "c": 80, "d": 1}
    assert groups_of(sizes, 80) == [["a", "b"], ["large"], ["c"], ["d"]]
    assert groups_of({}, 80) == []


def test_tensors_behind_an_op_that_onnx_does_not_know_are_measured() -> None:
    net = Net()
    foreign = net.op("Relu", net.conv("x", 3, 16, 3))
    behind = net.op("Relu", net.conv(foreign, 16, 8, 3, stride=2))
    proto = net.model(net.conv(behind, 8, 4)).proto
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "Gelu", "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    del proto.graph.value_info[:]
    model = Model(proto, "foreign")
    names = ["conv_0", foreign, behind]
    assert behind not in {value.name for value in onnx.shape_inference.infer_shapes(proto).graph.value_info}
    shapes = shapes_of(model, names, next(frames(model)))
    assert shapes == {"conv_0": (1, 16, 32, 32), foreign: (1, 16, 32, 32), behind: (1, 8, 16, 16)}
    alone, whole = (calibrate(model, frames(model), dict.fromkeys(names, 1), group_bytes=n) for n in (70_000, 1 << 30))
    assert_same(alone, whole)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("watched", "held", "count"), [(1, 1, 1), (70, 70, 1), (238, 238, 1), (952, 256, 3), (10_000, 256, 16)]
)
def test_processes_are_as_many_as_hold_less_than_the_engines_own_calibrator(
    watched: int, held: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.physical_cores", lambda: 16)
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.free_bytes", lambda: 1 << 40)
    assert most_processes(watched * MIB, held * MIB) == count


def test_processes_are_no_more_than_cores_and_half_of_the_free_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.physical_cores", lambda: 4)
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.free_bytes", lambda: 1 << 40)
    assert most_processes(1 << 40, 256 * MIB) == 4
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.free_bytes", lambda: 2500 * MIB)
    assert most_processes(1 << 40, 256 * MIB) == 2
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.free_bytes", lambda: 100 * MIB)
    assert most_processes(1 << 40, 256 * MIB) == 1


def test_a_long_job_of_few_activations_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    model, started = residual(), []
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.Crew", lambda *given: started.append(given))
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate._START_S", 0.0)
    calibrate(model, frames(model, IMAGES), {"x": 1, "relu_1": 1})
    assert not started


def test_a_long_job_of_many_activations_starts_as_many_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = residual(), []

    class Busy:
        def __init__(self, size: int, model: bytes, plan: object) -> None:
            sizes.append(size)

        def submit(self, *given: object) -> None:
            return None

        def close(self) -> None:
            pass

    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.Crew", Busy)
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate._START_S", 0.0)
    monkeypatch.setattr("edgeopt.steps.quantize.calibration.calibrate.most_processes", lambda watched, held: 3)
    calibrate(model, frames(model, IMAGES), {"x": 1, "relu_1": 1})
    assert sizes == [2]


def test_a_free_batch_is_sized_by_the_first_image() -> None:
    model = residual()
    free = Model(_parsed(model.data), "free")
    free.proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    free.proto.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    frame = next(frames(model))
    assert shapes_of(free, ["relu_1", "relu_3"], frame) == dict.fromkeys(["relu_1", "relu_3"], (1, 16, 32, 32))


def test_narrow_pictures_are_computed_in_their_own_layout_and_show_the_same() -> None:
    assert is_narrow([(1, 8, 64, 64), (1, 32, 8, 8)])
    assert not is_narrow([(1, 16, 64, 64), (1, 8, 8, 8), (1, 300, 3)])
    assert not is_narrow([])
    model, found = residual(), []
    for plain_layout in (False, True):
        watcher = Watcher(model, {"relu_3": 1}, [["relu_3"]], threads=1, seed=0, plain_layout=plain_layout)
        found.append(watcher.watch(list(frames(model)), 0).seen["relu_3"])
        watcher.close()
    np.testing.assert_allclose(found[0].high, found[1].high, rtol=1e-4)


def test_a_part_survives_being_written_as_arrays() -> None:
    model = residual()
    watcher = Watcher(model, {"x": 1, "relu_1": 1}, [["relu_1"]], threads=1, seed=0)
    late = watcher.watch(list(frames(model, 2)), 100_000)  # so late that no block is kept
    early = watcher.watch(list(frames(model, 2)), 0)
    watcher.close()
    for part in (early, late):
        again = Part.from_arrays(part.to_arrays())
        assert again.seen.keys() == part.seen.keys()
        for name, one in part.seen.items():
            assert again.seen[name].blocks.keys() == one.blocks.keys()
            np.testing.assert_array_equal(again.seen[name].histogram.counts, one.histogram.counts)
    assert not late.seen["x"].blocks


def test_the_spread_of_parts_is_that_of_all() -> None:
    images = np.random.default_rng(0).normal(size=(7, 100))
    apart = [Spread.of(image) for image in images]
    whole = apart[0]
    for one in apart[1:]:
        whole += one
    expected = np.sqrt(images.var(axis=0, ddof=1).mean()) / images.std(axis=1).mean()
    assert whole.ratio() == pytest.approx(expected)


def test_texts_that_a_model_takes_are_alike_where_they_are_the_same() -> None:
    """A graph of scikit-learn takes columns of words: they are no numbers."""
    same, other = (Spread.of(np.array([[word, "noun"]])) for word in ("nani", "nan"))
    assert (same + same).ratio() == 0
    assert (same + other).ratio() > 0


def test_all_images_are_equally_likely_to_be_kept() -> None:
    rows, kept = np.zeros((1, 1, 4), np.float32), np.zeros(64)
    for seed in range(400):
        slots: dict[int, int] = {}
        for image in range(64):
            slots.update(dict.fromkeys(draw_block(rows, image, seed), image))
        kept[list(slots.values())] += 1
    assert kept.sum() == 400 * 16
    assert 60 < kept.min() <= kept.max() < 145  # 100 expected, standard deviation 8.7
