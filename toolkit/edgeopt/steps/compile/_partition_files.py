"""Where the nodes of a candidate run, as files beside its model: a picture, and the nodes themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.steps.compile._partition_svg import PICTURE, draw_partition
from edgeopt.steps.compile._placement import CPU, Partition
from edgeopt.system.toml import read_json

NODES = "placement.json"


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """One node, in the order in which nodes run."""

    name: str
    op: str
    is_refused: bool
    """Whether it runs on the CPU."""
    reason: str
    """Why; empty where the device takes it."""
    mend: str
    """The rewrite that makes the device take it; empty: none is known."""


def partition_files(partition: Partition) -> Mapping[str, str]:
    """Return the text of each file, by its name."""
    nodes = [
        asdict(PlacedNode(node.node, node.op, node.provider == CPU, node.reason, partition.mends.get(node.node, "")))
        for node in partition.nodes
    ]
    return {PICTURE: draw_partition(partition), NODES: json.dumps({"nodes": nodes}, indent=1) + "\n"}


def read_nodes(file: Path) -> tuple[PlacedNode, ...]:
    """Return the nodes that `partition_files` told; none where the file is absent or of another version."""
    try:
        return tuple(PlacedNode(**value) for value in read_json(file, remedy="")["nodes"])
    except (InvalidFileError, KeyError, TypeError):
        return ()
