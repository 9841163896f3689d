"""The steps of `optimize`, one file or folder each, named after it (with `-` for `_`); each ends in `STEP`.

A step turns one model into others. It says what it does and needs; the plan asks it, and nothing knows it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeopt.graph.model import Model
    from edgeopt.graph.outcome import Outcome
    from edgeopt.recipes.embedded import Embedded
    from edgeopt.recipes.recipe import Recipe
    from edgeopt.steps._context import Context, Setting
    from edgeopt.system.declared.target import Target


def _nothing(_precision: str, _profile: Target) -> bool:
    return False


def _every_target(_target: Target) -> str:
    return ""


def _every_recipe(_recipe: Recipe) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its work, its products and its needs."""

    make: Callable[[Model, Context, Setting], Sequence[Outcome]]
    """Return the models made of one, the most promising first; where there was nothing to do, the model itself, without
    changes, or none.

    Raises EdgeoptError where it fails: what other steps made stays."""
    does: str
    """One line of the plan and of the help."""
    order: int
    """Steps run from the lowest to the highest."""
    precision: str = ""
    """Scheme of what it makes on the target's own engine; empty: that of the model it is given."""
    makes: Callable[[str, Target], bool] = _nothing
    """Whether an engine's profile gets its models of a precision scheme from this step."""
    needs_float: bool = False
    """Whether it takes no model that is quantized already."""
    needs_calibration: bool = False
    """Whether it needs calibration pictures."""
    package: str = ""
    """The module it cannot do without; empty: none beyond the core's."""
    extra: str = ""
    """The extra of edgeopt that brings the package."""
    why_not: Callable[[Target], str] = _every_target
    """Return why it has nothing to do for a target; empty where it has. Told to who asked for it by name."""
    why_not_of: Callable[[Recipe], str] = _every_recipe
    """Return why it cannot do what it is for with a recipe; empty where it can. Who asks for it by name is refused."""
    without: str = ""
    """How the note begins that says why it is left out; empty: `no NAME`."""
    in_line: bool = True
    """Whether the next step is given what this one made; if not, it works on the last float model, after the line."""
    on_device: bool = False
    """Whether, for a device that is compiled for, it is a part of each form that is made, scored and compiled there."""
    feeds: Callable[[Recipe], Recipe] | None = None
    """Return the recipe of the bundle as this step has frames read, after the choice: it makes no candidate. A run by
    default tries it, and keeps it only where it is proven faster."""
    embeds: Embedded | None = None
    """The part of the recipe that it puts into the models of the bundle, after the choice: it makes no candidate."""
    is_default: bool = True
    """Whether it runs unless it is left out; if not, only where it is asked for by name."""
    tried_on: frozenset[str] = frozenset()
    """Engines for whose models a run by default tries what it embeds, and keeps that only where it is proven faster."""
    beside: bool = False
    """Whether what it makes stands beside the float model it was made of, which goes on too: it costs accuracy, and is
    chosen only where its speed was measured, or where the user named the amount."""
    heals: bool = False
    """Whether it wins back accuracy that steps before it lost: it is given their furthest model, kept or not."""
    is_healed: bool = True
    """Whether such a step can win back what this one costs: not where its teacher loses as much."""
    make_alike: Callable[[Model, Context, Setting, Sequence[str]], Sequence[Outcome]] | None = None
    """Return models made as candidates of these names were, of another float model with the same operators: what was
    decided for those holds, and nothing is searched. None: `make` makes them."""
