"""The child that converts models to ExecuTorch programs; `executors/executorch/conversion.py` is its parent's side."""

from __future__ import annotations

import logging
import signal
import warnings

import numpy as np
import onnx

from edgeopt.errors import EdgeoptError
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.model import Model
from edgeopt.system.processes.messages import Message, replies_apart, serve_messages


def _convert(message: Message) -> Message:
    from edgeopt.executors.executorch.program import to_pte  # what it lacks is an answer, not the child's end

    proto = onnx.load_model_from_string(message.arrays["model"].tobytes())
    require_valid(proto, "the model")
    return Message({}, {"program": np.frombuffer(to_pte(Model(proto, "the model")), np.uint8)})


def _told(error: Exception) -> Message:
    if isinstance(error, EdgeoptError):
        return Message({"refusal": error.problem, "remedy": error.remedy})
    line = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, ImportError):
        return Message({"missing": f"executorch cannot be imported ({line}): converting a model for it needs it"})
    return Message({"error": line})


def main() -> None:
    """Serve until the input closes; an interrupt is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    serve_messages(replies_apart(), {"convert": _convert}, _told)


if __name__ == "__main__":
    main()
