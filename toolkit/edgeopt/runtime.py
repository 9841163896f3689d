"""The deployable runtime: a bundle in, answers out. It imports no onnx, no click, no torch.

runtime = edgeopt.Runtime.load("bundle")
detections = runtime.predict(frame)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt import executors, plugins, tasks
from edgeopt.bundle import Artefact, Bundle, read_bundle
from edgeopt.environment import physical_cores
from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session, SessionOptions, arithmetic
from edgeopt.tasks import Task
from edgeopt.tensors import Sample, TensorSpec, require_names


class Runtime:
    """A loaded bundle. Not for two threads at once: its input buffer is its own; load one each."""

    def __init__(self, bundle: Bundle, session: Session, task: Task, notes: tuple[Note, ...] = ()) -> None:
        self.bundle, self.session, self.task, self.notes = bundle, session, task, notes

    @classmethod
    def load(cls, path: str | Path, *, threads: int = 0) -> Runtime:
        """Open a bundle: check its hashes, open the first artefact that this machine can run.

        Args:
            path: The bundle's folder, or the output folder of `edgeopt optimize`.
            threads: 0: as the target says, or one per physical core.

        Raises:
            InvalidFileError: If the bundle is damaged.
            EdgeoptError: If none of its artefacts opens.
        """
        bundle = read_bundle(Path(path))
        notes: list[Note] = []
        for artefact in bundle.artefacts:
            try:
                session = _open(bundle, artefact, threads or bundle.target.threads or physical_cores())
            except EdgeoptError as error:
                notes.append(Note(NoteKind.WARNING, f"{artefact.file} not used: {error.problem}", error.remedy))
                continue
            task = plugins.load(tasks, bundle.recipe.task).TASK(bundle.recipe, session.inputs, session.outputs, False)
            return cls(bundle, session, task, tuple(notes))
        raise EdgeoptError(
            f"no model of {bundle.folder} opens here: {'; '.join(note.detail for note in notes)}",
            remedy="run edgeopt doctor",
        )

    def predict(self, frame: Sample) -> Any:
        """Return the answer for one frame.

        Args:
            frame: (height, width, 3), BGR, uint8, as `cv2.VideoCapture.read` gives it; or the model's inputs by name.

        Returns:
            `Detections` or `Classes`, in the frame's own pixels; of a bundle for tensors, the outputs by name.

        Raises:
            ValueError: If the frame, or an input, has another shape or type.
            UnsupportedError: If it is a picture and the bundle takes tensors only.
        """
        if isinstance(frame, Mapping):
            _require_inputs(frame, self.session.inputs)
        elif frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != "uint8":
            raise ValueError(f"a frame is (height, width, 3) uint8, not {frame.shape} {frame.dtype}")
        inputs, geometry = self.task.preprocess(frame)
        return self.task.postprocess(self.session.run(inputs), geometry)


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


def _open(bundle: Bundle, artefact: Artefact, threads: int) -> Session:
    """Open an artefact on the engine that it was chosen for."""
    engine = artefact if artefact.executor else bundle.target
    options = SessionOptions(engine.providers, threads, engine.options, precision=arithmetic(artefact.precision))
    session: Session = plugins.load(executors, engine.executor).EXECUTOR.open(bundle.folder / artefact.file, options)
    return session
