"""The cost of a model's layers under a choice of channels, and the time that a further cut saves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from edgeopt.steps.prune.latency_table import LatencyTable
from edgeopt.steps.prune.network.layer_shapes import Keep, Layers


@dataclass(frozen=True, slots=True)
class Cut:
    """A further step down: one group to fewer channels, or a block out of the model."""

    group: str = ""
    keep: int = 0
    block: str = ""

    @property
    def name(self) -> str:
        """The name of the group or block that is cut."""
        return self.group or self.block


class Costs:
    """Milliseconds of a model's layers, from a table; any other unit that a table holds will do."""

    def __init__(
        self, layers: Layers, table: LatencyTable, blocks: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """Take a model's layers.

        Args:
            layers: Of the dense model.
            table: Of the engine on which it will run.
            blocks: Tensors that are made in a block that may go, by the block's name.
        """
        self._layers, self._table = layers, table
        self._of_block = {name: _inside(layers, made) for name, made in (blocks or {}).items()}
        self._known: dict[_State, float] = {}
        self._dense = [layers.shape(place, {}) for place in range(len(layers.all))]
        table.prepare(self._dense)
        self.dense = self.of({})

    def of(self, keep: Keep, removed: Iterable[str] = ()) -> float:
        """Return what the whole model costs.

        Args:
            keep: Channels that stay, by group.
            removed: Names of blocks that are gone.
        """
        gone = self._gone(removed)
        return math.fsum(self._costs([place for place in range(len(self._dense)) if place not in gone], keep))

    def saved(self, cuts: Sequence[Cut], keep: Keep, removed: Iterable[str] = ()) -> list[float]:
        """Return what each of several cuts would save, were it made alone on top of what is cut already.

        Args:
            cuts: Further ones.
            keep: Channels that stay now, by group.
            removed: Names of blocks that are gone.
        """
        gone = self._gone(removed)
        touched = [[place for place in self._touched(other) if place not in gone] for other in cuts]
        after = [{**keep, other.group: other.keep} if other.group else keep for other in cuts]
        wanted = [(place, kept) for places, kept in zip(touched, after, strict=True) for place in places]
        self._table.prepare(
            self._layers.shape(place, kept)
            for place, kept in wanted
            if self._dense[place].layer.is_weighted and self._state(place, kept) not in self._known
        )
        return [
            math.fsum(self._costs(places, keep)) - (math.fsum(self._costs(places, kept)) if cut.group else 0.0)
            for places, kept, cut in zip(touched, after, cuts, strict=True)
        ]

    def _touched(self, cut: Cut) -> Iterable[int]:
        return self._layers.of_group(cut.group) if cut.group else sorted(self._of_block[cut.block])

    def _gone(self, removed: Iterable[str]) -> set[int]:
        return {place for name in removed for place in self._of_block[name]}

    def _state(self, place: int, keep: Keep) -> _State:
        return place, tuple(keep.get(name) for name in self._layers.groups_of(place))

    def _costs(self, places: Iterable[int], keep: Keep) -> list[float]:
        return [self._cost(place, keep) for place in places]

    def _cost(self, place: int, keep: Keep) -> float:
        """Return one layer's cost; what has no weights follows the numbers that it reads and makes."""
        state = self._state(place, keep)
        if state not in self._known:
            shape, dense = self._layers.shape(place, keep), self._dense[place]
            is_measured = dense.layer.is_weighted
            share = 1.0 if is_measured else shape.elements / max(dense.elements, 1)
            self._known[state] = self._table.ms(shape if is_measured else dense) * share
        return self._known[state]


_State: TypeAlias = tuple[int, tuple[int | None, ...]]
"""A layer's place, and how many channels stay of each group on which its shape hangs."""


def _inside(layers: Layers, made: Collection[str]) -> frozenset[int]:
    names = set(made)
    return frozenset(
        place for place, layer in enumerate(layers.all) if all(node.output[0] in names for node in layer.nodes)
    )
