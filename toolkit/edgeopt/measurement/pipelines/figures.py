"""The time of each stage of a pipeline in a frame, the parts of a model's stage together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples
from edgeopt.runtime.pipelines.description import Description
from edgeopt.runtime.pipelines.pipeline import names_of


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage of the file: what it costs a frame."""

    name: str
    kind: str
    """`model`, `crop` or `call`; `load` where pictures are read."""
    mean_ms: float
    """A frame, all its runs together."""
    p50_ms: float
    share_ratio: float
    """Share of the mean frame."""
    budget_ratio: float
    """Its mean over the budget of the whole frame."""
    runs_mean: float = 1.0
    """How often a frame makes it run."""
    runs_most: int = 1


def stage_costs(
    description: Description, samples: Samples, runs: Mapping[str, NDArray[np.int64]], budget_ms: float
) -> tuple[StageCost, ...]:
    """Return what each stage costs, in order.

    Args:
        description: Of the pipeline.
        samples: Of its frames; warm-up does not count.
        runs: (n,) how often each model ran in each row, by stage.
        budget_ms: Of a frame.
    """
    rows, is_steady = samples.steady().served(), ~samples.warmup & ~samples.lost
    whole_ns = float(rows.frame_ns.mean())
    parts = {stage.name: (stage.kind, names_of(stage)) for stage in description.stages}
    if "load" in rows.stages:
        parts = {"load": ("load", ("load",)), **parts}
    result = []
    for name, (kind, names) in parts.items():
        took = np.sum([rows.stage(other) for other in names], axis=0)
        counts = runs[name][is_steady] if name in runs else np.ones(1, np.int64)
        mean_ms = float(took.mean()) / 1e6
        result.append(
            StageCost(
                name=name,
                kind=kind,
                mean_ms=mean_ms,
                p50_ms=float(np.median(took)) / 1e6,
                share_ratio=mean_ms * 1e6 / whole_ns,
                budget_ratio=mean_ms / budget_ms,
                runs_mean=float(counts.mean()),
                runs_most=int(counts.max()),
            )
        )
    return tuple(result)
