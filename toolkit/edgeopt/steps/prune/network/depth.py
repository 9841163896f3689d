"""Residual blocks as candidates: a whole block goes where it costs less than its time is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from edgeopt.graph.groups import Block, ChannelGroups, remove_block
from edgeopt.graph.model import Model


def groups_inside(blocks: Mapping[str, Block], groups: ChannelGroups) -> dict[str, tuple[str, ...]]:
    """Return, by block, the groups that no longer exist without it.

    Args:
        blocks: By name.
        groups: Of the same model.
    """
    result = {}
    for name, block in blocks.items():
        nodes = set(block.nodes)
        result[name] = tuple(
            group.name
            for group in groups.groups
            if group.producers and all(use.node in nodes for use in group.producers)
        )
    return result


def separate(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Return the blocks without those that lie around another: the smallest go one by one, and add up."""
    found = sorted(blocks, key=lambda block: (len(block.nodes), block.name))
    kept = list[Block]()
    for one in found:
        if not any(set(one.nodes) & set(other.nodes) for other in kept):
            kept.append(one)
    return tuple(sorted(kept, key=lambda block: block.name))


def without_blocks(model: Model, blocks: Iterable[Block]) -> Model:
    """Return a model without some of its blocks.

    Args:
        model: The one in which they were found, or one cut of it.
        blocks: None inside another.

    Raises:
        EdgeoptError: If the model lacks one.
    """
    gone: dict[str, str] = {}
    for block in blocks:
        source = block.input
        while source in gone:
            source = gone[source]
        model = remove_block(model, replace(block, input=source))
        gone[block.name] = source
    return model
