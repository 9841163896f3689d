"""A pipeline of several models under a stream: its stages by name, its frames counted."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_pipelines import opened, shop
from virtual_clockwork import VirtualClockwork

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.stream import EventKind, Stream

MS = 10**6
FRAME = np.zeros((8, 8, 3), np.uint8)


class Clock(VirtualClockwork):
    def __call__(self) -> int:
        return self.now_ns()

    def advance(self, duration_ns: int) -> None:
        self.sleep_ns(duration_ns)


@pytest.fixture
def clock():
    made = Clock()
    yield made
    made.finish()


def test_a_pipeline_keeps_its_stages_names_and_its_deadline(tmp_path, monkeypatch, clock):
    def lookup(crops, classes):
        clock.advance(40 * MS)
        return [int(one.indices[0]) for one in classes]

    pipeline = opened(shop(tmp_path, times_ns=(4 * MS, 3 * MS)), {"lookup": lookup}, clock, monkeypatch)
    stream = Stream(pipeline, (FRAME for _ in range(90)), degrade=None, clockwork=clock)
    results = list(stream)
    stats = stream.stats()
    assert stats.fed == 90 == stats.served + stats.dropped
    assert list(stats.stages) == ["wait", *pipeline.stages]
    assert {one.latency_ns for one in results} == {50 * MS}
    for one in results:
        assert sum(max(took, 0) for took in one.times_ns.values()) == one.age_ns <= (33 + 50) * MS
        assert sorted(one.answer.last) == [1, 2]
        assert one.artefact == pipeline.description.name
    assert stats.missed == len(results)
    assert stats.pipelining is None


def test_a_stage_of_the_app_that_fails_now_and_then_is_named(tmp_path, monkeypatch, clock):
    turns = iter(range(100))

    def lookup(crops, classes):
        if next(turns) == 5:
            raise EdgeoptError("no base", remedy="start it")

    pipeline = opened(shop(tmp_path, times_ns=(4 * MS, 3 * MS)), {"lookup": lookup}, clock, monkeypatch)
    stream = Stream(pipeline, (FRAME for _ in range(20)), clockwork=clock)
    assert 5 not in [one.index for one in stream]
    (event,) = stream.stats().events
    assert (event.kind, event.reason) == (EventKind.FAILED, "frame 5 (frame#5): stage lookup: no base")
    assert stream.stats().failed == 1
