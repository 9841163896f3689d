"""The networks of a device's profile: those whose layers are measured, and those that check predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.graph.groups import ChannelGroups, keep_channels, trace
from edgeopt.graph.model import Model
from edgeopt.verbs.device_profile.measure import with_plain_names
from edgeopt.verbs.device_profile.networks import NetworkShape

_THINNED = (0.875, 0.75, 0.625, 0.5)
"""Shares of channels that are left in the thinned forms of a user's model."""
_MIXED, _CHECKING = 4, 20
"""Further forms, in which each group keeps a share of its own; and as many that check predictions of a model alone: of
fewer than 19 no interval of 95 % follows."""
_CHECKED_SHARE = 0.75
"""Share that is left in the thinned forms by which predicted speeds are checked."""


@dataclass(frozen=True, slots=True)
class CheckedModels:
    """Models whose times are predicted and measured."""

    name: str
    whole: Model
    thinned: Model | None
    """The same with fewer channels; None: it has none that can go."""


@dataclass(frozen=True, slots=True)
class ProfileMaterial:
    """Networks of our own, and models of the user's."""

    learned: Sequence[NetworkShape]
    checked: Sequence[NetworkShape]
    mine: Sequence[Model]
    """Models of the user's; they check themselves where nothing else does."""

    @property
    def count(self) -> int:
        """How many are measured on an engine in a precision, about."""
        of_mine = 1 + len(_THINNED) + (_MIXED if self.checked else _CHECKING)
        return len(self.learned) + len(self.checked) + of_mine * len(self.mine)

    def models(self, step: int) -> Iterator[Model]:
        """Yield the networks whose layers are measured, the user's in several widths.

        Args:
            step: Channels that an engine computes together.
        """
        for shape in self.learned:
            yield with_plain_names(shape.make())
        for model in self.mine:
            yield model
            yield from _thinner(model, step, _THINNED, _MIXED if self.checked else 0)

    def checks(self, step: int) -> Iterator[CheckedModels]:
        """Yield other networks, which check predictions.

        Args:
            step: Channels that an engine computes together.
        """
        for shape in self.checked:
            model = with_plain_names(shape.make())
            yield CheckedModels(shape.name, model, next(_thinner(model, step, [_CHECKED_SHARE]), None))
        for model in () if self.checked else self.mine:
            for place, form in enumerate(_thinner(model, step, _THINNED, _CHECKING, seed=1)):
                if place >= len(_THINNED):
                    yield CheckedModels(f"{model.name} {place + 1 - len(_THINNED)}", form, None)

    def require_checks(self) -> None:
        """Raise where nothing would check predictions.

        Raises:
            EdgeoptError: If there are only models of which no channel can go.
        """
        if self.checked:
            return
        if not self.mine:
            raise EdgeoptError("--only-models measures models of yours, and none is named", remedy="name one")
        for model in self.mine:
            if not trace(model).free:
                problem = f"{model.name} has no channels that can go, so nothing would check its predictions"
                raise EdgeoptError(problem, remedy="leave --only-models out")


def _thinner(model: Model, step: int, shares: Sequence[float], mixed: int = 0, seed: int = 0) -> Iterator[Model]:
    """Yield forms of a model with a share of its channels, and some whose groups keep a share each of their own."""
    groups, chance = trace(model), np.random.default_rng(seed)
    ways = [[share] * len(groups.free) for share in shares]
    ways += [chance.choice((1.0, *shares), len(groups.free)).tolist() for _ in range(mixed)]
    for kept in ways if groups.free else ():
        yield with_plain_names(_cut(model, groups, kept, step))


def _cut(model: Model, groups: ChannelGroups, shares: Sequence[float], step: int) -> Model:
    kept = {}
    for group, share in zip(groups.free, shares, strict=True):
        count = max(round(share * group.channels / step), 1) * step
        if count < group.channels:
            kept[group.name] = np.arange(count)
    return keep_channels(model, groups, kept)
