"""The grid and the score of each tensor of a model, from one run over the calibration images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.calibrate import Calibration, Observation, calibrate
from edgeopt.steps.quantize.grids.affine import Affine, integer_range, make_affine
from edgeopt.steps.quantize.grids.ranges import FIRST_METHOD, Method, choose_affine
from edgeopt.steps.quantize.grids.weights import not_finite
from edgeopt.steps.quantize.keep_float.scores import PERFECT_DB, plain_score_db, rows_score_db, score_db
from edgeopt.steps.quantize.patterns import channel_axis, following_activation, name_of
from edgeopt.steps.quantize.scheme import candidates, watched
from edgeopt.system.declared.target import Int8Rules
from edgeopt.system.text import plural

_ALIKE = 0.01
_UNIT_STEP = 2.0**-8
"""Step of the output of LiteRT's integer LOGISTIC, whose least integer stands for 0."""
NO_GRID_DB = -PERFECT_DB
"""Score of a tensor that is infinite or NaN, a mask for one: it stays in float."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The grid and the score of every tensor that may be quantized."""

    calibration: Calibration
    affines: Mapping[str, Affine]
    scores_db: Mapping[str, float]
    """Per-channel-normalised SQNR of each tensor on its grid."""

    plain_db: Mapping[str, float] = field(default_factory=dict)
    """SQNR of each tensor on its grid, all channels together: for the report, it orders nothing."""

    off: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Form -> keys of the nodes that it computes otherwise than its integers say; see `find_off_layers`."""

    def off_in(self, form: str) -> frozenset[str]:
        """Return those of a form."""
        return self.off.get(form, frozenset())

    def scores_by_rows_db(self, least_db: float) -> Mapping[str, float]:
        """Return the scores, those below a limit anew with a grid for each row, where rows lie along the channels."""
        seen = self.calibration.observations
        low = {name for name, score in self.scores_db.items() if NO_GRID_DB < score < least_db}
        by_rows = {name: rows_score_db(seen[name].samples) for name in low if seen[name].axis == -1}
        return {**self.scores_db, **by_rows}

    @property
    def notes(self) -> tuple[Note, ...]:
        """A warning where the images cannot show what the model will meet, and what calibration itself has to say."""
        noted = (*self.calibration.notes, *self._without_grid())
        if self.calibration.images == 1:
            detail = "there was 1 calibration image: what other images reach is not known"
            return (Note(NoteKind.WARNING, detail, "give about 100 images of different scenes"), *noted)
        if self.calibration.spread_ratio >= _ALIKE:
            return noted
        alike = f"they differ by {self.calibration.spread_ratio:.2%} of the spread inside one image"
        detail = f"the {self.calibration.images} calibration images are alike"
        return (Note(NoteKind.WARNING, detail, "give images of different scenes", more=alike), *noted)

    def _without_grid(self) -> Iterator[Note]:
        observations = {
            name: observation for name, observation in self.calibration.observations.items() if observation.why_no_grid
        }
        if observations:
            shown = ", ".join(
                f"{name!r} {observation.why_no_grid}" for name, observation in islice(observations.items(), 2)
            )
            detail = f"{plural(len(observations), 'tensor')} without a grid, in float with the layers around: {shown}"
            yield Note(NoteKind.CHOICE, detail, names=tuple(observations))


def study(
    model: Model,
    graph: Graph,
    frames: Iterable[Tensors],
    rules: Int8Rules,
    *,
    method: Method = FIRST_METHOD,
    progress: Callable[[int], None] | None = None,
    cache: Path | None = None,
    known: Calibration | None = None,
    seed: int = 0,
) -> Findings:
    """Calibrate, and choose and score the grid of every tensor that may be quantized.

    Args:
        model: The float model.
        graph: Its graph, with shapes.
        frames: Real model inputs, one image each; read once.
        rules: What INT8 form the target runs.
        method: How activation ranges are chosen.
        progress: Called with the number of images done.
        cache: Folder in which calibration keeps finished chunks; None: nowhere.
        known: What an earlier calibration of this model on these images saw, for whatever target; used where it
            holds every tensor, channel by channel of the same axis.
        seed: Decides which positions of each tensor are kept.

    Raises:
        UnsupportedError: If a weight that integers would hold is NaN or infinite, or an input is NaN.
        EdgeoptError: If there are no images.
    """
    require_finite_weights(candidates(graph, rules), graph)
    values = watched(graph, rules)
    axes = {name: channel_axis(graph, value) for name, value in values.items()}
    if (
        known is not None
        and axes.items() <= {name: observation.axis for name, observation in known.observations.items()}.items()
    ):
        seen = {name: known.observations[name] for name in axes}
        return with_method(Findings(replace(known, observations=seen), {}, {}), graph, rules, method)
    calibration = calibrate(model, frames, axes, seed=seed, progress=progress, cache=cache)
    return with_method(Findings(calibration, {}, {}), graph, rules, method)


def with_method(findings: Findings, graph: Graph, rules: Int8Rules, method: Method) -> Findings:
    """Return the findings with grids chosen by another method, from the same images.

    Args:
        findings: Of this model.
        graph: The float model, with shapes.
        rules: What INT8 form the target runs.
        method: How activation ranges are chosen.
    """
    seen, values = findings.calibration.observations, watched(graph, rules)
    affines = {name: grid_of(graph, values[name], observation, rules, method) for name, observation in seen.items()}
    return replace(
        findings,
        affines=affines,
        scores_db={
            name: _scored(observation, score_db(observation.samples, affines[name]))
            for name, observation in seen.items()
        },
        plain_db={
            name: _scored(observation, plain_score_db(observation.samples, affines[name]))
            for name, observation in seen.items()
        },
    )


def _scored(seen: Observation, score: float) -> float:
    return NO_GRID_DB if seen.why_no_grid else score


def require_finite_weights(nodes: Iterable[Node], graph: Graph) -> None:
    """Raise if a constant that layers read holds NaN or infinity; masks, limits and paddings elsewhere may.

    Args:
        nodes: The layers that integers would compute.
        graph: Theirs.

    Raises:
        UnsupportedError: If one does.
    """
    for value in (input_ for node in nodes for input_ in node.inputs if input_ is not None):
        numbers = graph.constant(value)
        if numbers is not None and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise not_finite(name_of(value), numbers)


def grid_of(graph: Graph, value: Value, seen: Observation, rules: Int8Rules, method: Method) -> Affine:
    """Return the grid of one tensor; pixels that are whole numbers keep their own, as do fixed ones of the engine."""
    if rules.unit_sigmoid and graph.producer(value, "Sigmoid") is not None:
        return Affine(_UNIT_STEP, integer_range(rules.activation_dtype)[0], rules.activation_dtype)
    has_bytes = rules.activation_dtype in ("uint8", "int8") and not rules.symmetric_activations
    if has_bytes and graph.producer(value) is None and _is_pixels(seen):
        return make_affine(0.0, 255.0, rules.activation_dtype)
    return choose_affine(
        seen.histogram,
        method,
        dtype=rules.activation_dtype,
        symmetric=rules.symmetric_activations,
        power_of_two=rules.power_of_two_scales,
        after=following_activation(graph, value),
    )


def _is_pixels(seen: Observation) -> bool:
    whole = bool((seen.samples == np.rint(seen.samples)).all())
    return whole and seen.histogram.low >= 0 and 1 < seen.histogram.high <= 255
