"""A model under plain ONNX Runtime, as its author would run it: the judge of what edgeopt makes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

import onnxruntime

Sample = Mapping[str, NDArray[Any]]
onnxruntime.set_default_logger_severity(4)


class Plain:
    """A session of one thread on the CPU."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = frozenset(one.name for one in self._session.get_inputs())
        self._names = [one.name for one in self._session.get_outputs()]

    def __call__(self, sample: Sample) -> Sample:
        """Return the outputs by name."""
        found = self._session.run(self._names, dict(sample))
        return {name: np.asarray(value) for name, value in zip(self._names, found, strict=True)}


@cache
def open_plain(path: Path) -> Plain:
    """Return the model's session, opened once."""
    return Plain(path)


def run_stream(run: Any, samples: Sequence[Sample], states: Mapping[str, str] | None) -> list[Sample]:
    """Return the answers; states that come out go in again, so that an error has its consequences."""
    held: dict[str, NDArray[Any]] = {}
    answers = []
    for sample in samples:
        found = run({**sample, **held})
        held = {states[name]: value for name, value in found.items() if name in states} if states else {}
        answers.append(found)
    return answers
