"""Other processes that watch chunks of images beside this one.

They are plain children that run a module of ours: a script that calls the library needs no `__main__` guard, as the
spawn of `multiprocessing` would ask of it, and no engine is forked while its threads run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from edgeopt.errors import StepError, UnsupportedError
from edgeopt.executors._child import EngineAbortError, abort_in
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.observation import Part
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import Worker, WorkerDeathError, python_worker

_MODULE = "edgeopt.steps.quantize.calibration.child"
_LONGEST_S = 3600.0
"""A chunk of a huge model on a slow machine; a child that dies is noticed at once."""


class Crew:
    """A fixed number of children, each with the model open."""

    def __init__(self, size: int, model: bytes, plan: Mapping[str, Any]) -> None:
        """Start `size` children; they open the model while this process goes on.

        Args:
            size: One or more.
            model: Serialized.
            plan: Fields of `Watcher`, as plain values.
        """
        opening = Message(dict(plan), {"model": np.frombuffer(model, np.uint8)})
        self._workers = [python_worker(_MODULE, "a calibration process") for _ in range(size)]
        self._threads = [ThreadPoolExecutor(1, "calibration") for _ in self._workers]
        self._last: list[Future[Any]] = [
            thread.submit(_ask, worker, opening) for thread, worker in zip(self._threads, self._workers, strict=True)
        ]

    def submit(self, frames: Sequence[Tensors], first: int) -> Future[Part | None] | None:
        """Hand a chunk to an idle child; None if all are busy.

        The future's result is None if the child was ended from outside. It raises EngineAbortError if the engine
        aborted, on which this process must not try the chunk, and UnsupportedError as `Watcher.watch` does.
        """
        for i, last in enumerate(self._last):
            if last.done() and not isinstance(last.exception(), EngineAbortError) and last.result() is not None:
                future = self._threads[i].submit(_watch, self._workers[i], frames, first)
                self._last[i] = future
                return future
        return None

    def close(self) -> None:
        """End the children, whatever they are doing."""
        for worker in self._workers:
            worker.kill()
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)


def _ask(worker: Worker, message: Message) -> Message | None:
    try:
        return worker.ask(message, timeout_s=_LONGEST_S)
    except WorkerDeathError as death:
        if abort := abort_in("ONNX Runtime", "watching tensors of", death):
            raise abort from death
        return None
    except StepError:
        return None


def _watch(worker: Worker, frames: Sequence[Tensors], first: int) -> Part | None:
    arrays = {f"{i} {name}": value for i, frame in enumerate(frames) for name, value in frame.items()}
    answer = _ask(worker, Message({"first": first, "images": len(frames)}, arrays))
    if answer is None:
        return None
    if "problem" in answer.values:
        raise UnsupportedError(answer.values["problem"], remedy=answer.values["remedy"])
    return Part.from_arrays(answer.arrays)
