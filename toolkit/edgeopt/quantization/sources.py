"""The models and findings that variants are made of, each computed when it is first asked for. It tries none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgeopt.model import Model
from edgeopt.quantization.equalization import equalize
from edgeopt.quantization.findings import Findings, study, with_method
from edgeopt.quantization.quantize import open_graph
from edgeopt.quantization.ranges import Method
from edgeopt.quantization.variants import Variant
from edgeopt.target import Int8Rules
from edgeopt.tensors import Tensors


@dataclass(slots=True)
class Sources:
    """A float model, what calibration says of it, and both again after equalization."""

    model: Model
    findings: Findings
    rules: Int8Rules
    frames: Sequence[Tensors]
    """A few real inputs: the equalized model is calibrated on them."""
    _equalized: Model | None = None
    _known: dict[tuple[bool, Method], Findings] = field(default_factory=dict)

    @property
    def can_equalize(self) -> bool:
        """Whether some pair of layers allows it."""
        return self._equalized_model() is not self.model

    def of(self, variant: Variant) -> tuple[Model, Findings]:
        """Return what a variant is made of."""
        model = self._equalized_model() if variant.equalized else self.model
        wanted = variant.equalized, variant.method
        if wanted not in self._known:
            self._known[wanted] = self._study(model, *wanted)
        return model, self._known[wanted]

    def _study(self, model: Model, equalized: bool, method: Method) -> Findings:
        if equalized:
            return study(model, open_graph(model), self.frames, self.rules, method=method)
        if method is Method.MSE:
            return self.findings
        return with_method(self.findings, open_graph(model), self.rules, method)

    def _equalized_model(self) -> Model:
        if self._equalized is None:
            graph = open_graph(self.model)
            done = equalize(graph, self.findings.calibration.observations)
            self._equalized = graph.to_model() if done else self.model
        return self._equalized
