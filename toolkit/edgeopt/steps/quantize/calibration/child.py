"""The other side of a calibration process: open the model once, watch chunk after chunk until the pipe closes."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import onnx
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.calibration.watching import Watcher
from edgeopt.system.processes.messages import Message, read_message, write_message


def serve(asked: IO[bytes], answered: IO[bytes]) -> None:
    """Answer messages until there are no more."""
    try:
        opening = read_message(asked)
        plan = opening.values
        model = Model(onnx.load_from_string(opening.arrays["model"].tobytes()), "calibrated")
        watcher = Watcher(model, **plan)
        write_message(answered, Message({}))
        while True:
            write_message(answered, _answer(watcher, read_message(asked)))
    except (EOFError, BrokenPipeError):
        return  # the parent is done, or gone


def _answer(watcher: Watcher, message: Message) -> Message:
    frames: list[dict[str, NDArray[Any]]] = [{} for _ in range(message.values["images"])]
    for key, value in message.arrays.items():
        number, name = key.split(" ", 1)
        frames[int(number)][name] = value
    try:
        return Message({}, watcher.watch(frames, message.values["first"]).to_arrays())
    except UnsupportedError as error:
        return Message({"problem": error.problem, "remedy": error.remedy})


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not speak into the pipe
    serve(sys.stdin.buffer, pipe)
