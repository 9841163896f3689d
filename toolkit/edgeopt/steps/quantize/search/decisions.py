"""All that decides one INT8 model, and the same model made of it again.

Which layers run on integers, every grid, every weight that was rounded otherwise than to nearest: timing, a
processor's own rounding of sums or a time limit may decide them otherwise the next time, so they are kept.
The rest is exact: the same bytes come out on any machine with the same packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.calibrate import Calibration, Observation
from edgeopt.steps.quantize.calibration.findings import Findings
from edgeopt.steps.quantize.forms import WRITERS
from edgeopt.steps.quantize.grids.histogram import Histogram
from edgeopt.steps.quantize.scheme import Scheme, open_graph
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant

_NOTHING = Histogram(0.0, 0.0, 0, 0, np.zeros(1, np.int64))


@dataclass(frozen=True, slots=True)
class Extremes:
    """Calibration's extremes of one tensor, as far as changes of the float model go by them."""

    low: NDArray[np.float32]
    """Minimum of each channel."""
    high: NDArray[np.float32]
    axis: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """All that an INT8 model depends on beside its float model."""

    variant: Variant
    scheme: Scheme
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """Values that its repairs of the float model computed before, by name of the repair."""
    extremes: Mapping[str, Extremes] = field(default_factory=dict)
    """Extremes by tensor; empty where the float model was not changed first."""


def decisions_of(sources: Sources, variant: Variant, scheme: Scheme) -> Decisions:
    """Return what decided a variant.

    Args:
        sources: What it was made of.
        variant: What was made.
        scheme: What of it runs on integers, weights and biases repaired.
    """
    names = [name for name, _ in variant.model_repairs]
    seen = sources.seen if names else {}
    extremes = {
        name: Extremes(observation.low, observation.high, observation.axis) for name, observation in seen.items()
    }
    return Decisions(variant, scheme, {name: sources.prepared(name) for name in names}, extremes)


def make_again(model: Model, decisions: Decisions) -> Outcome:
    """Return the INT8 model that these decisions once made.

    Args:
        model: The same float model.
        decisions: Of the earlier search.
    """
    variant, scheme = decisions.variant, decisions.scheme
    seen = {
        name: Observation(
            extreme.low, extreme.high, _NOTHING, np.zeros((0, len(extreme.low)), np.float32), extreme.axis
        )
        for name, extreme in decisions.extremes.items()
    }
    sources = Sources(model, Findings(Calibration(seen, 0, 0.0), {}, {}), scheme.rules, (), dict(decisions.prepared))
    graph = open_graph(sources.model_of(variant))
    changes = WRITERS[variant.form].place(graph, scheme)
    return Outcome(graph.to_model(), changes)
