"""A recurrent model in a bundle: each stream keeps its states from call to call, whoever else runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fixture_bundles import bundle_with_test
from recurrent_net import WIDTH, open_model, recipe_of, recurrent, samples

import edgeopt
from edgeopt.errors import UnsupportedError
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.setup import open_setup
from edgeopt.measurement.turns.fed_back import feed_back
from edgeopt.runtime.rollout.current import FRAMES, Probation
from edgeopt.runtime.schedule.model import ScheduledModel as Scheduled
from edgeopt.runtime.schedule.scheduler import Scheduler


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("recurrent")
    stream, model = samples(made), recurrent()
    stored = [dict(stream.tensors(i)) for i in (0, 1)]
    bundle_with_test(made / "bundle", model, recipe_of(model, stream), stored, {"model.onnx": model.data})
    return made


@pytest.fixture
def runtime(folder):
    with edgeopt.Runtime.load(folder / "bundle") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def heard(folder):
    return list(np.load(folder / "stream.npz")["x"][:, None])


def looped(heard) -> list[np.ndarray]:
    """Return the answers of ONNX Runtime where the app feeds the states back by hand."""
    session, state, found = open_model(recurrent()), np.zeros((1, WIDTH), np.float32), []
    for one in heard:
        outputs = session.run({"x": one, "h": state})
        state = outputs["hn"].copy()
        found.append(outputs["speech"].copy())
    session.close()
    return found


def test_a_version_on_probation_is_not_compared_with_one_that_heard_each_tenth_frame(folder, heard):
    with edgeopt.Runtime.load(folder / "bundle") as before, edgeopt.Runtime.load(folder / "bundle") as after:
        for remembers, expected in ((True, ""), (False, "of its answers")):
            with Probation(before, after, None) as probation:
                assert probation._remembers
                probation._remembers = remembers
                frames = [{"x": heard[i % len(heard)]} for i in range(FRAMES)]
                reasons = [probation.observe(frame, after.predict(frame), 0) for frame in frames]
            assert expected in reasons[-1]
            assert bool(reasons[-1]) == bool(expected), "without the rule the same model would be withdrawn"


def test_states_are_kept_between_calls_and_begin_anew_after_a_reset(runtime, heard):
    expected = looped(heard[:20])
    assert dict(runtime.states) == {"h": "hn"}
    for _ in range(2):
        found = [runtime.predict({"x": one})["speech"] for one in heard[:20]]
        np.testing.assert_array_equal(found, expected)
        runtime.reset()
    assert not np.array_equal(expected[5], looped(heard[5:6])[0])  # the states matter


def test_each_stream_has_states_of_its_own(runtime, heard):
    ahead, behind = heard[:20], heard[40:60]
    found = [
        (runtime.predict({"x": a}, stream="door")["speech"], runtime.predict({"x": b}, stream="gate")["speech"])
        for a, b in zip(ahead, behind, strict=True)
    ]
    np.testing.assert_array_equal([one for one, _ in found], looped(ahead))
    np.testing.assert_array_equal([one for _, one in found], looped(behind))
    runtime.reset("door")
    again = runtime.predict({"x": heard[0]}, stream="door")["speech"]
    np.testing.assert_array_equal(again, looped(heard[:1])[0])
    after = runtime.predict({"x": heard[60]}, stream="gate")["speech"]
    np.testing.assert_array_equal(after, looped(heard[40:61])[-1])


def test_streams_in_threads_of_their_own_do_not_mix(runtime, heard):
    with ThreadPoolExecutor(4) as pool:
        made = list(
            pool.map(lambda k: runtime.predict_batch([{"x": x} for x in heard[k : k + 30]], stream=k), (0, 20, 40, 60))
        )
    for k, answers in zip((0, 20, 40, 60), made, strict=True):
        np.testing.assert_array_equal([one["speech"] for one in answers], looped(heard[k : k + 30]))


def test_states_that_an_app_passes_are_taken(runtime, heard):
    state = np.full((1, WIDTH), 0.5, np.float32)
    runtime.predict({"x": heard[0]})
    found = runtime.predict({"x": heard[1], "h": state})
    session = open_model(recurrent())
    np.testing.assert_array_equal(found["hn"], session.run({"x": heard[1], "h": state})["hn"])
    session.close()


def test_a_scheduler_keeps_the_states_of_each_stream(folder, heard):
    with Scheduler({"ear": Scheduled(folder / "bundle")}) as scheduler:
        found = [[scheduler.predict("ear", {"x": one}, stream=k)["speech"] for k in (0, 1)] for one in heard[:10]]
    np.testing.assert_array_equal([one for one, _ in found], looped(heard[:10]))
    np.testing.assert_array_equal([one for _, one in found], looped(heard[:10]))


def test_what_is_timed_is_a_stream(heard):
    session = feed_back(open_model(recurrent()), {"h": "hn"})
    zeros = np.zeros((1, WIDTH), np.float32)
    found = [session.run({"x": one, "h": zeros})["speech"].copy() for one in heard[:10]]
    np.testing.assert_array_equal(found, looped(heard[:10]))
    other = session.beside() or session
    assert [name for name, _ in session.stages] == [name for name, _ in other.stages]
    staged = feed_back(open_model(recurrent()), {"h": "hn"})
    for one, expected in zip(heard[:10], looped(heard[:10]), strict=True):
        value = {"x": one, "h": zeros}
        for _, part in staged.stages:
            value = part(value)
        np.testing.assert_array_equal(value["speech"], expected)
    session.close()
    staged.close()


def test_bench_times_a_stream_and_refuses_batches_of_it(folder):
    options = BenchOptions(source=folder / "stream.npz")
    setup = open_setup(str(folder / "bundle"), target="cpu", recipe=None, options=options)
    ((task, session),) = setup.pipelines
    inputs = task.preprocess(setup.readers[0]())[0]
    first = session.run(inputs)["hn"].copy()
    second = session.run(inputs)["hn"]
    assert not np.array_equal(first, second)  # the second run began where the first ended
    session.close()
    with pytest.raises(UnsupportedError, match="the states h are fed back from frame to frame"):
        open_setup(
            str(folder / "bundle"),
            target="cpu",
            recipe=None,
            options=BenchOptions(source=folder / "stream.npz", batches=(2,)),
        )


@pytest.mark.parametrize("pipelined", [False, True])
def test_each_file_of_a_folder_begins_anew(runtime, heard, tmp_path, pipelined):
    for name, begin in (("a", 0), ("b", 30), ("c", 60)):
        np.savez(tmp_path / f"{name}.npz", x=np.concatenate(heard[begin : begin + 8]))
    expected = [one for begin in (0, 30, 60) for one in looped(heard[begin : begin + 8])]
    with edgeopt.Stream(runtime, str(tmp_path), fps=None, pipelined=pipelined) as stream:
        found = [result.answer["speech"] for result in stream]
    np.testing.assert_array_equal(found, expected)
