"""A watch over a real model: what moved is named, what did not move is not, and it ends when frames are usual again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import edgeopt
from edgeopt.errors import EdgeoptError
from edgeopt.running.live_subject import opened_subject
from edgeopt.runtime.drift.figures import FigureReader
from edgeopt.runtime.drift.sketch import MOST_FRAMES, Sketch, sketch_of
from edgeopt.runtime.drift.state import DriftKind, FieldDrift
from edgeopt.runtime.drift.watch import EVERY, DriftWatch
from edgeopt.runtime.stream import EventKind

DETECTOR = Path(__file__).parents[3] / "models" / "digits_detector"


@pytest.fixture(scope="module")
def runtime():
    with opened_subject(DETECTOR / "model.onnx", str(DETECTOR / "calib"), None, 1, None, None) as subject:
        yield subject.served


@pytest.fixture
def watched(runtime):
    """Return the runtime; nothing watches it before and after."""
    yield runtime
    runtime.unwatch_drift()


def pictures(folder: Path) -> list[NDArray[np.uint8]]:
    return [cv2.imread(str(path)) for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def usual(runtime) -> Sketch:
    """Return the sketch of the calibration pictures."""
    watch = runtime.watch_drift("none", every=1)
    runtime.predict_batch(pictures(DETECTOR / "calib"))
    runtime.unwatch_drift()
    return watch.learned()


@pytest.fixture(scope="module")
def field() -> list[NDArray[np.uint8]]:
    return pictures(DETECTOR / "eval" / "images")


def blurred(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 3), np.uint8)


def noisy(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.clip(picture + np.random.default_rng(0).normal(0, 45, picture.shape), 0, 255).astype(np.uint8)


def night(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (picture * 0.15).astype(np.uint8)


def foggy(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (picture * 0.15 + 200).astype(np.uint8)


@pytest.mark.parametrize(
    ("shift", "kind"),
    [
        (blurred, DriftKind.SHARPNESS),
        (noisy, DriftKind.NOISE),
        (night, DriftKind.DARKNESS),
        (foggy, DriftKind.LIGHT),
    ],
)
def test_a_shift_is_seen_within_300_frames_and_is_over_when_it_is(watched, usual, field, shift, kind):
    heard = list[FieldDrift]()
    watch = watched.watch_drift(usual, every=1, on_drift=heard.append)
    watched.predict_batch(field[:40])
    assert not heard
    watched.predict_batch(map(shift, field[: 300 // EVERY]))
    assert kind in {drift.kind for drift in heard}
    state = watch.state()
    assert kind in {drift.kind for drift in state.active}
    assert state.began[kind] == 1
    assert next(drift.since_frame for drift in heard if drift.kind is kind) >= 25  # a chart may have been above zero
    watched.predict_batch(field)
    state = watch.state()
    assert (state.active, state.began[kind], state.looks) == ((), 1, 40 + 20 + len(field))
    assert sum(drift.is_over for drift in heard) == sum(state.began.values())


def test_frames_as_usual_are_no_drift(watched, usual, field):
    watch = watched.watch_drift(usual, every=1)
    for _ in range(3):
        watched.predict_batch(field)
    assert not sum(watch.state().began.values())


def test_looks_are_spaced_so_that_they_take_half_a_percent(usual):
    for share, every in ((0.01, EVERY), (0.075, EVERY), (0.1, 20), (0.302, 61)):
        watch, fixed = DriftWatch(usual), DriftWatch(usual, every=3)
        for i in range(9):
            assert (watch.every, fixed.every) == (EVERY, 3)
            for each in (watch, fixed):
                each.spent(10_000_000 if i == 4 else round(share * 1_000_000), 1_000_000)  # one was held up
        assert (watch.every, fixed.every) == (every, 3)
        due = [number for number in range(200) if watch.is_due()]
        assert due == [*range(0, 200, every)]


def test_a_run_tells_its_watch_what_looks_take(watched, usual, field):
    watch = watched.watch_drift(usual)
    while watch.state().looks < 9:
        watched.predict(field[0])
    assert watch.every >= EVERY
    assert watch._pace is None


def test_every_15th_frame_is_looked_at_by_any_number_of_threads(watched, usual, field):
    watch = watched.watch_drift(usual, every=EVERY)
    threads = [Thread(target=lambda: watched.predict_batch(field[:75])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = watch.state()
    assert state.looks == 300 // EVERY
    assert state.frames == 300


def test_outputs_as_they_are_have_no_answer_to_compare(watched, usual, field):
    watch = watched.watch_drift(usual, every=1)
    for picture in field[:5]:
        watched.predict(picture, raw=True)
    assert "best_score" not in watch.state().shifts
    assert "sharpness" in watch.state().shifts


def test_answers_of_another_model_are_not_compared(watched, usual, field):
    watch = watched.watch_drift(replace(usual, artefact="other.onnx"), every=1)
    watched.predict_batch(field[:5])
    assert not {"best_score", "things", "surprise"} & watch.state().shifts.keys()


def test_a_model_beside_goes_on_watching(watched, usual, field):
    watch = watched.watch_drift(usual, every=1)
    with watched.with_artefact(watched.artefact) as other:
        other.predict_batch(field[:3])
    assert watch.state().looks == 3


def test_what_is_usual_here_is_learned_and_no_longer_a_drift(watched, usual, field, tmp_path):
    here = [foggy(picture) for picture in field]
    learning = watched.watch_drift(usual, every=1)
    watched.predict_batch(here[:80])
    assert learning.state().active
    learned = learning.learned()
    assert (learned.source, learned.frames) == ("field", 80)
    watch = watched.watch_drift(learned, every=1)
    watched.predict_batch(here[80:])
    assert not sum(watch.state().began.values())
    watched.predict_batch(field[:40])
    assert watch.state().active


def test_a_stream_tells_of_it_and_counts_it(watched, usual, field):
    watched.watch_drift(usual, every=1)
    frames = [*field[:40], *map(blurred, field[:40])]
    with edgeopt.Stream(watched, iter(frames), fps=None, queue="fifo", degrade=None, pipelined=False) as stream:
        for _ in stream:
            pass
        stats = stream.stats()
    events = [event for event in stats.events if event.kind is EventKind.DRIFT]
    assert any("less sharp" in event.reason for event in events)
    assert stats.drift is not None
    assert stats.drift.began[DriftKind.SHARPNESS] == 1
    assert stats.to_json()["drift"]["began"]["sharpness"] == 1
    watched.predict_batch(map(blurred, field))  # the stream has ended, and hears no more
    assert len([event for event in stream.stats().events if event.kind is EventKind.DRIFT]) == len(events)


def test_exporters_tell_of_it(watched, usual, field):
    client = pytest.importorskip("prometheus_client")
    from edgeopt.runtime.stats.exporters.prometheus import Collector

    watched.watch_drift(usual, every=1)
    watched.predict_batch(map(blurred, field[:30]))
    registry = client.CollectorRegistry()
    registry.register(Collector({"door": watched.stats}))
    assert registry.get_sample_value("edgeopt_drifts_total", {"name": "door", "kind": "sharpness"}) == 1
    assert registry.get_sample_value("edgeopt_drifts_total", {"name": "door", "kind": "colour"}) == 0
    assert registry.get_sample_value("edgeopt_drift_level", {"name": "door", "figure": "sharpness"}) == 1


def test_an_app_that_watches_nothing_has_no_figures(watched, field):
    watched.predict_batch(field[:2])
    assert watched.stats().drift is None
    assert watched.drift_watch is None


@pytest.mark.parametrize(
    "wrong", [{"fps": 0}, {"fps": float("nan")}, {"false_alarms_per_week": 0}, {"every": 0}, {"fps": float("inf")}]
)
def test_wrong_numbers_are_refused(watched, usual, wrong):
    with pytest.raises(EdgeoptError, match="a watch"):
        watched.watch_drift(usual, **wrong)
    assert watched.drift_watch is None


def test_a_model_without_calibration_keeps_no_sketch(watched):
    with pytest.raises(EdgeoptError, match="nothing is known of the frames that are usual"):
        watched.watch_drift()


def test_few_looks_teach_nothing(watched, field):
    watch = watched.watch_drift("none")
    watched.predict_batch(field[:20])
    with pytest.raises(EdgeoptError, match="2 frames looked at: a sketch needs 32"):
        watch.learned()


READER = FigureReader("x", 1, 1.0, {})


def test_learning_spreads_over_the_whole_time():
    watch = DriftWatch(None)
    watch._reader = READER
    for i in range(5000):
        watch.compare({"brightness": float(i)}, ())
    learned = watch.learned().values["brightness"]
    assert MOST_FRAMES // 2 <= len(learned) <= MOST_FRAMES
    assert learned[0] == 0
    assert learned[-1] > 4900
    assert len(set(np.diff(learned))) == 1


def test_a_frame_that_says_nothing_moves_nothing():
    sketch = sketch_of("m", "field", READER, [({"brightness": float(i)}, ()) for i in range(64)])
    watch = DriftWatch(sketch)
    for value in (float("nan"), 31.5):
        for _ in range(100):
            watch.compare({"brightness": value, "unknown": 1.0}, (1, 2))
    state = watch.state()
    assert state.levels == {"brightness": 0.0}
    assert abs(state.shifts["brightness"]) < 0.1


def test_a_drift_of_one_kind_is_told_once():
    figures = ("brightness", "brightest", "darkest")
    looks = [(dict.fromkeys(figures, float(i)), ()) for i in range(64)]
    heard = list[FieldDrift]()
    watch = DriftWatch(sketch_of("m", "field", READER, looks), on_drift=heard.append)
    for _ in range(200):
        watch.compare(dict.fromkeys(figures, -1.0), ())
    assert [drift.kind for drift in heard] == [DriftKind.DARKNESS]
    assert not heard[0].is_rise
    assert heard[0].shift == pytest.approx(-2.42, abs=0.01)
    for _ in range(60):
        watch.compare(dict.fromkeys(figures, 31.5), ())
    assert [drift.is_over for drift in heard] == [False, True]
    assert "as usual again" in str(heard[1])


def test_a_sketch_that_is_too_small_for_the_rate_says_so():
    sketch = sketch_of("m", "field", READER, [({"brightness": float(i)}, ()) for i in range(32)])
    with pytest.raises(EdgeoptError, match="32 frames is too small"):
        DriftWatch(sketch, false_alarms_per_week=1e-30)
