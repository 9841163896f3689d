"""A bundle keeps the figures of its calibration frames where there are enough, and a watch compares with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_brief import briefly
from fixture_models import model, numbers

from edgeopt import Runtime, optimize
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.model import save_model
from edgeopt.optimization.result import ModelReport
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.drift.sketch import FILE, read_sketch
from edgeopt.runtime.drift.state import DriftKind


def optimized(folder: Path, frames: int, **wishes: object) -> tuple[ModelReport, np.ndarray]:
    net = model("net (float[1,3,32,32] x) => (float[1,4,30,30] y) { y = Conv(x, w) }", w=numbers(4, 3, 3, 3))
    save_model(net, folder / "net.onnx")
    generator = np.random.default_rng(0)
    passed = generator.normal(generator.normal(size=(frames, 1, 1, 1)), 1, (frames, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "passed.npz", x=passed)
    with briefly():
        report = optimize(
            folder / "net.onnx",
            target="cpu",
            out=folder / "out",
            calib=str(folder / "passed.npz"),
            steps=("simplify",),
            threads=1,
            **wishes,
        )
    return report, passed


def test_a_sketch_of_enough_frames_is_kept_and_watched(tmp_path):
    report, passed = optimized(tmp_path, 40)
    bundle = read_bundle(report.bundle)
    assert bundle.sketch is not None
    sketch = read_sketch(report.bundle / bundle.sketch.file)
    assert (sketch.frames, sketch.source, sketch.artefact) == (40, "calibration", bundle.artefacts[0].file)
    assert sketch.values["brightness"] == pytest.approx(
        sorted(float(frame[:, 8:23:1, 8:24].sum(axis=0).mean()) for frame in passed), abs=0.5
    )
    assert f"{FILE} " in " ".join(note.detail for note in report.notes)
    with Runtime.load(report.bundle, strict=True) as runtime:
        watch = runtime.watch_drift(every=1)
        runtime.predict_batch({"x": frame[None]} for frame in passed)
        assert not sum(watch.state().began.values())
        runtime.predict_batch({"x": frame[None] - 5} for frame in passed)
        assert watch.state().began[DriftKind.DARKNESS] == 1


def test_a_changed_sketch_is_a_changed_bundle(tmp_path):
    report, _ = optimized(tmp_path, 40)
    path = report.bundle / FILE
    path.write_text(path.read_text().replace("brightness", "darkness"))
    with pytest.raises(InvalidFileError, match=r"drift\.json differs from its hash"):
        Runtime.load(report.bundle)


def test_few_frames_are_no_sketch(tmp_path):
    report, _ = optimized(tmp_path, 20)
    assert read_bundle(report.bundle).sketch is None
    assert not (report.bundle / FILE).exists()
    with Runtime.load(report.bundle) as runtime, pytest.raises(EdgeoptError, match="nothing is known"):
        runtime.watch_drift()


def test_a_bundle_without_a_test_of_its_numbers_keeps_its_sketch(tmp_path):
    report, _ = optimized(tmp_path, 40, selftest="off")
    assert read_bundle(report.bundle).sketch is not None
