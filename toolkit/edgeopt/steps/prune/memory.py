"""The knowledge of a pruning run, on disk as soon as it is known: an interrupted run takes it up.

One line of JSON each. What stands there is of one model, one set of pictures and these packages; a line that was torn
by the interrupt is left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.graph.model import Model
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.steps.prune.latency_table import Stopwatch
from edgeopt.steps.prune.network.layer_shapes import LayerShape
from edgeopt.system.machine.environment import package_versions

_VERSION = 1


class Memory:
    """Figures by kind and key."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        """Take up a folder, which need not exist.

        Args:
            folder: Where the file lies; those of other models may lie there too.
            description: Plain values that decide what is found.
        """
        text = json.dumps({"version": _VERSION, "packages": package_versions(), **description}, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._file = folder / f"prune-{self.key}.jsonl"
        self._known: dict[tuple[str, str], Any] = {}
        for line in self._file.read_text("utf-8").splitlines() if self._file.is_file() else ():
            try:
                kind, key, value = json.loads(line)
            except ValueError:  # torn
                continue
            self._known[kind, key] = value

    def __len__(self) -> int:
        return len(self._known)

    def value(self, kind: str, key: str, find: Callable[[], Any]) -> Any:
        """Return what is known, or else found now and kept."""
        if (kind, key) not in self._known:
            self.keep(kind, key, find())
        return self._known[kind, key]

    def keep(self, kind: str, key: str, value: Any) -> None:
        """Keep a plain value."""
        self._known[kind, key] = value
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, key, value]) + "\n")

    def loss(self, find: Callable[[Model], float]) -> Callable[[Model], float]:
        """Return a loss that judges each model once."""

        def judged(model: Model) -> float:
            result = self.value("loss", model.fingerprint, lambda: _plain(find(model)))
            return math.inf if result is None else float(result)

        return judged

    def ratio(self, find: Callable[[Model], Ratio]) -> Callable[[Model], Ratio]:
        """Return a speed that measures each model once."""

        def measured(model: Model) -> Ratio:
            result = dict(self.value("speed", model.fingerprint, lambda: asdict(find(model))))
            return Ratio(**{**result, "verdict": Change(result["verdict"])})

        return measured

    def stopwatch(self, find: Stopwatch) -> Stopwatch:
        """Return a stopwatch that times each layer once."""

        def timed(shapes: Sequence[LayerShape]) -> list[float]:
            missing = [shape for shape in shapes if ("ms", shape.key) not in self._known]
            for layer_shape, ms in zip(missing, find(missing) if missing else (), strict=True):
                self.keep("ms", layer_shape.key, float(ms))
            return [float(self._known["ms", layer_shape.key]) for layer_shape in shapes]

        return timed


def _plain(loss: float) -> float | None:
    """Return a loss as JSON has it: nothing stands for infinity."""
    return float(loss) if np.isfinite(loss) else None
