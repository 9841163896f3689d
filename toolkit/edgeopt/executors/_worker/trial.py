"""The child in which engines open and run models first; `executors/_child.py` is its parent's side."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgeopt import executors
from edgeopt.errors import EdgeoptError
from edgeopt.executors import Session, SessionOptions, Source
from edgeopt.executors._child import received, sendable_outputs
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.system.declared import registry
from edgeopt.system.processes.messages import Message, replies_apart, serve_messages

_PAST_AXIS = 2
"""Past axis of a cache (batch, heads, tokens, head): how many tokens it holds."""
_MOST_HELD = 4
"""Sessions that wait for their first run."""


class _Trial:
    def __init__(self) -> None:
        self._held: dict[str, Session] = {}

    def open(self, message: Message) -> Message:
        values = message.values
        options = SessionOptions(**{**values["options"], "providers": tuple(values["options"]["providers"])})
        self._close(values["key"])
        while len(self._held) >= (1 if values["is_alone"] else _MOST_HELD):
            self._close(next(iter(self._held)))
        if values["pages"]:
            self._try_pages(Path(values["path"]), options, values["pages"])
            return Message({})
        session = registry.load(executors, values["executor"]).EXECUTOR.open(_source(message), options)
        if values["keeps"]:
            self._held[values["key"]] = session
        else:
            session.close()
        return Message({})

    @staticmethod
    def _try_pages(file: Path, options: SessionOptions, use: str) -> None:
        from edgeopt.executors.openvino.pages import PagedGraph, PagesUse

        graph = PagedGraph(file, options, PagesUse(use))
        graph.try_once()
        graph.close()

    def run(self, message: Message) -> Message:
        key = message.values["key"]
        session = self._held.get(key)
        if session is None:
            return Message({"is_open": False})
        inputs = _made_up(session.inputs) if message.values["is_made_up"] else received(message.arrays)
        keeps = False
        try:
            outputs = session.run(inputs)
            keeps = message.values["keeps"]
        finally:
            if not keeps:
                self._close(key)
        return Message({}, sendable_outputs(outputs) if message.values["wants"] else {})

    def _close(self, key: str) -> None:
        session = self._held.pop(key, None)
        if session is not None:
            session.close()


def _source(message: Message) -> Source:
    values = message.values
    if "path" in values:
        return Path(values["path"])
    arrays = cast("dict[str, NDArray[Any]]", message.arrays)
    data = arrays.pop("model").tobytes()  # the message lives as long as the session is opened
    if "outside" in values:
        folder, files = values["outside"]
        return Outside(data, Path(folder), tuple(map(Path, files)))
    return data


def _made_up(specs: tuple[TensorSpec, ...]) -> Tensors:
    """Return the first token of a text, as decoders take it: token 0, a mask of one, and a cache that holds nothing."""
    made = {}
    for spec in specs:
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in spec.shape]
        is_past = len(shape) == 4 and not isinstance(spec.shape[_PAST_AXIS], int) and "encoder" not in spec.name
        if is_past:
            shape[_PAST_AXIS] = 0
        is_text = spec.dtype in ("object", "string")
        fill = np.ones if "mask" in spec.name else np.zeros
        made[spec.name] = np.full(shape, "a", object) if is_text else fill(shape, spec.dtype)
    return made


def _refusal(error: Exception) -> Message:
    if isinstance(error, EdgeoptError):
        return Message({"refusal": error.problem})
    return Message({"refusal": " ".join(f"{type(error).__name__}: {error}".split())})


def main() -> None:
    """Serve until the input closes; an interrupt is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies, trial = replies_apart(), _Trial()
    serve_messages(replies, {"open": trial.open, "run": trial.run}, _refusal)


if __name__ == "__main__":
    main()
