from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.load import models
from edgeopt.measurement.load.arrivals import Arrivals, Phases, make_arrivals
from edgeopt.measurement.load.models import OpenLoad, parse_load
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.models.poisson import Poisson
from edgeopt.system.declared import registry

rates = st.floats(0.5, 200.0)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("closed", Closed(1)),
        ("closed:4", Closed(4)),
        ("fps:30", FixedRate(30.0)),
        ("fps:29.97", FixedRate(29.97)),
        ("poisson:0.5", Poisson(0.5)),
    ],
)
def test_a_load_is_read_as_it_is_written(text, load):
    assert parse_load(text) == load
    assert parse_load(str(load)) == load


@pytest.mark.parametrize(
    "text",
    ["", "fps", "fps:", "fps:0", "fps:-3", "fps:nan", "closed:0", "closed:1.5", "poisson", "open:3", "fps:30 fps"],
)
def test_a_wrong_load_says_what_to_write(text):
    with pytest.raises(EdgeoptError) as caught:
        parse_load(text)
    assert "is not a load" in caught.value.problem
    assert "fps:30" in caught.value.remedy


def test_cameras_with_uniform_phases_arrive_evenly_spread():
    arrivals = make_arrivals(FixedRate(10.0), seconds=0.3, streams=4)
    assert arrivals.intended_ns.tolist() == list(range(0, 300_000_000, 25_000_000))
    assert arrivals.stream.tolist() == [0, 1, 2, 3] * 3


def test_random_phases_stay_inside_one_period_and_keep_the_rate():
    arrivals = make_arrivals(FixedRate(10.0), seconds=2.0, streams=5, phases=Phases.RANDOM, seed=3)
    firsts = [arrivals.intended_ns[arrivals.stream == stream][0] for stream in range(5)]
    assert len(set(firsts)) == 5
    assert max(firsts) < 100_000_000
    for stream in range(5):
        assert set(np.diff(arrivals.intended_ns[arrivals.stream == stream]).tolist()) <= {
            99_999_999,
            10**8,
            100_000_001,
        }


@settings(deadline=None)
@given(
    st.sampled_from([FixedRate, Poisson]),
    st.floats(50.0, 200.0),
    st.integers(1, 4),
    st.sampled_from(Phases),
    st.integers(0, 99),
)
def test_arrivals_are_the_same_for_a_seed_and_a_longer_run_begins_like_a_shorter_one(kind, rate, streams, phases, seed):
    def made(seconds):
        return make_arrivals(kind(rate), seconds=seconds, streams=streams, phases=phases, seed=seed)

    short, again, long = made(1.0), made(1.0), made(2.5)
    np.testing.assert_array_equal(short.intended_ns, again.intended_ns)
    np.testing.assert_array_equal(short.stream, again.stream)
    np.testing.assert_array_equal(short.intended_ns, long.intended_ns[: len(short)])


@settings(deadline=None)
@given(rates, st.floats(0.0, 50.0), st.integers(0, 99))
def test_jitter_never_reorders_the_frames_of_a_camera_nor_changes_their_number(rate, jitter_ms, seed):
    plain = make_arrivals(FixedRate(rate), seconds=1.0)
    moved = make_arrivals(FixedRate(rate), seconds=1.0, jitter_ms=jitter_ms, seed=seed)
    assert len(plain) == len(moved)
    assert (np.diff(moved.intended_ns) > 0).all()
    assert (np.abs(moved.intended_ns - plain.intended_ns) <= 0.49e9 / rate + 1).all()


def test_jitter_has_the_deviation_asked_for():
    plain = make_arrivals(FixedRate(30.0), seconds=300.0).intended_ns
    moved = make_arrivals(FixedRate(30.0), seconds=300.0, jitter_ms=2.0).intended_ns
    assert (moved - plain)[1:].std() == pytest.approx(2_000_000, rel=0.05)


def test_poisson_gaps_have_the_mean_and_the_deviation_of_an_exponential():
    gaps = np.diff(make_arrivals(Poisson(50.0), seconds=400.0, seed=1).intended_ns)
    assert gaps.mean() == pytest.approx(20e6, rel=0.03)
    assert gaps.std() == pytest.approx(20e6, rel=0.03)


def test_one_stream_more_does_not_change_the_others():
    two = make_arrivals(Poisson(20.0), seconds=5.0, streams=2, seed=4)
    three = make_arrivals(Poisson(20.0), seconds=5.0, streams=3, seed=4)
    kept = three.stream < 2
    np.testing.assert_array_equal(two.intended_ns, three.intended_ns[kept])
    np.testing.assert_array_equal(two.stream, three.stream[kept])


@pytest.mark.parametrize(
    "wrong", [{"streams": 0}, {"seconds": 0.0}, {"seconds": float("inf")}, {"jitter_ms": -1.0}], ids=str
)
def test_a_timetable_that_cannot_be_is_refused(wrong):
    with pytest.raises(EdgeoptError):
        make_arrivals(FixedRate(30.0), **{"seconds": 1.0, **wrong})


def test_jitter_of_poisson_arrivals_is_refused():
    with pytest.raises(EdgeoptError, match="cannot have a jitter"):
        make_arrivals(Poisson(30.0), seconds=1.0, jitter_ms=1.0)


def test_a_run_too_short_for_any_frame_says_so():
    with pytest.raises(EdgeoptError, match=r"nothing arrives in 0\.01 s of poisson:0\.001"):
        make_arrivals(Poisson(0.001), seconds=0.01)


def test_a_timetable_that_falls_is_a_bug():
    with pytest.raises(ValueError, match="rises"):
        Arrivals(np.array([3, 2]), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="both"):
        Arrivals(np.array([2, 3]), np.zeros(3, np.int64))


@dataclass(frozen=True, slots=True)
class Bursts(OpenLoad):
    """Three frames at once."""

    example: ClassVar[str] = "bursts:30"
    takes_phases: ClassVar[bool] = True

    def instants_ns(self, seconds, phase, rng):
        first = (phase + np.arange(int(seconds * self.rate_per_s / 3))) * 3 * self.period_ns
        return np.repeat(first, 3)

    def __str__(self) -> str:
        return f"bursts:{self.rate_per_s:g}"


@pytest.fixture
def bursts(monkeypatch):
    """Offer bursts as an installed package would."""
    module = ModuleType("bursts_of_others")
    module.LOAD = Bursts
    monkeypatch.setitem(sys.modules, module.__name__, module)
    known, installed = registry.names(models), registry._installed
    monkeypatch.setattr(registry, "names", lambda package: (*known, "bursts"))
    monkeypatch.setattr(registry, "_installed", lambda package: {**installed(package), "bursts": module.__name__})


def test_a_load_model_is_one_file(bursts):
    load = parse_load("bursts:30")
    assert load == Bursts(30.0)
    assert make_arrivals(load, seconds=0.3, streams=2).intended_ns.tolist() == [
        instant for instant in range(0, 300_000_000, 50_000_000) for _ in range(3)
    ]
    plan = plan_load(BenchOptions(load="bursts:30", streams=2, phases="random"))
    assert plan.at_rate(120.0).load == Bursts(60.0)
    assert str(plan) == "bursts:30 on 2 streams (random phases), queue fifo, 1 worker"
    with pytest.raises(EdgeoptError, match="--jitter has no meaning for bursts:30") as caught:
        plan_load(BenchOptions(load="bursts:30", jitter_ms=1.0))
    assert caught.value.remedy == "write --load fps:30 with it"
    with pytest.raises(EdgeoptError) as caught:
        plan_load(BenchOptions(streams=2))
    assert "fps:30, poisson:30, trace:FILE or bursts:30" in caught.value.remedy
    shown = CliRunner().invoke(cli, ["bench", "--help", "all"]).output
    assert "fps:30, poisson:30, trace:FILE or bursts:30" in " ".join(shown.split())


@pytest.mark.parametrize("text", ["closed:2", "fps:30", "poisson:30"])
def test_the_search_for_the_capacity_keeps_the_load(text):
    load = parse_load(text)
    plan = plan_load(BenchOptions(load=text))
    assert plan.at_rate(7.0).load == (FixedRate(7.0) if isinstance(load, Closed) else type(load)(7.0))


@pytest.mark.parametrize(
    ("text", "times_s", "tokens"),
    [
        ("# recorded by hand\n10\n10.5\n\n12\n", (0.0, 0.5, 2.0), ()),
        ("time,size\n3,1\n1,2\n", (0.0, 2.0), ()),  # in the order of time, whatever that of lines
        ("host,time_ms\na,500\nb,1500\n", (0.0, 1.0), ()),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6800000,374,4\n2023-11-16 18:15:47,396,10\n",
            (0.0, 0.32),
            ((374, 4), (396, 10)),
        ),
        ('{"timestamp": 0, "input_length": 7, "output_length": 2}\n{"timestamp": 3}\n', (0.0, 3.0), ()),
        (
            '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
            '{"timestamp": 3054, "input_length": 7, "output_length": 9, "hash_ids": [0]}\n',
            (0.0, 3.054),
            ((6758, 500), (7, 9)),
        ),
        (
            '{"time": "2026-01-31T12:00:01.000+00:00", "method": "POST", "ms": 500}\n'
            '{"time": "2026-01-31T12:00:01.100+00:00", "method": "GET", "ms": 1}\n'
            '{"time": "2026-01-31T12:00:01.200Z", "method": "POST", "ms": 100}\n',
            (0.0, 0.6),  # a log tells when an answer was over
            (),
        ),
    ],
)
def test_a_trace_is_read_in_the_forms_in_which_others_write_it(tmp_path, text, times_s, tokens):
    file = tmp_path / "requests"
    file.write_text(text)
    load = parse_load(f"trace:{file}")
    assert load.times_s == pytest.approx(times_s)
    assert load.tokens == tokens
    assert load.tokens_of(len(times_s) + 1) == (tokens[1] if tokens else None)
    assert parse_load(str(load)) == load
    assert load.rate_per_s == pytest.approx((len(times_s) - 1) / times_s[-1])


def test_a_trace_begins_anew_and_goes_faster_where_that_is_asked_for(tmp_path):
    file = tmp_path / "a trace@home"
    file.write_text("0\n1\n3\n")
    load = parse_load(f"trace:{file}@2x")
    assert str(load) == f"trace:{file}@2x"
    assert (make_arrivals(load, seconds=3.5).intended_ns / 1e9).tolist() == [0, 0.5, 1.5, 2.25, 2.75]
    assert make_arrivals(load.at_rate(100.0), seconds=10.0).intended_ns[-1] < 10e9
    assert len(make_arrivals(load.at_rate(100.0), seconds=10.0)) == pytest.approx(1000, abs=3)
    assert plan_load(BenchOptions(load=f"trace:{file}")).rate_per_s == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "text", ["", "1\n", "5\n5\n", "a,b\n1,2\n", "yesterday\ntoday\n", "nan\n1\n", '{"at": 1}\n{"at": 2}\n', "[1]\n{\n"]
)
def test_a_file_without_times_is_no_trace(tmp_path, text):
    file = tmp_path / "requests"
    file.write_text(text)
    done = CliRunner().invoke(cli, ["bench", "digits_detector", "--load", f"trace:{file}"])
    assert done.exit_code == 1
    assert str(file)[-20:] in done.output.replace("\n", "").replace("       ", "")
    assert "->" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("text", ["trace", "trace:", "trace:x@0x"])
def test_a_trace_needs_a_file_and_a_speed(text):
    with pytest.raises(EdgeoptError, match="is not a load"):
        parse_load(text)
