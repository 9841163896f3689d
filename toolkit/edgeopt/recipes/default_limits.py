"""Default losses that are allowed, and the limits of `edgeopt check` against its baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgeopt.system.toml import Within

MAX_DROP = 0.01
"""Metric that a faster model may lose, in the metric's own unit."""
MAX_RISE = 0.02
"""Share by which the perplexity of a faster language model may rise."""
Share = Annotated[float, Within(0, 1)]
Ratio = Annotated[float, Within(0, 1e6, above=True)]


@dataclass(frozen=True, slots=True)
class Check:
    """The limits of `edgeopt check` against its baseline."""

    latency_ratio: Ratio = 1.05
    """Time over the baseline's, of the execution and of the whole frame."""
    accuracy_drop: Share | None = None
    """Metric lost, in its own unit, or the share by which a perplexity rises; None: what `optimize` may lose."""
    size_ratio: Ratio = 1.05
    memory_ratio: Ratio = 1.10
    """Peak resident memory of a fresh process."""
    cold_start_ratio: Ratio = 1.20
    """Limit of the time from starting a process to its first answer, over the baseline's."""
    max_nodes_off_device: Annotated[int, Within(0)] = 0
    """How many more nodes than in the baseline may run outside the first provider."""
