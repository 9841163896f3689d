"""The open loop around a real detector: what must hold whatever the machine does."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest

from edgeopt import executors, tasks
from edgeopt.executors import SessionOptions
from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import parse_load
from edgeopt.measurement.load.open_loop import run_open
from edgeopt.measurement.load.result import summarize_load
from edgeopt.measurement.samples import Samples
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.schedule.queueing import parse_queue
from edgeopt.system.declared import registry


@pytest.mark.slow
def test_a_real_detector_behind_two_cameras_accounts_for_every_frame(data, tmp_path):
    session = registry.load(executors, "onnxruntime").EXECUTOR.open(
        data / "models" / "yolox_nano_416.onnx", SessionOptions(threads=1)
    )
    recipe = find_recipe("yolox").with_size(416, 416)
    task = registry.load(tasks, recipe.task).TASK(recipe, session.inputs, session.outputs, False)
    pictures = open_frames(data / "coco" / "val")
    frames = [partial(pictures.read, i) for i in range(16)]
    load, queue = parse_load("fps:30"), parse_queue("latest")
    arrivals = make_arrivals(load, seconds=3.0, streams=2)
    samples = run_open(frames, [(task, session)], arrivals, queue=queue, warmup_s=0.5)
    result = summarize_load(samples, load, queue=queue, streams=2, budget_ms=33.0)

    rows, served = samples.select(np.arange(len(samples)) >= 10), samples.served()
    assert len(arrivals) == len(rows) == 180
    assert len(samples.served()) + samples.dropped.sum() + samples.failed.sum() == len(samples)
    assert samples.stages == ("load", "preprocess", "upload", "execute", "download", "postprocess")
    assert (np.bincount(rows.stream) == 90).all()
    assert (served.started_ns >= served.intended_ns).all()
    assert (served.overhead_ns >= 0).all()
    assert (served.stage("execute") > 0).all()
    assert (np.sort(served.started_ns)[1:] >= np.sort(served.done_ns)[:-1]).all()
    assert (served.n_out > 0).any()
    assert result.arrivals == result.served + result.dropped + result.failed
    assert 0 < result.utilisation_ratio <= 1
    assert result.budget.misses >= result.dropped
    json.dumps(asdict(result), allow_nan=False)
    samples.save(tmp_path / "samples.npz")
    np.testing.assert_array_equal(Samples.read(tmp_path / "samples.npz").dropped, samples.dropped)
