"""Repairs of the accuracy that rounding loses, one a file: its name is the repair's, and it ends in `REPAIR`.

A repair changes the float model before it is quantized, or the weights and biases of what was quantized. A search
tries it in the order that it says. A part that another package offers comes under `edgeopt.steps.quantize.repairs`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note
from edgeopt.graph.graph import Graph, Node
from edgeopt.steps.quantize import repairs
from edgeopt.steps.quantize.calibration.calibrate import Observation
from edgeopt.steps.quantize.grids.weights import QuantizedWeight
from edgeopt.steps.quantize.scheme import Scheme
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Int8Rules

Setting: TypeAlias = bool | float | frozenset[str]
"""How a repair is made: simply so, how strongly, or of which tensors. False, 0 and nothing: not at all."""


class Search(Protocol):
    """The part of a search that a repair may use."""

    def graph(self) -> Graph:
        """Return the float model as it came, to be looked at or changed."""
        ...

    def best_graph(self) -> Graph:
        """Return the float model that the best variant is made of, to be looked at."""
        ...

    @property
    def seen(self) -> Mapping[str, Observation]:
        """Calibration's observation of each tensor."""
        ...

    @property
    def rules(self) -> Int8Rules:
        """The INT8 form that the target runs."""
        ...

    def unheld(self) -> tuple[str, ...]:
        """Return the tensors that the best variant keeps in float because no grid holds them."""
        ...

    @property
    def agrees(self) -> bool:
        """Whether the best variant agrees well enough with the float model."""
        ...

    @property
    def is_last_in_need(self) -> bool:
        """Whether the last variant was made and does not agree well enough."""
        ...

    def prepared(self, name: str) -> Any:
        """Return what a repair has prepared."""
        ...

    def setting(self, name: str) -> Setting:
        """Return how the best variant is repaired by a repair."""
        ...

    def was_tried(self, name: str) -> bool:
        """Whether any variant so far has a repair."""
        ...

    def has_time(self, change: str) -> bool:
        """Whether there is time for one more variant; where there is none, the change is told as untried."""
        ...


class Repair(ABC):
    """The base of all repairs; most of them inherit some of the answers."""

    order: ClassVar[int]
    """Place among the repairs of its kind: they are tried, made and shown in this order."""
    keeps: ClassVar[tuple[type, ...]] = ()
    """Types of what `prepare` returns, for the file of decisions; numbers, texts and arrays need none."""

    @abstractmethod
    def told(self, setting: Setting) -> str:
        """Return a few words for the name of a variant."""

    @abstractmethod
    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield what to try, each on the best variant so far; what became of the last is known by then."""

    def by_rule(self, search: Search) -> Setting:
        """Return how it is made where only one variant of a form is tried; False: not at all."""
        return False

    def prepare(self, graph: Graph, seen: Mapping[str, Observation], rules: Int8Rules) -> Any:
        """Return what is computed once for all settings, and kept with the decisions.

        Args:
            graph: The float model.
            seen: What calibration saw of its tensors.
            rules: What INT8 form the target runs.
        """
        return None

    def notes(self, prepared: Any, setting: Setting) -> tuple[Note, ...]:
        """Return what to tell of a model that has it."""
        return ()


class ModelRepair(Repair):
    """A repair of the float model before it is quantized."""

    keeps_operators: ClassVar[bool] = False
    """Whether the integer model has the same operators, and so the same speed: it is then tried last."""
    follows_form: ClassVar[bool] = False
    """Whether it is tried once it is settled how integers are written, and at the end again."""
    tries_first_form: ClassVar[bool] = False
    """Whether its first setting is also tried on the first variant: it may replace what was done since."""

    @abstractmethod
    def edit(self, graph: Graph, seen: Mapping[str, Observation], setting: Setting, prepared: Any) -> int:
        """Repair the float model in place, and return how many places were changed.

        Args:
            graph: The float model; its outputs stay as they are, but for rounding or what `prepare` found near enough.
            seen: What calibration saw of the original's tensors: extremes of channels; samples may be missing.
            setting: One of `settings`.
            prepared: What `prepare` returned.
        """


@dataclass(frozen=True, slots=True)
class IntegerLayer:
    """A layer on integers, and real inputs of it."""

    graph: Graph
    node: Node
    scheme: Scheme
    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    """Bias of a convolution: zeros where it has none; None of anything else."""
    samples: NDArray[np.float32]
    """Shape (n, channels)."""
    inputs: NDArray[np.float32]
    """The same as the integer layer sees them."""
    quantized: QuantizedWeight


class WeightRepair(Repair):
    """A repair of weights and biases after they were quantized; it changes no operator."""

    is_always_made: ClassVar[bool] = False
    """Whether every variant has it; no search tries it then."""
    is_slow: ClassVar[bool] = False
    """Whether it takes so long that it stops with the time, and is left out where only a difference is learned."""

    def concerns(self, node: Node) -> bool:
        """Return whether it may change anything of a layer; its weight is not even rounded otherwise."""
        return True

    @abstractmethod
    def repair(self, layer: IntegerLayer, setting: Setting) -> IntegerLayer:
        """Return the layer with another quantized weight or bias, or as it is.

        Args:
            layer: The layer, with what earlier repairs have made of it.
            setting: One of `settings`; False where it `is_always_made` and the variant has no setting of it.
        """


def find_repair(name: str) -> Repair:
    """Return the repair of this name.

    Raises:
        NotFoundError: If there is none.
    """
    repair: Repair = registry.load(repairs, name).REPAIR
    return repair


def all_repairs() -> dict[str, Repair]:
    """Return all repairs by name, in their order."""
    result = {name: find_repair(name) for name in registry.names(repairs)}
    return dict(sorted(result.items(), key=lambda pair: (pair[1].order, pair[0])))


def model_repairs() -> dict[str, ModelRepair]:
    """Return those of the float model by name, in their order."""
    return {name: repair for name, repair in all_repairs().items() if isinstance(repair, ModelRepair)}


def weight_repairs() -> dict[str, WeightRepair]:
    """Return those of weights and biases by name, in their order."""
    return {name: repair for name, repair in all_repairs().items() if isinstance(repair, WeightRepair)}
