"""The float models and findings that variants are made of, each computed when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.findings import Findings, study, with_method
from edgeopt.steps.quantize.grids.ranges import FIRST_METHOD, Method
from edgeopt.steps.quantize.repairs.equalization import equalize
from edgeopt.steps.quantize.repairs.fitted_silu import Fit, fit_silus, place_fits
from edgeopt.steps.quantize.repairs.rescaling import rescale
from edgeopt.steps.quantize.repairs.smoothquant import smooth, smoothable
from edgeopt.steps.quantize.scheme import open_graph
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.target import Int8Rules


@dataclass(slots=True)
class Sources:
    """A float model, what calibration says of it, and both again after what changes the model."""

    model: Model
    findings: Findings
    rules: Int8Rules
    frames: Sequence[Tensors]
    """A few real inputs: models that were changed are calibrated on them."""
    _fits: tuple[Fit, ...] | None = None
    _equalized: Model | None = None
    _models: dict[Variant, Model] = field(default_factory=dict)
    """By what was changed, all else of the variant left out."""
    _known: dict[Variant, Findings] = field(default_factory=dict)
    """By that and the method."""

    @property
    def can_equalize(self) -> bool:
        """Whether some pair of layers allows it."""
        return self._equalized_model() is not self.model

    @property
    def can_smooth(self) -> bool:
        """Whether a normalised activation is read by matrices alone."""
        return bool(smoothable(open_graph(self.model)))

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The HardSwish that fits each SiLU best; none where the target gains nothing from it."""
        if self._fits is None:
            seen = self.findings.calibration.observations
            self._fits = fit_silus(open_graph(self.model), seen) if self.rules.fitted_silu else ()
        return self._fits

    def fits_of(self, variant: Variant) -> list[Fit]:
        """Return the fits that a variant has in the place of SiLUs."""
        return [one for one in self.fits if one.name in variant.fitted]

    def of(self, variant: Variant) -> tuple[Model, Findings]:
        """Return what a variant is made of."""
        model, wanted = self.model_of(variant), replace(_change_of(variant), method=variant.method)
        if wanted not in self._known:
            self._known[wanted] = self._study(model, model is not self.model, variant.method)
        return model, self._known[wanted]

    def model_of(self, variant: Variant) -> Model:
        """Return the float model that a variant is made of."""
        changed = _change_of(variant)
        if changed not in self._models:
            self._models[changed] = self._changed(changed)
        return self._models[changed]

    def _changed(self, wanted: Variant) -> Model:
        """Return the model after all that a variant changes before it is quantized.

        Equalization leaves the matrices that are smoothed, and their inputs, as they are.
        """
        model, seen = (
            self._equalized_model() if wanted.equalized else self.model,
            self.findings.calibration.observations,
        )
        edits: list[Callable[[Graph], int]] = []
        if wanted.rescaled:
            edits.append(lambda graph: rescale(graph, seen, sorted(wanted.rescaled)))
        if wanted.fitted:
            edits.append(lambda graph: place_fits(graph, self.fits_of(wanted)))
        if wanted.smoothing:
            edits.append(lambda graph: smooth(graph, seen, wanted.smoothing))
        for edit in edits:
            graph = open_graph(model)
            edit(graph)
            model = graph.to_model()
        return model

    def _study(self, model: Model, changed: bool, method: Method) -> Findings:
        if changed:
            return study(model, open_graph(model), self.frames, self.rules, method=method)
        if method is FIRST_METHOD:
            return self.findings
        return with_method(self.findings, open_graph(model), self.rules, method)

    def _equalized_model(self) -> Model:
        if self._equalized is None:
            graph = open_graph(self.model)
            done = equalize(graph, self.findings.calibration.observations)
            self._equalized = graph.to_model() if done else self.model
        return self._equalized


def _change_of(variant: Variant) -> Variant:
    """Return what a variant changes before it is quantized, all else left out."""
    return Variant(
        equalized=variant.equalized,
        rescaled=variant.rescaled,
        fitted=variant.fitted,
        smoothing=variant.smoothing,
    )
