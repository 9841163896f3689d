"""How the time limit is shared out where each turn of measuring opens a model above 2 GB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.measurement.turns.one_open import proof_seconds
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.choice.decide import candidates_that_fit
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.optimization.run import Run, Silence
from edgeopt.optimization.start import heed_slowness, read_given, start_run
from edgeopt.steps._context import MOST_MEASURED


@contextmanager
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, time_limit_s: float) -> Iterator[Run]:
    """Yield a run of a model of 256 KiB, whose weights lie outside, as if that were above 2 GB."""
    monkeypatch.setattr("edgeopt.graph.model._TWO_GB", 100_000)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> large (float[1, 256] x) => (float[1, 256] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(256, dtype=np.float32), "w"))
    onnx.save(proto, str(folder / "large.onnx"), save_as_external_data=True, location="large.bin", size_threshold=0)
    np.savez(folder / "inputs.npz", x=np.random.default_rng(0).random((4, 256), np.float32))
    options = Options(calib=str(folder / "inputs.npz"), steps=("quantize",), threads=1, time_limit_s=time_limit_s)
    given, frames = read_given(str(folder / "large.onnx"), "cpu", None, options)
    plan = make_plan(given.recipe, given.target, options, 1)
    run = start_run(given, frames, plan, folder / "out", False, None, Silence())
    with run.workspace:
        yield run


def test_the_share_of_measuring_follows_from_what_an_opening_takes(tmp_path, monkeypatch):
    with opened(tmp_path, monkeypatch, 100.0) as run:
        context, end = run.context, run.context.ends_at
        assert (end - context.candidates_end, end - context.searches_end) == pytest.approx((20.0, 40.0))
        heed_slowness(run)
        assert context.turn_s > 0
        context.turn_s = 1.5
        assert proof_seconds([1.5, 0.375]) < context.proof_s < 2 * proof_seconds([1.5, 1.5])
        assert end - context.candidates_end == pytest.approx(context.proof_s)
        assert context.proof_s < end - context.searches_end < 75.0
        context.turn_s = 20.0
        assert end - context.candidates_end == pytest.approx(100.0 * MOST_MEASURED), "a search has time in any case"


def test_a_limit_too_small_for_any_proof_is_told_before_work_begins(tmp_path, monkeypatch):
    with opened(tmp_path, monkeypatch, 1e-4) as run:
        heed_slowness(run)
        (note,) = [one for one in run.context.notes if "a proof opens this model again and again" in one.detail]
        assert note.hint.startswith("give --time-limit ")
    with opened(tmp_path, monkeypatch, 1e6) as run:
        heed_slowness(run)
        assert not [one for one in run.context.notes if "a proof" in one.detail]


def test_as_many_models_are_measured_as_have_their_rounds_in_time(tmp_path, monkeypatch):
    def one(name: str, size: int, agreement: float = 1.0) -> Candidate:
        return Candidate(name, "", (), "w8a8", f"{name}.onnx", size, agreement=agreement)

    with opened(tmp_path, monkeypatch, 100.0) as run:
        run.context.turn_s = 1.0
        run.candidates += [one(BASELINE, 1000), one("half", 500), one("spoilt", 100, 0.1), one("quarter", 250)]
        assert [each.name for each in candidates_that_fit(run, 1e9)] == [BASELINE, "half", "spoilt", "quarter"]
        assert not [note for note in run.context.notes if "not measured" in note.detail]
        for left_s in (0.0, run.context.proof_of([0.25])):
            assert [each.name for each in candidates_that_fit(run, left_s)] == [BASELINE, "quarter"]
        told = [note.detail for note in run.context.notes if "not measured" in note.detail]
        assert all(each.endswith("half, spoilt") for each in told)
        assert len(told) == 2
        both = candidates_that_fit(run, run.context.proof_of([0.25, 0.5]))
        assert [each.name for each in both] == [BASELINE, "half", "quarter"]
