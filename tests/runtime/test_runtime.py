"""A runtime serves any number of threads from one session, and is usable or closed: nothing between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from fixture_bundles import packed

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import Bundle, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.threads import logical_cores

DIGITS = find_model("digits_detector")
CPU = find_target("cpu-x86-vnni")


def made(folder: Path, *models: tuple[str, bytes]) -> Bundle:
    """Return a bundle for the shipped detector's recipe, of models by file name."""
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    return write_bundle(folder, [packed(name, "fp32", data, CPU, 1) for name, data in models], CPU, recipe, {}, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("digits"), ("model.onnx", DIGITS.read_bytes())).folder


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    pictures = open_frames(DIGITS.parent / "calib")
    return [pictures.picture(i) for i in range(8)]


def test_stages_may_run_in_a_thread_each_and_give_the_answer_of_predict(folder, frames):
    with Runtime.load(folder) as runtime:
        alone = [runtime.predict(frame) for frame in frames]

        def in_threads(frame: np.ndarray) -> object:
            found: list[object] = []
            with runtime.begin() as work:
                calls = (lambda: work.preprocess(frame), work.execute, lambda: found.append(work.postprocess()))
                for call in calls:
                    thread = Thread(target=call)
                    thread.start()
                    thread.join()
                assert len(work.times_ns) == len(runtime.stages)
                assert min(work.times_ns) >= 0 < work.times_ns[runtime.stages.index("execute")]
            return found[0]

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(in_threads, frames * 4))
    for answer, expected in zip(answers, alone * 4, strict=True):
        assert np.array_equal(answer.boxes, expected.boxes)
        assert np.array_equal(answer.scores, expected.scores)


def test_callers_wait_for_buffers_and_are_told_when_none_comes_back(folder, frames):
    with Runtime.load(folder) as runtime:
        most = max(4, logical_cores())
        works = [runtime.begin(timeout_s=0.01) for _ in range(most)]
        with pytest.raises(UnavailableError, match=f"none of the {most} frames that may be on their way"):
            runtime.begin(timeout_s=0.01)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(runtime.predict, frames[0])
            works[0].close()
            assert len(waiting.result(60)) == len(runtime.predict(frames[0]))
        for work in works:
            work.close()


def test_a_batch_is_answered_in_order_and_raw_outputs_are_the_models(folder, frames):
    with Runtime.load(folder) as runtime:
        found = runtime.predict_batch(frames[:3])
        assert [len(one) for one in found] == [len(runtime.predict(frame)) for frame in frames[:3]]
        raw, again = runtime.predict(frames[0], raw=True), runtime.predict(frames[0], raw=True)
        assert raw.keys() == {one.name for one in runtime.session.outputs}
        assert all(np.array_equal(raw[name], again[name]) for name in raw)


def test_every_frame_is_counted_and_its_stages_are_timed(folder, frames):
    with Runtime.load(folder) as runtime:
        runtime.predict_batch(frames[:3])
        for wrong in (None, {}):
            with pytest.raises(ValueError, match=r"frame|inputs"):
                runtime.predict(wrong)
        with runtime.begin():
            pass  # no frame came
        found = runtime.stats()
    assert (found.fed, found.served, found.failed, found.dropped, found.waiting) == (5, 3, 2, 0, 0)
    assert tuple(found.stages) == runtime.stages
    assert all(one.frames == 3 for one in found.stages.values())
    assert found.frame.p50_ms >= found.stages["execute"].p50_ms > 0


def test_stages_out_of_order_or_after_the_work_was_given_back_are_refused(folder, frames):
    with Runtime.load(folder) as runtime:
        with runtime.begin() as work:
            for call in (work.execute, work.postprocess):
                with pytest.raises(ValueError, match="comes after"):
                    call()
            work.preprocess(frames[0])
            work.execute()
        with pytest.raises(ValueError, match="given back"):
            work.postprocess()
        with runtime.begin() as again, pytest.raises(ValueError, match="comes after"):
            again.postprocess()


def test_a_closed_runtime_says_so_and_a_frame_on_its_way_still_ends(folder, frames):
    runtime = Runtime.load(folder)
    expected = runtime.predict(frames[0])
    with runtime.begin() as work:
        work.preprocess(frames[0])
        runtime.close()
        with pytest.raises(UnavailableError, match="the runtime is closed"):
            runtime.predict(frames[0])
        work.execute()
        assert len(work.postprocess()) == len(expected)
    runtime.close()
    with pytest.raises(EdgeoptError, match="the runtime is closed"):
        runtime.begin()


def test_strict_forbids_falling_back_and_a_given_artefact_can_be_opened(tmp_path):
    bundle = made(tmp_path, ("model.onnx", b"no model"), ("fallback.onnx", DIGITS.read_bytes()))
    with Runtime.load(tmp_path) as runtime:
        assert runtime.artefact.file == "fallback.onnx"
        assert [note.detail.startswith("model.onnx not used") for note in runtime.notes] == [True]
        with runtime.with_artefact(bundle.artefacts[1]) as other:
            assert other.artefact.file == "fallback.onnx"
        with pytest.raises(EdgeoptError, match="refuses the model"):
            runtime.with_artefact(bundle.artefacts[0])
    with pytest.raises(EdgeoptError, match="refuses the model"):
        Runtime.load(tmp_path, strict=True)


def test_an_answer_outlives_the_frames_after_it(folder, frames):
    """The engine writes over its outputs with every frame; what an app holds stays."""
    with Runtime.load(folder) as runtime:
        found = [(runtime.predict(frame), runtime.predict(frame, raw=True)) for frame in frames]
        for frame, (answer, raw) in zip(frames, found, strict=True):
            again = runtime.predict(frame)
            assert np.array_equal(answer.boxes, again.boxes)
            assert np.array_equal(answer.scores, again.scores)
            assert all(np.array_equal(value, raw[name]) for name, value in runtime.predict(frame, raw=True).items())
        with runtime.begin() as work:
            work.preprocess(frames[0])
            work.execute()
            outputs = work._outputs
            answer = work.postprocess()
            assert not any(np.shares_memory(one, answer.boxes) for one in outputs.values())


def test_an_answer_is_named_told_and_drawn_without_the_recipe(folder, frames):
    with Runtime.load(folder) as runtime:
        detections = runtime.predict(frames[0])
        assert runtime.class_names == tuple("0123456789")
        assert runtime.class_name(detections.classes[0]) in runtime.class_names
        assert runtime.class_name(77) == "class 77"
        best = runtime.as_json(detections)["detections"][0]
        assert best["class"] == runtime.class_name(detections.classes[0])
        assert best["class"] in runtime.as_text(detections)
        drawn = runtime.draw(frames[0], detections)
        assert drawn.shape == frames[0].shape
        assert (drawn != frames[0]).any()
        assert runtime.draw(frames[0], detections, 90).shape[0] == 90
