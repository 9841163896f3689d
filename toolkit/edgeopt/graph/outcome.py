"""The model that a step made, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgeopt.errors import Note
from edgeopt.graph.model import Model


@dataclass(frozen=True, slots=True)
class Outcome:
    """The model a step made, how often each rewrite fired, and what the user should know."""

    model: Model
    changes: Mapping[str, int]
    notes: tuple[Note, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Session configuration entries with which it runs fastest, beyond those of the target."""
    is_twin: bool = False
    """Whether it has as much removed as the outcome before it, mended in another way."""

    def then(self, after: Outcome) -> Outcome:
        """Return this and what was made of it as one."""
        changes, notes = {**self.changes, **after.changes}, (*self.notes, *after.notes)
        return Outcome(after.model, changes, notes, after.options, after.is_twin)

    def noted(self, *notes: Note) -> Outcome:
        """Return this with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def is_unchanged(self) -> bool:
        """Whether no rewrite found anything to do."""
        return not any(self.changes.values())
