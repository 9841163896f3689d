"""Dependency groups: which channels of a graph can only be removed together, and the graph without them.

Source: G. Fang et al., DepGraph: Towards Any Structural Pruning (CVPR 2023); here over ONNX, with one label a channel.
"""

from __future__ import annotations

from edgeopt.graph.groups.blocks import Block, removable_blocks, remove_block
from edgeopt.graph.groups.cutting import first_empty, keep_channels
from edgeopt.graph.groups.refusal import require_prunable
from edgeopt.graph.groups.tracing import trace
from edgeopt.graph.groups.types import ChannelGroups, ChannelUse, Group, Pin

__all__ = [
    "Block",
    "ChannelGroups",
    "ChannelUse",
    "Group",
    "Pin",
    "first_empty",
    "keep_channels",
    "removable_blocks",
    "remove_block",
    "require_prunable",
    "trace",
]
