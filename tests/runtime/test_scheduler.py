"""Models share a device: the answers are those of a runtime alone; cores, batches and memory are shared as told."""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_bundles import packed

from edgeopt.errors import EdgeoptError, InvalidFileError, UnavailableError
from edgeopt.executors.null import Script
from edgeopt.graph.model import find_model, load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.schedule import ScheduledModel, Scheduler, Terms, turns
from edgeopt.runtime.schedule.batch import Batches
from edgeopt.runtime.schedule.cores import assign_cores
from edgeopt.runtime.schedule.lane import Lane
from edgeopt.runtime.schedule.memory import Loaded, who_goes
from edgeopt.runtime.schedule.model import Scheduled
from edgeopt.runtime.stream.stream import Stream
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.affinity import held_to
from edgeopt.system.machine.threads import usable_cores

DIGITS = find_model("digits_detector")
CPU = find_target("cpu-x86-vnni")
X = {"x": np.zeros((1, 4), np.float32)}


def free_batch(data: bytes) -> bytes:
    model = onnx.load_from_string(data)
    for one in (*model.graph.input, *model.graph.output):
        one.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    return model.SerializeToString()


def detector(folder: Path, data: bytes) -> Path:
    net = load_model(DIGITS)
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    return write_bundle(folder, [packed("model.onnx", "fp32", data, CPU, 1)], CPU, recipe, {}, {}).folder


def script(folder: Path, execute_ms: float, answer: float) -> Path:
    """Return a bundle whose model sleeps for so long."""
    answers = ({"y": np.full((1, 2), answer, np.float32)},)
    played = Script((TensorSpec("x", "float32", (1, 4)),), answers, (int(execute_ms * 1e6),))
    target = replace(CPU, executor="null", options={})
    models = [packed("model.json", "fp32", played.to_bytes(), target, 1)]
    return write_bundle(folder, models, target, find_recipe("tensors"), {}, {}).folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root, data = tmp_path_factory.mktemp("bundles"), DIGITS.read_bytes()
    scripts = {name: script(root / name, 1, answer) for name, answer in (("one", 1), ("two", 2), ("three", 3))}
    return scripts | {
        "fixed": detector(root / "fixed", data),
        "free": detector(root / "free", free_batch(data)),
        "slow": script(root / "slow", 300, 9),
    }


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    pictures = open_frames(DIGITS.parent / "calib")
    return [pictures.picture(i) for i in range(8)]


def same(one, other) -> bool:
    return np.allclose(one.boxes, other.boxes, atol=1e-2) and np.allclose(one.scores, other.scores, atol=1e-4)


def test_two_models_and_many_threads_get_the_answers_of_a_runtime_alone(folders, frames):
    with Runtime.load(folders["fixed"]) as runtime:
        alone = [runtime.predict(frame) for frame in frames]
    threads = threading.active_count()
    models = {
        "low": ScheduledModel(folders["free"]),
        "high": ScheduledModel(folders["fixed"], Terms(priority=1, budget_ms=1000)),
    }
    with Scheduler(models) as scheduler, ThreadPoolExecutor(6) as pool:
        assert scheduler.names == ("high", "low")
        jobs = [(i, name, i % 8) for i in range(60) for name in models]
        found = pool.map(lambda job: scheduler.predict(job[1], frames[job[2]], stream=job[0] % 3), jobs)
        assert all(same(answer, alone[frame]) for answer, (_, _, frame) in zip(found, jobs, strict=True))
        for stats in scheduler.stats().values():
            assert (stats.fed, stats.served, stats.failed, stats.waiting) == (60, 60, 0, 0)
            assert stats.stages["turn"].total_frames == stats.stages["execute"].total_frames == 60
            assert stats.age.p50_ms >= stats.stages["execute"].p50_ms
        assert scheduler.stats()["low"].missed == 0
    assert threading.active_count() == threads


def together(scheduler: Scheduler, name: str, brought: list) -> list:
    """Bring frames at once, each from a stream of its own; return answers and errors."""
    ready = threading.Barrier(len(brought))

    def bring(place: int):
        ready.wait(10)
        try:
            return scheduler.predict(name, brought[place], stream=place)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(brought)) as pool:
        return list(pool.map(bring, range(len(brought))))


def test_frames_of_four_streams_go_together_and_what_is_no_frame_fails_alone(folders, frames, monkeypatch):
    sizes = []
    run = Batches.run
    monkeypatch.setattr(Batches, "run", lambda self, given: sizes.append(len(given)) or run(self, given))
    with Runtime.load(folders["free"]) as runtime:
        alone = [runtime.predict(frame) for frame in frames]
    monkeypatch.setattr(turns, "_ACTIVE_NS", 10**15)
    with Scheduler({"free": ScheduledModel(folders["free"], Terms(max_batch=4, max_delay_ms=60_000))}) as scheduler:
        assert not scheduler.notes
        for stream in range(4):  # so that the first frame waits for the others
            known = scheduler._models["free"].lane._turns
            known.withdraw(known.offer("free", time.perf_counter_ns(), stream))
        sizes.clear()
        for place in (0, 4):
            given = frames[place : place + 4]
            found = together(scheduler, "free", given)
            assert all(same(one, other) for one, other in zip(found, alone[place : place + 4], strict=True))
        assert sizes == [4, 4]
        *found, wrong = together(scheduler, "free", [*frames[:3], np.zeros((5, 5))])
        assert isinstance(wrong, ValueError)
        assert all(same(one, other) for one, other in zip(found, alone, strict=False))
        stats = scheduler.stats()["free"]
        assert (stats.fed, stats.served, stats.failed) == (12, 11, 1)


def test_a_model_that_takes_no_batch_says_so_and_runs_frame_by_frame(folders, frames):
    with Scheduler({"fixed": ScheduledModel(folders["fixed"], Terms(max_batch=4, max_delay_ms=50))}) as scheduler:
        assert (
            "frames of fixed go one by one: the batch of input images float32 1x3x160x160 is fixed"
            in scheduler.notes[0].detail
        )
        assert len(together(scheduler, "fixed", frames[:4])) == 4
        assert scheduler.stats()["fixed"].served == 4


def loaded(scheduler: Scheduler) -> list[str]:
    """Return who is in memory, by what was told."""
    there: list[str] = []
    for change in scheduler.changes:
        there = [*there, change.name] if change.is_loaded else [one for one in there if one != change.name]
    return there


def test_models_that_share_memory_make_room_for_each_other_and_it_is_told(folders):
    told = []
    models = {name: ScheduledModel(folders[name], memory_mib=10) for name in ("one", "two", "three")}
    with Scheduler(models, memory_limit_mib=25, tell=told.append) as scheduler:
        assert loaded(scheduler) == ["one", "two"]
        scheduler.predict("one", X)
        assert scheduler.predict("three", X)["y"][0, 0] == 3
        assert loaded(scheduler) == ["one", "three"]  # two was used least recently
        assert scheduler.predict("two", X)["y"][0, 0] == 2
        assert loaded(scheduler) == ["three", "two"]
        assert str(told[2]).endswith("two unloaded: three needs the room")
        assert "three loaded: a frame came for it" in str(told[3])
        assert tuple(told) == scheduler.changes


def test_a_lower_priority_never_displaces_a_higher_one(folders):
    models = {
        "one": ScheduledModel(folders["one"], Terms(priority=1), memory_mib=10),
        "two": ScheduledModel(folders["two"], memory_mib=10),
        "three": ScheduledModel(folders["three"], Terms(priority=2), memory_mib=30),
    }
    with Scheduler(models, memory_limit_mib=35) as scheduler:
        assert loaded(scheduler) == ["three"]
        with pytest.raises(UnavailableError, match=r"no room for one, which takes 10.0 MiB of 35.0: three stay"):
            scheduler.predict("one", X)
        assert scheduler.predict("three", X)["y"][0, 0] == 3
        assert scheduler.stats()["one"].failed == 1
    kept = {
        "one": ScheduledModel(folders["one"], memory_mib=10, is_kept=True),
        "two": ScheduledModel(folders["two"], memory_mib=10),
    }
    with Scheduler(kept, memory_limit_mib=15) as scheduler, pytest.raises(EdgeoptError, match="one stay"):
        scheduler.predict("two", X)


def test_a_model_is_unloaded_after_the_frames_on_their_way(folders):
    models = {
        "slow": ScheduledModel(folders["slow"], memory_mib=10),
        "one": ScheduledModel(folders["one"], memory_mib=10),
    }
    with Scheduler(models, memory_limit_mib=15) as scheduler, ThreadPoolExecutor(2) as pool:
        running = pool.submit(scheduler.predict, "slow", X)
        while not scheduler.stats()["slow"].waiting:
            threading.Event().wait(0.001)
        assert scheduler.predict("one", X)["y"][0, 0] == 1
        assert running.result()["y"][0, 0] == 9
        assert loaded(scheduler) == ["one"]


def test_what_a_real_model_takes_is_measured(folders):
    with Scheduler({"fixed": ScheduledModel(folders["fixed"])}) as scheduler:
        assert scheduler.changes[0].memory_mib >= DIGITS.stat().st_size / 2**20


def test_closing_waits_for_frames_on_their_way_and_refuses_others(folders):
    scheduler = Scheduler({"slow": ScheduledModel(folders["slow"])})
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(scheduler.predict, "slow", X)
        while not scheduler.stats()["slow"].waiting:
            threading.Event().wait(0.001)
        scheduler.close()
        with pytest.raises(UnavailableError, match="the scheduler is closed"):
            scheduler.predict("slow", X)
        assert running.result()["y"][0, 0] == 9
    scheduler.close()


def test_what_cannot_be_scheduled_is_one_clear_error(folders, tmp_path):
    with pytest.raises(InvalidFileError, match="is no bundle"):
        Scheduler({"none": ScheduledModel(tmp_path)})
    with pytest.raises(EdgeoptError, match="0 models on cores"):
        Scheduler({})
    with pytest.raises(EdgeoptError, match="of which this process may use"):
        Scheduler({"one": ScheduledModel(folders["one"])}, cores=[4096])
    with Scheduler({"one": ScheduledModel(folders["one"])}) as scheduler:
        with pytest.raises(KeyError):
            scheduler.predict("two", X)
        with pytest.raises(ValueError, match="x is float32 2x4"):
            scheduler.predict("one", {"x": np.zeros((2, 4), np.float32)})
        assert scheduler.predict("one", X)["y"][0, 0] == 1


def test_a_stream_takes_a_model_of_a_scheduler(folders, frames):
    models = {"high": ScheduledModel(folders["fixed"], Terms(priority=1)), "low": ScheduledModel(folders["free"])}
    with Runtime.load(folders["fixed"]) as runtime:
        alone = [runtime.predict(frame) for frame in frames]
    with Scheduler(models) as scheduler, Stream(scheduler.runtime("high"), frames, queue="fifo") as stream:
        found = [one.answer for one in stream]
        assert all(same(one, other) for one, other in zip(found, alone, strict=True))
        stats = stream.stats()
        assert list(stats.stages)[:2] == ["wait", "turn"]
        assert stats.served == scheduler.stats()["high"].served == 8


def test_the_page_about_it_runs(folders, frames, capsys):
    page = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    for name, folder in (("doors", "fixed"), ("faces", "free")):
        code = code.replace(f'"out/{name}/bundle"', repr(str(folders[folder])))
    exec(code, {"frame": frames[0]})
    assert float(capsys.readouterr().out) >= 0


def refuse(*_: object) -> None:
    raise UnavailableError("x", remedy="y")


def test_a_model_that_does_not_run_is_not_taken_for_loaded(folders, monkeypatch):
    with Scheduler({"one": ScheduledModel(folders["one"], memory_mib=10)}, memory_limit_mib=15) as scheduler:
        with monkeypatch.context() as patched:
            patched.setattr(Scheduled, "_try_batches", refuse)
            scheduler._models["one"].take_out().close()
            with pytest.raises(UnavailableError, match="x"):
                scheduler.predict("one", X)
        assert scheduler.predict("one", X)["y"][0, 0] == 1


def test_a_user_who_interrupts_leaves_the_lane_usable(monkeypatch):
    lane = Lane({"a": Terms(priority=1), "b": Terms()})
    held = lane.enter("a")

    def interrupted(timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(lane._changed, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lane.enter("b")
    lane.leave(held.turn)
    lane.leave(lane.enter("b").turn)
    assert lane._turns.waiting == 0


@pytest.mark.parametrize(
    ("threads", "cores", "assigned"),
    [
        ({"a": 1, "b": 1}, 2, {"a": (0,), "b": (1,)}),
        ({"a": 2, "b": 1}, 2, {"a": (0, 1), "b": (0, 1)}),
        ({"a": 1, "b": 2}, 2, {"a": (0, 1), "b": (0, 1)}),
        ({"a": 2, "b": 2, "c": 2}, 4, {"a": (0, 1), "b": (2, 3), "c": (2, 3)}),
        ({"a": 1, "b": 1, "c": 1}, 3, {"a": (0,), "b": (1,), "c": (2,)}),
        ({"a": 4}, 2, {"a": (0, 1)}),
    ],
)
def test_a_model_has_cores_of_its_own_while_enough_are_left(threads, cores, assigned):
    assert assign_cores(threads, range(cores)) == assigned


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system holds no thread to cores")
def test_a_thread_and_those_it_starts_are_held_to_its_cores():
    before, seen = os.sched_getaffinity(0), []
    core = usable_cores()[-1]
    with held_to([core]):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before
    with held_to(None):
        assert os.sched_getaffinity(0) == before


def of(name: str, priority: int, size: int, used: int, *, is_kept: bool = False) -> Loaded:
    return Loaded(name, priority, size, used, is_kept)


@pytest.mark.parametrize(
    ("needed", "priority", "going"),
    [
        (10, 0, ()),
        (15, 0, ("old",)),
        (35, 0, ("old", "new")),
        (36, 0, None),
        (36, 1, ("old", "new", "high")),
        (56, 9, None),  # kept stays, whatever happens
    ],
)
def test_the_least_recently_used_of_the_lowest_priority_makes_room(needed, priority, going):
    there = [of("high", 1, 20, 1), of("new", 0, 10, 9), of("old", 0, 15, 3), of("kept", 0, 45, 0, is_kept=True)]
    assert who_goes(there, needed, 100, priority) == going
