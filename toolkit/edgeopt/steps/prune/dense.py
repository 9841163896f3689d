"""The dense model with all that is known for pruning it: what is made of it when channels and blocks go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.groups import Block, ChannelGroups, Group, keep_channels, removable_blocks
from edgeopt.graph.model import Model
from edgeopt.steps.prune.network.depth import separate, without_blocks
from edgeopt.steps.prune.network.layer_shapes import Keep
from edgeopt.steps.prune.network.levels import Removal, removal
from edgeopt.steps.prune.ranking import DEFAULT, WITHOUT_PICTURES, rank
from edgeopt.steps.prune.repair.local import repair_local
from edgeopt.steps.prune.statistics import Statistics

Kept = Mapping[str, NDArray[np.int64]]
"""Sorted channels that stay, by the name of each group that loses any."""


@dataclass
class Dense:
    """One model before anything is removed."""

    model: Model
    groups: ChannelGroups
    statistics: Statistics | None = None
    """None: there are no pictures. Channels are then ranked by their weights alone, and nothing is repaired."""
    pinned: frozenset[str] = frozenset()
    """Names of groups that lose nothing because the user wants it so."""
    step: int = 1
    """Numbers of channels that stay are multiples of it."""
    how: str = DEFAULT
    """The way of ranking, where there are statistics."""
    _removals: dict[str, Removal] = field(default_factory=dict, repr=False)

    @cached_property
    def free(self) -> tuple[Group, ...]:
        """The groups that may lose channels."""
        return tuple(group for group in self.groups.free if group.name not in self.pinned)

    @cached_property
    def blocks(self) -> Mapping[str, Block]:
        """Blocks that may go, by name."""
        blocks = separate(removable_blocks(self.model)) if self.statistics is not None else ()
        wanted = {use.node for name in self.pinned for use in self.groups[name].producers}
        return {block.name: block for block in blocks if not wanted & {*block.nodes}}

    def removal(self, name: str) -> Removal:
        """Return in which order a group's channels go, and how many may stay."""
        if name not in self._removals:
            way = WITHOUT_PICTURES if self.statistics is None else self.how
            group = self.groups[name]
            ranked = rank(group, self.model, self.statistics, way).order
            self._removals[name] = removal(group, ranked, self.step)
        return self._removals[name]

    def kept_of(self, name: str, count: int) -> NDArray[np.int64]:
        """Return which channels of a group stay, sorted, when so many do."""
        return self.removal(name).kept(count)

    def kept(self, keep: Keep) -> Kept:
        """Return which channels stay where groups keep so many."""
        return {name: self.kept_of(name, count) for name, count in sorted(keep.items())}

    def cut(self, kept: Kept, removed: Iterable[str] = ()) -> Model:
        """Return the model without what goes, its weights those of the dense one, repaired locally where they can be.

        Args:
            kept: Channels that stay.
            removed: Names of blocks that go.
        """
        return self.without(self._repaired(kept), removed)

    def without(self, model: Model, removed: Iterable[str]) -> Model:
        """Return a cut model without some blocks."""
        return without_blocks(model, [self.blocks[name] for name in removed])

    def _repaired(self, kept: Kept) -> Model:
        if not kept:
            return self.model
        pruned = keep_channels(self.model, self.groups, kept)
        if self.statistics is None:
            return pruned
        return repair_local(self.model, pruned, self.groups, kept, self.statistics)
