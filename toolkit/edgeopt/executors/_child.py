"""One child process in which an engine opens and runs a model first: its abort ends the child, not the command.

The child is started when it is first needed, serves all that follows, and is started anew after a death.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt import executors
from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import SessionOptions, Source
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.tensors import Tensors
from edgeopt.system.declared import registry
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.time_limit import require_time, time_left_s
from edgeopt.system.processes.worker import Worker, WorkerDeathError, close_at_exit, python_worker

_MODULE = "edgeopt.executors._worker.trial"
_LONGEST_S = 1800.0
"""A compiling engine on a slow device; an abort is noticed at once."""
_LATEST_S = 5.0
"""How long what is begun at the end of a time limit may take beyond it."""
_ABORTS = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
"""Signals by which an engine's own fault ends a process. Others come from outside: SIGKILL where memory is short."""
_WINDOWS_ABORTS = re.compile(r"ended with exit code (3|3221\d{6}|-107\d{7})$")
"""Windows has exit codes for them: 3 of `abort`, 0xC0000005 and its neighbours of the system."""
_TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "mnn": "MNN", "browser": "onnxruntime-web"}
_PLACE = re.compile(r"\S*[/\\]\S+:\d+:?\s*")
"""A line in somebody's source."""


class EngineAbortError(UnsupportedError):
    """An engine ended the process in which it opened or ran a model."""


class ChildLostError(Exception):
    """The child could not be started, or was ended from outside: nothing is known of the model."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A child's answer to a request."""

    refusal: str = ""
    """The engine's objection to the model or its inputs; empty: it ran the request."""
    is_open: bool = True
    """Whether the child still held the session that was to run."""
    outputs: Tensors = field(default_factory=dict)
    """Where answers were wanted: those that are arrays of numbers or texts."""


class EngineChild:
    """The parent's side. Safe in threads: requests take turns."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._turn = threading.RLock()

    def open(
        self,
        key: str,
        executor: str,
        source: Source,
        options: SessionOptions,
        *,
        keeps: bool = True,
        is_alone: bool = False,
        pages: str = "",
    ) -> Ran:
        """Open a model in the child.

        Args:
            key: Names the session in later requests.
            executor: The engine's name.
            source: The model.
            options: As in this process.
            keeps: Whether the session stays open for a run.
            is_alone: Whether those that are open are closed first.
            pages: What a decoder over pages is for, which is then opened and run; empty: a session is opened.

        Raises:
            EngineAbortError: If the engine aborted.
            ChildLostError: If nothing is known.
        """
        values: dict[str, Any] = {"do": "open", "key": key, "executor": executor, "keeps": keeps}
        values |= {"is_alone": is_alone, "pages": pages}
        values["options"] = {**asdict(options), "entries": dict(options.entries)}
        try:
            source = registry.load(executors, executor).EXECUTOR.converted(source)
        except EdgeoptError as error:
            return Ran(error.problem)
        if isinstance(source, Path):
            return self._ask(executor, "opening", Message({**values, "path": str(source)}))
        if isinstance(source, Outside):
            values["outside"] = [str(source.folder), [str(path) for path in source.files]]
        data = source.graph if isinstance(source, Outside) else source
        return self._ask(executor, "opening", Message(values, {"model": np.frombuffer(data, np.uint8)}))

    def run(
        self, key: str, executor: str, inputs: Tensors | None, *, wants_outputs: bool = False, keeps: bool = False
    ) -> Ran:
        """Run a session of the child once.

        Args:
            key: As it was opened.
            executor: The engine's name.
            inputs: By name; None: the child makes some up.
            wants_outputs: Whether the answers are returned.
            keeps: Whether the session stays open.

        Raises:
            EngineAbortError: If the engine aborted.
            ChildLostError: If nothing is known.
        """
        arrays = {} if inputs is None else {name: _sendable(name, input_) for name, input_ in inputs.items()}
        values = {"do": "run", "key": key, "is_made_up": inputs is None, "wants": wants_outputs, "keeps": keeps}
        return self._ask(executor, "first running", Message(values, arrays))

    def close(self) -> None:
        """End the child."""
        with self._turn:
            worker, self._worker = self._worker, None
            if worker is not None:
                worker.kill()

    def _ask(self, executor: str, doing: str, message: Message) -> Ran:
        title = title_of(executor)
        with self._turn:
            try:
                if self._worker is None:
                    self._worker = python_worker(_MODULE, title)
                longest_s = min(_LONGEST_S, max(time_left_s(), _LATEST_S))
                answer = self._worker.ask(message, timeout_s=longest_s)
            except WorkerDeathError as death:
                self.close()
                if not death.signal_name:
                    require_time()  # it was killed since the time is over, which tells nothing of the model
                raise abort_in(title, doing, death) or ChildLostError() from death
            except OSError as error:
                self.close()
                raise ChildLostError from error
            except BaseException:  # an interrupt: its answer would be taken for the next request's
                self.close()
                raise
        values = answer.values
        return Ran(values.get("refusal", ""), values.get("is_open", True), received(answer.arrays))


def title_of(executor: str) -> str:
    """Return how an engine is called in sentences."""
    return _TITLES.get(executor, executor)


def abort_in(title: str, doing: str, death: WorkerDeathError) -> EngineAbortError | None:
    """Return the abort of an engine by which a child died; None where it was ended from outside.

    Args:
        title: The engine's name.
        doing: What it was doing with the model.
        death: Of the child.
    """
    if death.signal_name not in _ABORTS and not _WINDOWS_ABORTS.search(death.how):
        return None
    said = without_place(death.last_line)
    return EngineAbortError(
        f"{title} {death.how} while {doing} it{f': {said}' if said else ''}",
        remedy="the fault is the engine's: a newer version may mend it, or choose a target of another engine",
    )


def without_place(line: str) -> str:
    """Return what a C++ program said last, without its place in the source and the signature of its function."""
    line = _PLACE.sub("", line)
    at = line.find("Assertion ")
    return (line[at:] if at >= 0 else line).strip().removeprefix("what():").strip()


def _sendable(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """Return an array as a message carries it: texts in a type of fixed width.

    Raises:
        ChildLostError: If its type has no name in plain NumPy.
    """
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return array.astype(str)
    if array.dtype.kind not in "fiub":
        raise ChildLostError(f"{name} is {array.dtype}")
    return array


def received(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message with texts as engines take them."""
    return {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in arrays.items()}


def sendable_outputs(outputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return those of a run's outputs that a message carries: sequences and maps are left out."""
    made: dict[str, NDArray[Any]] = {}
    for name, value in outputs.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiubOSU":
            made[name] = _sendable(name, value)
    return made


CHILD = EngineChild()
"""The one child of this process."""
close_at_exit(CHILD.close)
