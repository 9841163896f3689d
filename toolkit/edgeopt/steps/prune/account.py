"""The findings of pruning as files: `pruning.json` beside the first candidate, `prune.json` beside each pruned model.

`prune.json` is all that made a model smaller, as data: the channels that were kept of each group, by number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.graph.groups import ChannelGroups
from edgeopt.system.toml import parse_table, read_object

ACCOUNT, CUT = "pruning.json", "prune.json"
_SCHEMA = 1
_REMEDY = "make the candidate again"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Channels that can only be removed together."""

    name: str
    channels: int
    pinned: str = ""
    """Why nothing of it can be removed; empty where it can."""


@dataclass(frozen=True, slots=True)
class PinRow:
    """A node behind or before which channels must stay."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class PruningAccount:
    """The cuts that were looked at, and why no more was removed."""

    ranking: str
    """Name of the ranking of channels: `obs`, `activation`, `l1`."""
    pictures: int
    """Pictures that the ranking and the repair learned from; 0: none, weights alone."""
    channel_step: int
    """Kept counts are multiples of it."""
    step_reason: str
    """Where that comes from."""
    why: str
    """Result in one sentence, or the reason why the dense model stays."""
    sparsity: str = ""
    """Effect of zeros in single weights on the target, in a clause."""
    groups: tuple[GroupRow, ...] = ()
    pins: tuple[PinRow, ...] = ()

    @property
    def removable(self) -> int:
        """How many channels can be removed at all."""
        return sum(group.channels for group in self.groups if not group.pinned)

    @property
    def reasons(self) -> Mapping[str, int]:
        """Why channels are pinned, and how many of them: channels of groups, or nodes that no group tells of."""
        counted = Counter[str]()
        for group in self.groups:
            if group.pinned:
                counted[group.pinned] += group.channels
        for pin in self.pins:
            if pin.reason not in counted:
                counted[pin.reason] += 0
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))

    def nodes_of(self, reason: str) -> tuple[str, ...]:
        """Return the nodes that pin for a reason, in the order of the graph."""
        return tuple(pin.node for pin in self.pins if pin.reason == reason)


@dataclass(frozen=True, slots=True)
class StoredCut:
    """The cut that made one pruned model smaller."""

    dense: str
    """Fingerprint of the model that was pruned."""
    made: str
    """Fingerprint of what came out."""
    kept: Mapping[str, tuple[int, ...]]
    """Numbers of the channels that stay, of each group that lost any, by its name."""
    removed_blocks: tuple[str, ...] = ()
    """Residual blocks that are gone, by the name of their output."""
    repair: str = ""
    """How what is left was fitted to the dense model's outputs: `local`, `sequential`; empty: not at all."""
    expected_ratio: float = 1.0
    """Expected ratio of speeds by the table of measured layers; the candidate's own was measured whole."""
    loss: float = 0.0
    """Loss on held-out calibration pictures, against the dense model."""
    channels: Mapping[str, int] = field(default_factory=dict)
    """Channels that the groups had which lost any, by name."""

    @property
    def removed(self) -> int:
        """How many channels are gone, blocks left out."""
        return sum(self.channels.get(name, len(left)) - len(left) for name, left in self.kept.items())


def account_of(groups: ChannelGroups, **known: object) -> PruningAccount:
    """Return an account with the rows of groups and pins.

    Args:
        groups: Of the dense model.
        known: The other fields.
    """
    rows = tuple(GroupRow(group.name, group.channels, group.pinned) for group in groups)
    pins = tuple(PinRow(pin.node, pin.op, pin.reason) for pin in groups.pins)
    return PruningAccount(groups=rows, pins=pins, **known)  # type: ignore[arg-type]


def kept_numbers(kept: Mapping[str, NDArray[np.int64]]) -> dict[str, tuple[int, ...]]:
    """Return channels by group as plain values, in the order of names."""
    return {name: tuple(np.asarray(array).tolist()) for name, array in sorted(kept.items())}


def to_json(one: PruningAccount | StoredCut) -> str:
    """Return the text of a file."""
    return json.dumps({"schema": _SCHEMA, **asdict(one)}, allow_nan=False) + "\n"


def read_account(file: Path) -> PruningAccount | None:
    """Return what a file tells; None where it is absent or of another version."""
    return _read(PruningAccount, file)


def read_cut(file: Path) -> StoredCut | None:
    """Return what a file tells; None where it is absent or of another version."""
    return _read(StoredCut, file)


def _read(kind: type[T], file: Path) -> T | None:
    if not file.is_file():
        return None
    try:
        values = read_object(file, schema=_SCHEMA, remedy=_REMEDY)
        return parse_table(kind, {key: value for key, value in values.items() if key != "schema"}, str(file))
    except InvalidFileError:
        return None
