"""How channels pass through each op, a family of ops a file; each file ends in `RULES`, by the op's name.

A rule labels the outputs of a node from its inputs and constants. An op without a rule pins its channels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from edgeopt.graph.graph import Node
from edgeopt.graph.groups.tracer import Tracer
from edgeopt.system.declared import registry


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for nodes of one op."""

    follow: Callable[[Node, Tracer], None]
    """Label the outputs.

    Raises PinnedError where the channels of the inputs cannot be followed."""
    joins: bool = False
    """Whether it follows the channels of all inputs; if not, those of another input than the first stay."""
    makes: bool = False
    """Whether it makes channels of its own, also where no input has any."""


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rules of all families, by `domain.op`, without a domain for the default one."""
    package = sys.modules[__name__]
    families = [registry.load(package, name).RULES for name in registry.names(package)]
    return {op: rule for family in families for op, rule in family.items()}
