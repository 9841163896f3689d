"""The original pipeline on its calibration pictures: what each stage takes, how often models run, what each is fed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.accuracy.evaluate import Progress
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.runtime.pipelines.description import FRAME, Stage
from edgeopt.runtime.pipelines.pipeline import Answer, Pipeline, names_of
from edgeopt.steps.quantize.calibration import CALIBRATION_PICTURES
from edgeopt.system.disk.files import write_beside
from edgeopt.system.order_statistic import order_statistic

_REPEATS = 2
"""Repeats of each picture the fastest counts: what disturbs the machine goes, what the picture holds stays."""
_MOST_INPUTS = 512
"""Pictures, or samples, that a model behind others is calibrated on."""
_MOST_TAIL = 3.0


@dataclass(frozen=True)
class Original:
    """The pipeline before anything is changed: its times, and the inputs of its models."""

    frame_ms: float
    """Mean over the pictures."""
    model_ms: Mapping[str, float]
    """Mean a frame of each stage with a model, all its runs together."""
    runs: Mapping[str, NDArray[np.int64]]
    """(pictures,) how often each model ran."""
    tail_ratio: float
    """Time of a slow frame over the mean one: slow by the content of its pictures, not by a disturbance of the
    machine."""

    @property
    def fixed_ms(self) -> float:
        """The milliseconds of a frame outside the models."""
        return max(0.0, self.frame_ms - sum(self.model_ms.values()))


def observe_original(pipeline: Pipeline, frames: Frames, folder: Path | None, tell: Progress | None) -> Original:
    """Run the pictures, and keep what each model behind others is fed.

    Args:
        pipeline: With the models as they came; each is warm.
        frames: Calibration pictures.
        folder: Where the inputs go: `folder/STAGE`; None: another machine has kept them.
        tell: Hears progress.

    Raises:
        EdgeoptError: If a stage fails, or a model is fed nothing in any picture.
    """
    chosen = frames.spread(CALIBRATION_PICTURES)
    stages = pipeline.description.models
    inputs = {
        stage.name: _Inputs(folder / stage.name, stage, len(chosen))
        for stage in stages
        if folder is not None and stage.takes[0] != FRAME
    }
    times, runs, whole = [], [], []
    for i in range(len(chosen)):
        frame, best = chosen.picture(i), None
        for _ in range(_REPEATS):
            began = time.perf_counter_ns()
            answer = pipeline.predict(frame)
            took = time.perf_counter_ns() - began
            if best is None or took < best[0]:
                best = took, answer
        assert best is not None
        whole.append(best[0])
        times.append(best[1].times_ns)
        runs.append([best[1].runs[stage.name] for stage in stages])
        for input_ in inputs.values():
            input_.keep(best[1])
        if tell:
            tell("what each stage takes", i + 1, len(chosen))
    for input_ in inputs.values():
        input_.finish()
    table = np.maximum(np.array(times, np.int64), 0)
    places = {name: place for place, name in enumerate(pipeline.stages)}
    mean_ns = float(np.mean(whole))
    slow_ns = order_statistic(np.sort(np.array(whole, np.int64)), 0.99)
    return Original(
        frame_ms=mean_ns / 1e6,
        model_ms={
            input_.name: sum(float(table[:, places[n]].mean()) for n in names_of(input_)) / 1e6 for input_ in stages
        },
        runs={input_.name: np.array(runs, np.int64)[:, i] for i, input_ in enumerate(stages)},
        tail_ratio=min(max(slow_ns / mean_ns, 1.0), _MOST_TAIL),
    )


class _Inputs:
    """One model's inputs, on disk: pictures, or samples of arrays."""

    def __init__(self, folder: Path, stage: Stage, frames: int) -> None:
        self.folder, self._stage = folder, stage
        shutil.rmtree(folder, ignore_errors=True)  # an earlier run may have had other pictures
        self._each = max(1, _MOST_INPUTS // frames)
        self._count, self._samples = 0, list[Mapping[str, NDArray[Any]]]()

    def keep(self, answer: Answer) -> None:
        """Write what the model took of one frame."""
        pictures = answer.stages[self._stage.takes[0]]
        if isinstance(pictures, Crops):
            pictures = pictures.pictures
        for entry in (pictures if isinstance(pictures, list | tuple) else [pictures])[: self._each]:
            if isinstance(entry, Mapping):
                self._samples.append({name: np.asarray(value) for name, value in entry.items()})
                continue
            is_ok, data = cv2.imencode(".png", np.ascontiguousarray(entry))
            assert is_ok
            self._count += 1
            write_beside(self.folder / f"{self._count:05d}.png", data.tobytes())

    def finish(self) -> None:
        """Write samples of arrays as one file."""
        if self._samples:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = self._samples[0]
            arrays: dict[str, Any] = {
                name: np.concatenate([sample[name] for sample in self._samples]) for name in names
            }
            np.savez(self.folder / "inputs.npz", **arrays)
        elif not self._count:
            raise EdgeoptError(
                f"stage {self._stage.name} is fed nothing in any of the pictures: {self._stage.takes[0]} gives nothing",
                remedy="pass pictures that hold what the pipeline looks for: calib in its file, or --calib",
            )
