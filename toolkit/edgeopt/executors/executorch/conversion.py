"""The parent's side of the conversion: one child holds torch's exporter, which takes seconds to import, for all models.

The child is started when it is first needed and started anew after a death.
"""

from __future__ import annotations

import atexit
import tempfile
import threading
from pathlib import Path

from edgeopt.errors import MissingDependencyError, UnsupportedError
from edgeopt.executors._child import abort_in
from edgeopt.executors.executorch.file import ELSEWHERE
from edgeopt.executors.executorch.kept import keep_program, kept_program
from edgeopt.graph.model import Model, save_model
from edgeopt.system.declared.optional import how_to_install
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.time_limit import require_time, time_left_s
from edgeopt.system.processes.worker import Worker, WorkerDeathError, python_worker

TITLE = "executorch"
_MODULE = "edgeopt.executors._worker.executorch"
_LONGEST_S = 900.0
"""A network of 100 MB on a slow machine; what takes longer hangs."""


class _Converter:
    """Safe in threads: conversions take turns."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._turn = threading.Lock()

    def convert(self, model: Model) -> bytes:
        """Return a model as an ExecuTorch program. Raises as `to_program`."""
        with self._turn, tempfile.TemporaryDirectory(prefix="edgeopt-executorch-") as folder:
            source, made = Path(folder) / "model.onnx", Path(folder) / "model.pte"
            save_model(model, source)
            self._ask(Message({"do": "convert", "model": str(source), "to": str(made)}))
            return made.read_bytes()

    def _ask(self, message: Message) -> None:
        require_time()
        try:
            if self._worker is None:
                self._worker = python_worker(_MODULE, TITLE)
            answer = self._worker.ask(message, timeout_s=min(_LONGEST_S, max(time_left_s(), 0.1)))
        except WorkerDeathError as death:
            self._end()
            require_time()
            abort = abort_in(TITLE, "converting", death)
            raise abort or UnsupportedError(f"the conversion to executorch {death.how}", remedy=ELSEWHERE) from death
        except BaseException:  # an interrupt: its answer would be taken for the next request's
            self._end()
            raise
        values = answer.values
        if missing := values.get("missing"):
            raise MissingDependencyError(missing, remedy=how_to_install("executorch"))
        if refusal := values.get("refusal"):
            raise UnsupportedError(refusal, remedy=values.get("remedy") or ELSEWHERE)
        if error := values.get("error"):
            raise UnsupportedError(f"executorch does not convert the model: {error}"[:400], remedy=ELSEWHERE)

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def close(self) -> None:
        """End the child."""
        with self._turn:
            self._end()


_CONVERTER = _Converter()
"""The one of this process."""
atexit.register(_CONVERTER.close)


def to_program(model: Model) -> bytes:
    """Return a model as an ExecuTorch program, converted in a child, unless it was before.

    Raises:
        UnsupportedError: If it cannot be held, or its conversion hangs or dies.
        MissingDependencyError: If torch or executorch is not installed.
    """
    key = model.proto.SerializeToString(deterministic=True)
    program = kept_program(key)
    if program is None:
        program = _CONVERTER.convert(model)
        keep_program(key, program)
    return program
