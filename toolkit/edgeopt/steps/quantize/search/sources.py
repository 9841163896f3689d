"""The float models and findings that variants are made of, each computed when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.findings import Findings, study, with_method
from edgeopt.steps.quantize.calibration.observation import Observation
from edgeopt.steps.quantize.grids.ranges import FIRST_METHOD, Method
from edgeopt.steps.quantize.repairs import Setting, find_repair, model_repairs
from edgeopt.steps.quantize.scheme import open_graph
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Int8Rules


@dataclass(slots=True)
class Sources:
    """A float model, what calibration says of it, and both again after what changes the model."""

    model: Model
    findings: Findings
    rules: Int8Rules
    frames: Sequence[Tensors]
    """A few real inputs: models that were changed are calibrated on them."""
    _prepared: dict[str, Any] = field(default_factory=dict)
    """Values that repairs prepared, by name of the repair."""
    _models: dict[tuple[tuple[str, Setting], ...], Model] = field(default_factory=dict)
    """Models by the repairs that were made on them."""
    _known: dict[tuple[tuple[tuple[str, Setting], ...], Method], Findings] = field(default_factory=dict)
    """Findings by repairs and method."""
    off: dict[str, frozenset[str]] = field(default_factory=dict)
    """Form -> keys of the nodes that it computes otherwise; filled during the search."""
    seed: int = 0
    """Decides which positions of each tensor calibration keeps."""

    @property
    def seen(self) -> Mapping[str, Observation]:
        """Calibration's observation of the model as it came."""
        return self.findings.calibration.observations

    def prepared(self, repair: str) -> Any:
        """Return what a repair computes once for all its settings."""
        if repair not in self._prepared:
            self._prepared[repair] = find_repair(repair).prepare(open_graph(self.model), self.seen, self.rules)
        return self._prepared[repair]

    def of(self, variant: Variant) -> tuple[Model, Findings]:
        """Return what a variant is made of."""
        model, wanted = self.model_of(variant), (variant.model_repairs, variant.method)
        if wanted not in self._known:
            self._known[wanted] = self._study(model, model is not self.model, variant.method)
        findings = self._known[wanted]
        return model, replace(findings, off=self.off) if self.off else findings

    def model_of(self, variant: Variant) -> Model:
        """Return the float model that a variant is made of."""
        wanted = variant.model_repairs
        if wanted not in self._models:
            self._models[wanted] = self._repaired(dict(wanted))
        return self._models[wanted]

    def _repaired(self, settings: Mapping[str, Setting]) -> Model:
        model = self.model
        for name, repair in model_repairs().items():
            if name in settings:
                graph = open_graph(model)
                if repair.edit(graph, self.seen, settings[name], self.prepared(name)):
                    model = graph.to_model()
        return model

    def _study(self, model: Model, changed: bool, method: Method) -> Findings:
        if changed:
            return study(model, open_graph(model), self.frames, self.rules, method=method, seed=self.seed)
        if method is FIRST_METHOD:
            return self.findings
        return with_method(self.findings, open_graph(model), self.rules, method)
