"""What a search for an INT8 form found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgeopt.errors import Note, NoteKind
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes
from edgeopt.steps.quantize.search.attempt import Attempt
from edgeopt.steps.quantize.search.explain import Kept


@dataclass(frozen=True, slots=True)
class Found:
    """All attempts, best first, why the first is the best, and what is known of each tensor."""

    attempts: tuple[Attempt, ...]
    reason: str
    notes: tuple[Note, ...] = ()
    scores_db: Mapping[str, float] = field(default_factory=dict)
    """Per-channel-normalised SQNR of each tensor on its grid."""
    plain_db: Mapping[str, float] = field(default_factory=dict)
    """Plain SQNR of each tensor on its grid."""
    sensitivities_db: Mapping[str, float] = field(default_factory=dict)
    """SQNR of the answer with one tensor quantized, for the worst only."""
    kept: tuple[Kept, ...] = ()
    """Tensors that stayed real, with what that costs and saves."""
    rounded: frozenset[str] = frozenset()
    """Tensors that the first attempt rounds to integers."""
    calibration: Calibration | None = None
    """What calibration saw of the model as it came, for a search for another engine."""
    times: LayerTimes | None = None
    """Of layers, where they were measured."""

    @property
    def why_none(self) -> tuple[Note, ...]:
        """What a run without any INT8 form should say; empty where there is one."""
        return () if self.attempts else (*self.notes, Note(NoteKind.WARNING, self.reason))
