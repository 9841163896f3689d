"""A model on a phone as a session, and whether it computes there what it computes here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind, UnavailableError
from edgeopt.executors import Placement, SessionOptions, Source, Staged
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.runtime.opening import Opening
from edgeopt.runtime.selftest import MOST_SAMPLES, noises, record
from edgeopt.tasks import FrameTask
from edgeopt.verbs.android.phone import Phone
from edgeopt.verbs.android.request import WorkThere, request_for_answers, require_carried

_MODEL, _INPUTS = "model.onnx", "inputs.bin"
_MOST_INPUT_BYTES = 64 << 20
"""Bytes of all inputs that a phone is sent; one sample is sent whatever it takes."""


class PhoneSession(Staged):
    """A model that runs on a phone: each run is a process of its own there, which opens it."""

    def __init__(
        self,
        phone: Phone,
        source: Source,
        opening: Opening,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        """Send a model.

        Args:
            phone: Where it runs.
            source: The model.
            opening: How it is opened there.
            inputs: What it takes.
            outputs: What it gives.

        Raises:
            EdgeoptError: If the phone does not take it.
        """
        self._phone, self._opening = phone, opening
        self.inputs, self.outputs = inputs, outputs
        self.simulated = False
        files, self._name = _files_of(source)
        self._folder = phone.put("the model", files)
        self.opened_ns: list[int] = []
        """Time that opening took, in each process."""
        self.frames_ns: list[int] = []
        """Time that a frame took at least, in each process."""
        self.version = ""
        """Version of ONNX Runtime there."""

    @property
    def program(self) -> str:
        """The engine and the phone."""
        return f"edgeopt-runner with ONNX Runtime {self.version} on {self._phone.name}"

    @property
    def opening_ms(self) -> Mapping[str, float]:
        """The time that the first opening took."""
        return {"create": self.opened_ns[0] / 1e6} if self.opened_ns else {}

    @property
    def options(self) -> SessionOptions:
        """How it is opened there."""
        return self._opening.options

    def work(self, samples: Sequence[Tensors]) -> WorkThere:
        """Send inputs, and return the part of a request that runs the model on them.

        Raises:
            UnsupportedError: If the runner does not take them.
        """
        first = samples[0]
        require_carried(first)
        shapes = {name: array.shape for name, array in first.items()}
        alike = [each for each in samples if {name: array.shape for name, array in each.items()} == shapes]
        size = sum(array.nbytes for array in first.values())
        kept = alike[: max(1, _MOST_INPUT_BYTES // max(size, 1))]
        data = b"".join(np.ascontiguousarray(each[name]).tobytes() for each in kept for name in first)
        folder = self._phone.put("inputs", {_INPUTS: data})
        return WorkThere(f"{self._folder}/{self._name}", f"{folder}/{_INPUTS}", len(kept), first, self.options)

    def execute(self, uploaded: Tensors) -> Tensors:
        """Open the model in a process of its own there, and run it.

        Raises:
            EdgeoptError: If it does not run there.
        """
        heard, data = self._phone.run(request_for_answers(self.work([uploaded])))
        if heard.lost is not None:
            raise heard.lost
        self.version = heard.version
        self.opened_ns += heard.opened_ns
        self._phone.tell("compare numbers on the phone", min(len(self.opened_ns), MOST_SAMPLES), MOST_SAMPLES)
        results: dict[str, np.ndarray[Any, Any]] = {}
        at = 0
        for answer in heard.answers:
            self.frames_ns.append(answer.frame_ns)
            for name, dtype, shape in answer.outputs:
                count = int(np.prod(shape, dtype=np.int64))
                try:
                    results[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
                except (ValueError, TypeError) as error:
                    raise UnavailableError(
                        f"{self._phone.address} sends other outputs than it tells", remedy="try again"
                    ) from error
                at += results[name].nbytes
        if missing := [spec.name for spec in self.outputs if spec.name not in results]:
            raise UnavailableError(f"{self._phone.address} sends no output {missing[0]}", remedy="try again")
        return results

    def placement(self) -> tuple[Placement, ...]:
        """Return nothing: the runner does not tell where nodes run, and it has the processor alone."""
        return ()

    def close(self) -> None:
        """Leave the model there: the next command finds it."""


def _files_of(source: Source) -> tuple[dict[str, Path | bytes], str]:
    """Return the files of a model by their names in one folder, and the name of the model among them."""
    if isinstance(source, bytes):
        return {_MODEL: source}, _MODEL
    if isinstance(source, Outside):
        weights = {path.relative_to(source.folder).as_posix(): path for path in source.files}
        return {_MODEL: source.graph, **weights}, _MODEL
    beside = {path.relative_to(source.parent).as_posix(): path for path in outside_files(source)}
    return {source.name: source, **beside}, source.name


def require_right_numbers(
    session: PhoneSession, source: Source, opening: Opening, task: FrameTask, samples: Sequence[Sample], precision: str
) -> tuple[Note, ...]:
    """Compare what a phone answers with what this machine's ONNX Runtime does, node by node, on some samples.

    Args:
        session: The model on the phone.
        source: The model.
        opening: How it is opened there.
        task: Bound to the model.
        samples: One or more.
        precision: Scheme of the model, which says how far rounding may go.

    Returns:
        A warning where the numbers are further off than by rounding.

    Raises:
        UnavailableError: If they are wrong: a time of another model is no figure.
    """
    chosen = samples[:MOST_SAMPLES]
    unoptimized = replace(opening.options, entries=dict(UNOPTIMIZED), threads=1)
    with closing(replace(opening, options=unoptimized).open(source)) as reference:
        recorded = record(reference, task, chosen, precision)
    off_by = noises(session, task, chosen, recorded)
    notes = []
    for name, limit in recorded.limits.items():
        off = off_by[name]
        share = f"{off:.2%} off" if np.isfinite(off) else "NaN, infinite or of another shape"
        text = f"output {name} of {session.program} is {share} from ONNX Runtime's here"
        if not off <= limit.wrong:
            raise UnavailableError(
                f"its numbers are wrong on the phone, so no time is told: {text}, {limit.wrong:.2%} is allowed",
                remedy="take another version of onnxruntime-android, or optimize the model for --target cpu-arm64",
            )
        if off > limit.rounding:
            notes.append(Note(NoteKind.WARNING, f"{text}, {limit.rounding:.2%} is rounding", "accuracy may differ"))
    return tuple(notes)
