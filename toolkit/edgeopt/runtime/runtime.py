"""The deployable runtime: a bundle in, answers out. It imports no onnx, no click, no torch.

runtime = edgeopt.Runtime.load("bundle")
detections = runtime.predict(frame)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from edgeopt.errors import Note
from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample, TensorSpec, require_names
from edgeopt.runtime.bundle import Artefact, Bundle, read_bundle
from edgeopt.runtime.fallback import open_first
from edgeopt.runtime.opening import Opening
from edgeopt.system.threads import engine_threads
from edgeopt.tasks import Task, make_task


class Runtime:
    """A loaded bundle. Threads may share it: they take turns, for its input buffer and its session are one."""

    def __init__(
        self,
        bundle: Bundle,
        artefact: Artefact,
        opening: Opening,
        session: Session,
        task: Task,
        notes: tuple[Note, ...] = (),
    ) -> None:
        """Bind an open session to its bundle; applications call `load`.

        Args:
            bundle: It was read from.
            artefact: Of the bundle, which runs.
            opening: How it was opened.
            session: The open artefact.
            task: Bound to the session's tensors.
            notes: Why artefacts before this one do not run.
        """
        self.bundle, self.artefact, self.opening = bundle, artefact, opening
        self.session, self.task, self.notes = session, task, notes
        self._turn = Lock()

    @classmethod
    def load(cls, path: str | Path, *, threads: int = 0) -> Runtime:
        """Open a bundle: check its hashes, open the first artefact that this machine can run.

        Args:
            path: The bundle's folder, or the output folder of `edgeopt optimize`.
            threads: 0: as the artefact was measured, but no more than logical cores.

        Raises:
            InvalidFileError: If the bundle is damaged.
            EdgeoptError: If none of its artefacts opens, or more threads are asked for than there are logical cores.
        """
        asked = engine_threads(threads) if threads else 0
        bundle = read_bundle(Path(path))
        first = open_first(bundle, asked)
        task = make_task(bundle.recipe, first.session.inputs, first.session.outputs, evaluating=False)
        return cls(bundle, first.artefact, first.opening, first.session, task, first.notes)

    def predict(self, frame: Sample) -> Any:
        """Return the answer for one frame.

        Args:
            frame: (height, width, 3), BGR, uint8, as `cv2.VideoCapture.read` gives it; or the model's inputs by name.

        Returns:
            The task's answer: `Detections` or `Classes`, in the frame's own pixels, or the outputs by name.

        Raises:
            ValueError: If it is no frame, or a frame or an input has another shape or type.
            UnsupportedError: If it is a picture and the bundle takes tensors only.
        """
        if isinstance(frame, Mapping):
            _require_inputs(frame, self.session.inputs)
        else:
            _require_picture(frame)
        with self._turn:
            inputs, geometry = self.task.preprocess(frame)
            return self.task.postprocess(self.session.run(inputs), geometry)

    def why_no_answer(self, frame: Sample) -> str:
        """Return which outputs are NaN for a frame, so that its answer is empty; empty where none is.

        It runs the model once more.
        """
        with self._turn:
            inputs, _ = self.task.preprocess(frame)
            outputs = self.session.run(inputs)
        floats = {name: value for name, value in outputs.items() if np.asarray(value).dtype.kind == "f"}
        counts = {name: (int(np.isnan(value).sum()), np.size(value)) for name, value in floats.items()}
        return "; ".join(
            f"output {name} is NaN in {count} of {size}" for name, (count, size) in counts.items() if count
        )


def _require_picture(frame: object) -> None:
    if not isinstance(frame, np.ndarray):
        told = "None, as OpenCV reads what it cannot" if frame is None else type(frame).__name__
        raise ValueError(f"a frame is an array (height, width, 3) uint8, not {told}")
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != "uint8" or not frame.size:
        raise ValueError(f"a frame is (height, width, 3) uint8, not {frame.shape} {frame.dtype}")


def _require_inputs(given: Mapping[str, Any], wanted: Sequence[TensorSpec]) -> None:
    require_names(given, [one.name for one in wanted])
    for one in wanted:
        array = np.asarray(given[one.name])
        fits = len(array.shape) == len(one.shape) and all(
            mine == size or not isinstance(mine, int) for mine, size in zip(one.shape, array.shape, strict=True)
        )
        if not fits or (str(array.dtype) != one.dtype and one.dtype not in ("object", "string")):
            found = f"{array.dtype} {'x'.join(map(str, array.shape))}"
            raise ValueError(f"{one.name} is {found}, the model takes {one}")
