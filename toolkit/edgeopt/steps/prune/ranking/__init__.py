"""Orders in which a group's channels are removed, one way a file; each ends in `rank`.

A new way: a file here with `rank(group, model, statistics) -> Ranking`, named after it.
"""

from __future__ import annotations

import sys

from edgeopt.errors import EdgeoptError
from edgeopt.graph.groups import Group
from edgeopt.graph.model import Model
from edgeopt.steps.prune.ranking._ranking import Ranking
from edgeopt.steps.prune.statistics import Statistics
from edgeopt.system.declared import registry

__all__ = ["DEFAULT", "WITHOUT_PICTURES", "Ranking", "rank"]

DEFAULT = "obs"
WITHOUT_PICTURES = "l1"
"""The way that needs no statistics."""


def rank(group: Group, model: Model, statistics: Statistics | None, how: str = DEFAULT) -> Ranking:
    """Rank the channels of a group.

    Args:
        group: Of the dense model.
        model: The dense model.
        statistics: Of its activations; None: there are no pictures, and only `l1` can rank.
        how: The file name of a way.

    Raises:
        EdgeoptError: If the way needs statistics and there are none.
        NotFoundError: If there is no such way.
    """
    way = registry.load(sys.modules[__name__], how)
    if statistics is None and how != WITHOUT_PICTURES:
        raise EdgeoptError(
            f"ranking by {how} needs calibration pictures",
            remedy="give a folder of pictures with --calib, or rank by l1",
        )
    ranking: Ranking = way.rank(group, model, statistics)
    return ranking
