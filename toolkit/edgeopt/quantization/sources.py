"""The models and findings that variants are made of, each computed when it is first asked for. It tries none."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from edgeopt.model import Model
from edgeopt.quantization.equalization import equalize
from edgeopt.quantization.findings import Findings, study, with_method
from edgeopt.quantization.fitted_silu import Fit, fit_silus, place_fits
from edgeopt.quantization.quantize import open_graph
from edgeopt.quantization.ranges import Method
from edgeopt.quantization.rescaling import rescale
from edgeopt.quantization.smooth import smooth, smoothable
from edgeopt.quantization.variants import Variant
from edgeopt.target import Int8Rules
from edgeopt.tensors import Tensors


@dataclass(slots=True)
class Sources:
    """A float model, what calibration says of it, and both again after what changes the model."""

    model: Model
    findings: Findings
    rules: Int8Rules
    frames: Sequence[Tensors]
    """A few real inputs: models that were changed are calibrated on them."""
    _equalized: Model | None = None
    _rescaled: dict[tuple[bool, Set[str]], Model] = field(default_factory=dict)
    _fits: tuple[Fit, ...] | None = None
    _fitted: dict[tuple[bool, Set[str], Set[str]], Model] = field(default_factory=dict)
    _smoothed: dict[tuple[bool, Set[str], Set[str], float], Model] = field(default_factory=dict)
    _known: dict[tuple[bool, Set[str], Set[str], float, Method], Findings] = field(default_factory=dict)

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

    def of(self, variant: Variant) -> tuple[Model, Findings]:
        """Return what a variant is made of."""
        model = self._equalized_model() if variant.equalized else self.model
        if variant.rescaled:
            model = self._rescaled_model(model, (variant.equalized, variant.rescaled))
        changes = variant.equalized, variant.rescaled, variant.fitted
        if variant.fitted:
            model = self._fitted_model(model, changes)
        if variant.smoothing:
            model = self._smoothed_model(model, (*changes, variant.smoothing))
        wanted = (*changes, variant.smoothing, variant.method)
        if wanted not in self._known:
            self._known[wanted] = self._study(model, model is not self.model, variant.method)
        return model, self._known[wanted]

    def _study(self, model: Model, changed: bool, method: Method) -> Findings:
        if changed:
            return study(model, open_graph(model), self.frames, self.rules, method=method)
        if method is Method.MSE:
            return self.findings
        return with_method(self.findings, open_graph(model), self.rules, method)

    def _rescaled_model(self, model: Model, wanted: tuple[bool, Set[str]]) -> Model:
        if wanted not in self._rescaled:
            graph = open_graph(model)
            rescale(graph, self.findings.calibration.observations, sorted(wanted[1]))
            self._rescaled[wanted] = graph.to_model()
        return self._rescaled[wanted]

    def _fitted_model(self, model: Model, wanted: tuple[bool, Set[str], Set[str]]) -> Model:
        if wanted not in self._fitted:
            graph = open_graph(model)
            place_fits(graph, [one for one in self.fits if one.name in wanted[2]])
            self._fitted[wanted] = graph.to_model()
        return self._fitted[wanted]

    def _smoothed_model(self, model: Model, wanted: tuple[bool, Set[str], Set[str], float]) -> Model:
        """Return a model with scale moved into its matrices; equalization leaves these and their inputs as they are."""
        if wanted not in self._smoothed:
            graph = open_graph(model)
            smooth(graph, self.findings.calibration.observations, wanted[3])
            self._smoothed[wanted] = graph.to_model()
        return self._smoothed[wanted]

    def _equalized_model(self) -> Model:
        if self._equalized is None:
            graph = open_graph(self.model)
            done = equalize(graph, self.findings.calibration.observations)
            self._equalized = graph.to_model() if done else self.model
        return self._equalized
