"""A stream changes while it runs: stages that overlap, levels down and up, a hung call; scripted times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from threading import enumerate as threads

import numpy as np
import pytest
from scripted_stream import FRAME, MS, Scripted, scripted

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.stream import Degradation, Event, EventKind, Stream


@pytest.fixture
def script(tmp_path) -> Iterator[Scripted]:
    with scripted(tmp_path) as made:
        yield made


def times(*parts: tuple[int, float]) -> list[float]:
    """Return so many frames of so many milliseconds, one part after the other."""
    return list(chain.from_iterable(repeat(ms, count) for count, ms in parts))


def run(script: Scripted, count: int, heavy: Sequence[float], *lighter: Sequence[float], **wishes):
    wishes = {"fps": 30, "budget_ms": 33, "pipelined": False} | wishes
    runtime = script.runtime(heavy, *lighter)
    stream = Stream(runtime, (FRAME for _ in range(count)), clockwork=script.clockwork, **wishes)
    results = list(stream)
    stats = stream.stats()
    assert stats.fed == count == stats.served + stats.dropped + stats.failed
    runtime.close()
    return stats, results


def kinds(events: Sequence[Event]) -> list[EventKind]:
    return [one.kind for one in events]


def test_a_model_that_is_too_slow_gives_way_to_the_lighter_one_and_comes_back_when_it_is_fast_again(script):
    heavy, light = times((20, 80), (10**4, 20)), times((90, 24), (10**4, 6))
    stats, results = run(script, 900, heavy, light, degrade=Degradation(window=20, calm_windows=2))
    assert kinds(stats.events) == [EventKind.DEGRADED, EventKind.RECOVERED]
    down, up = stats.events
    assert "lighter model lighter0.json: 100% of the last 20 frames missed the budget of 33 ms" in down.reason
    assert "a frame takes 80.0 ms" in down.reason
    assert up.reason.startswith("full: a frame would take 20.0 ms there")  # 80 over 24 times 6 ms
    levels = [one.level for one in results]
    assert levels[:20] == ["full"] * 20
    assert levels[-1] == "full"
    assert levels.count("lighter model lighter0.json") == 120
    assert {one.artefact for one in results} == {"model.json", "lighter0.json"}
    assert not any(one.missed for one in results[20:])
    assert stats.level == "full"


def test_it_stays_down_while_there_is_no_room(script):
    stats, results = run(script, 900, [80], [24], degrade=Degradation(window=20, calm_windows=2))
    assert kinds(stats.events) == [EventKind.DEGRADED]
    assert stats.artefact == "lighter0.json"
    assert results[-1].latency_ns == 24 * MS


def test_going_up_in_vain_makes_it_wait_longer(script):
    """The heavy model seems to fit each time, and never does."""
    heavy = times((20, 80), (10**5, 40))
    rules = Degradation(window=20, calm_windows=2, room_ratio=1.2)
    stats, _ = run(script, 1600, heavy, times((20, 24), (10**5, 9)), degrade=rules)
    downs = [one.frame for one in stats.events if one.kind is EventKind.DEGRADED]
    ups = [one.frame for one in stats.events if one.kind is EventKind.RECOVERED]
    stays = [up - down for down, up in zip(downs, ups, strict=False)]
    assert len(stays) >= 4
    assert stays[1] >= 1.8 * stays[0]
    assert stays[2] >= 1.8 * stays[1]


def test_frames_that_only_wait_for_each_other_are_skipped_and_taken_again(script):
    """40 ms fit a budget of 50 ms, but not 30 frames a second."""
    heavy = times((200, 40), (10**5, 12))
    rules = Degradation(window=20, calm_windows=2)
    stats, results = run(script, 900, heavy, [5], budget_ms=50, degrade=rules)
    assert kinds(stats.events) == [EventKind.DEGRADED, EventKind.RECOVERED]
    down, up = stats.events
    assert down.reason.startswith("every 2nd frame: ")
    assert "they wait for each other" in down.reason
    skipping = [one for one in results if one.level == "every 2nd frame"]
    assert {b.index - a.index for a, b in pairwise(skipping)} == {2}
    assert not any(one.missed for one in skipping)
    assert up.reason == "full: a frame would take 12.0 ms there, 33.3 ms are allowed"
    assert stats.artefact == "model.json"


def test_a_lighter_model_that_does_not_open_is_told_and_not_tried_again(script):
    runtime = script.runtime([80], [5])
    (script.folder / "lighter0.json").write_text("broken")
    stream = Stream(runtime, (FRAME for _ in range(600)), clockwork=script.clockwork, pipelined=False)
    assert {one.level for one in stream} == {"full"}
    (event,) = stream.stats().events
    assert event.reason.startswith("lighter model lighter0.json does not open: ")


def test_wrong_rules_are_refused():
    with pytest.raises(EdgeoptError, match="cannot be followed"):
        Degradation(window=1)


@pytest.mark.parametrize(("preprocess_ms", "execute_ms", "used"), [(30, 40, True), (1, 60, False)])
def test_stages_overlap_where_that_shortens_the_period(tmp_path, preprocess_ms, execute_ms, used):
    with scripted(tmp_path, preprocess_ms) as script:
        stats, results = run(script, 300, [execute_ms], queue="fifo", pipelined=None, degrade=None)
        tried = stats.pipelining
        assert tried is not None
        assert tried.used is used
        assert tried.serial_period_ms == pytest.approx(preprocess_ms + execute_ms)
        assert tried.pipelined_period_ms == pytest.approx(max(preprocess_ms, execute_ms))
        assert [one.index for one in results] == list(range(300))
        last = results[-1].latency_ns - results[-1].times_ns["preprocess"] - results[-1].times_ns["execute"]
        assert last == (0 if not used else (execute_ms - preprocess_ms) * MS)
        assert kinds(stats.events) == [EventKind.PIPELINING] * used
        assert script.clockwork.running == []


def test_stages_are_left_alone_where_the_camera_is_slower_than_the_model(tmp_path):
    with scripted(tmp_path, 8) as script:
        stats, _ = run(script, 300, [8], pipelined=None)
        assert stats.pipelining is None
        assert stats.dropped == 0


def test_overlapped_stages_keep_the_promise_of_the_newest_frame(tmp_path):
    with scripted(tmp_path, 30) as script:
        stats, results = run(script, 300, [40], queue="latest", pipelined=True, degrade=None)
        assert max(one.age_ns for one in results) <= (33 + 70) * MS
        assert stats.dropped > 0


def test_a_call_that_hangs_is_given_up_and_another_thread_goes_on(script):
    calls = [5] * 10 + [10**6] + [5] * 10**4
    stream = Stream(script.runtime(calls), (FRAME for _ in range(600)), clockwork=script.clockwork, hang_s=2)
    results = list(stream)
    stats = stream.stats()
    assert stats.failed == 1
    assert stats.fed == 600 == stats.served + stats.dropped + stats.failed
    assert 10 not in [one.index for one in results]
    assert results[-1].index == 599
    (event,) = (one for one in stats.events if one.kind is EventKind.HUNG)
    assert event.reason == "frame 10 has run for 2 s: given up; its thread stays in the call, another goes on"
    assert script.clockwork.running == ["edgeopt-stream"]
    script.clockwork.finish()  # it returns after all, and its answer is nobody's
    assert stream.stats().failed == 1


def test_a_second_call_that_hangs_ends_the_stream_with_one_error(script):
    calls = [5] * 10 + [10**6] * 2
    stream = Stream(script.runtime(calls), (FRAME for _ in range(600)), clockwork=script.clockwork, hang_s=2)
    with pytest.raises(EdgeoptError, match="has not returned for 2 s, twice: the stream ends") as caught:
        list(stream)
    assert "restart the process" in caught.value.remedy
    stats = stream.stats()
    assert stats.failed == 2
    assert stats.fed == stats.served + stats.dropped + stats.failed
    assert EventKind.LEFT_BEHIND in kinds(stats.events)


def test_frames_that_fail_are_counted_and_eight_in_a_row_end_the_stream(script):
    wrong = {"x": np.zeros((1, 5), np.float32)}
    frames = [FRAME, wrong, FRAME, wrong, FRAME]
    stream = Stream(script.runtime([1]), frames, queue="fifo", clockwork=script.clockwork)
    assert [one.index for one in stream] == [0, 2, 4]
    assert stream.stats().failed == 2
    assert kinds(stream.stats().events) == [EventKind.FAILED] * 2
    stream = Stream(script.runtime([1]), [FRAME, *[wrong] * 20], queue="fifo", clockwork=script.clockwork)
    with pytest.raises(EdgeoptError, match=r"8 frames in a row have failed, the last \(frame#8\): x is float32 1x5"):
        list(stream)
    assert stream.stats().failed == 8
    stream = Stream(script.runtime([1]), [wrong, FRAME], queue="fifo", clockwork=script.clockwork)
    with pytest.raises(EdgeoptError, match="the first frame"):
        list(stream)
    stats = stream.stats()
    assert stats.fed == stats.served + stats.dropped + stats.failed


def test_what_an_iterator_raises_comes_out_after_the_frames_before_it(script):
    def frames() -> Iterator[object]:
        yield from [FRAME] * 3
        raise KeyError("the app's own")

    stream = Stream(script.runtime([1]), frames(), clockwork=script.clockwork)
    seen = []
    with pytest.raises(KeyError, match="the app's own"):
        seen.extend(one.index for one in stream)
    assert stream.stats().served == 3
    assert list(stream) == []


def test_an_iterator_that_yields_nothing_for_a_while_is_told_of(script):
    def frames() -> Iterator[object]:
        yield FRAME
        script.clockwork.sleep_ns(20 * 10**9)
        yield FRAME

    stream = Stream(script.runtime([1]), frames(), fps=None, clockwork=script.clockwork)
    assert len(list(stream)) == 2
    (event,) = stream.stats().events
    assert str(event) == "5.0 s, frame 1: stalled: no frame has come for 5 s"


def test_a_model_of_seconds_a_frame_makes_no_source_stall(script, monkeypatch):
    """Pictures of a folder are read when they are wanted; what comes late there is the answer."""
    monkeypatch.setattr("edgeopt.runtime.stream.sources.frames._Iterated.is_paced", False)
    stream = Stream(script.runtime([6000]), [FRAME] * 3, fps=None, clockwork=script.clockwork)
    assert len(list(stream)) == 3
    assert EventKind.STALLED not in kinds(stream.stats().events)


def test_stop_ends_a_reader_in_another_thread(script):
    stream = Stream(script.runtime([5]), (FRAME for _ in range(10**6)), clockwork=script.clockwork)
    seen: list[int] = []
    reader = script.clockwork.start(lambda: seen.extend(one.index for one in stream), "reader")
    script.clockwork.sleep_ns(10**9)
    stream.stop()
    assert reader.join(1)
    assert len(seen) == 30
    stats = stream.stats()
    assert stats.fed == stats.served + stats.dropped + stats.failed
    assert list(stream) == []


@pytest.mark.parametrize(
    "wrong",
    [{"fps": 0}, {"fps": float("nan")}, {"budget_ms": -1}, {"queue": "lifo"}, {"hang_s": 0}, {"most_waiting_mib": 0}],
)
def test_a_wrong_argument_is_one_line(script, wrong):
    before = len(threads())
    with pytest.raises(EdgeoptError) as caught:
        Stream(script.runtime([1]), [FRAME], **wrong)
    assert "\n" not in caught.value.problem
    assert len(threads()) == before


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (4.5, "4.5 is no source of frames"),
        (b"rtsp://x", "is no source of frames"),
        ("nowhere", "nowhere does not exist"),
        ("nowhere.mp4", "nowhere.mp4 does not exist"),
        (97, "camera 97 does not open"),
        (-1, "camera -1 does not open"),
        ("rtsp://name:secret@127.0.0.1:9/stream", "rtsp://127.0.0.1:9/stream does not open as a video"),
    ],
)
def test_a_source_that_does_not_open_is_one_line(script, source, told, capfd):
    with pytest.raises(EdgeoptError, match=told) as caught:
        Stream(script.runtime([1]), source)
    assert "secret" not in str(caught.value)
    assert "\n" not in caught.value.problem
    assert capfd.readouterr() == ("", "")


def test_overlapping_is_judged_on_one_level(script):
    """The lighter model halves the period, not the overlap."""
    rules = Degradation(window=25, calm_windows=2)
    stats, results = run(script, 400, [80], [24], pipelined=None, degrade=rules)
    assert kinds(stats.events) == [EventKind.DEGRADED]
    assert stats.pipelining is None  # the camera is slower than the lighter model
    assert results[-1].latency_ns == 24 * MS
