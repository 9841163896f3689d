"""Messages of an engine that must not share our process, over a pipe: plain values and arrays.

Vendor libraries leak state between targets, crash and hang, so each runs in a process of its own. This file
is all that both sides share; it needs nothing but NumPy, so that a worker can live in another environment.

A message: 8 bytes with the length of the head (little-endian), the head (JSON), the bytes of the arrays.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import sleep
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")
_LOOK_S = 1.0
"""How often a child looks whether its parent is there."""


@dataclass(frozen=True)
class Message:
    """Plain values, and arrays by name."""

    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def write_message(stream: IO[bytes], message: Message) -> None:
    """Write one message and flush."""
    arrays = {name: np.asarray(array, order="C") for name, array in message.arrays.items()}
    kinds = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"values": dict(message.values), "arrays": kinds}).encode()
    stream.write(_LENGTH.pack(len(head)) + head)
    for array in arrays.values():
        stream.write(array.reshape(-1).view(np.uint8).data)  # as it lies there: it may be a model of gigabytes
    stream.flush()


def read_message(stream: IO[bytes]) -> Message:
    """Read one message; wait until it is there.

    Raises:
        EOFError: If the other side has closed the stream, or ended in the middle of a message.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    head = json.loads(_read(stream, length))
    arrays = {name: _read_array(stream, np.dtype(kind), tuple(shape)) for name, kind, shape in head["arrays"]}
    return Message(head["values"], arrays)


def replies_apart() -> IO[bytes]:
    """Return a child's standard output as the channel of answers; what it prints from now on goes to standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def told_error(error: Exception) -> Message:
    """Return what a parent is told of an error: engines have no common class of them, so it decides what it means."""
    return Message({"error": f"{type(error).__name__}: {error}"})


def serve_messages(
    replies: IO[bytes],
    handlers: Mapping[str, Callable[[Message], Message]],
    failed: Callable[[Exception], Message] = told_error,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Be a child: do what each message of the standard input says, and answer, until it closes.

    Args:
        replies: The channel of answers.
        handlers: By the word that a message has under `do`.
        failed: Returns the answer where one raises.
        settle: Called before each answer.
    """
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            message = read_message(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = handlers[message.values["do"]](message)
        except Exception as error:
            reply = failed(error)
        settle()
        write_message(replies, reply)


def _end_with_parent(parent: int) -> None:
    """End this process when its parent is gone, whatever it computes; Windows alone does not tell."""
    while os.getppid() == parent:
        sleep(_LOOK_S)
    os._exit(1)


def _read_array(stream: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.frombuffer(_read(stream, math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError(f"the stream ended {size - len(data)} bytes early")
    return data
