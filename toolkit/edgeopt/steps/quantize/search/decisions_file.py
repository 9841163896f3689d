"""The file beside an INT8 candidate from which another run makes the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, InvalidFileError, Note
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.search.decisions import Decisions, make_again
from edgeopt.steps.quantize.search.decisions_json import from_plain, to_plain
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.toml import read_object

DECISIONS = "decisions.json"
_SCHEMA = 3
_MOST_BYTES = 4 << 30
_REMEDY = "name the output folder of edgeopt optimize, or its report.json"


@dataclass(frozen=True, slots=True)
class StoredDecisions:
    """The decisions of one INT8 candidate, and the fingerprints of what they belong to."""

    decisions: Decisions
    original: str
    """Fingerprint of the model as it came, as are the next three of what they name."""
    float_model: str
    calibration: str
    made: str
    is_joined: bool
    """Whether attentions were joined first, since that was faster."""
    options: Mapping[str, str]
    """Session entries with which it was faster."""
    packages: Mapping[str, str]
    reason: str = ""
    """Why it is what it is, in one paragraph."""
    notes: tuple[Note, ...] = ()
    """What the search told of it."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What was measured: attempts, layer times. Nothing is made of it."""

    @property
    def figures(self) -> tuple[float, float]:
        """Speed ratio and agreement as they were measured; 0 where the file does not tell them."""
        values = {value[0]: (float(value[1]), float(value[2])) for value in self.evidence.get("attempts", ())}
        return values.get(str(self.decisions.variant), (0.0, 0.0))

    def to_json(self) -> str:
        """Return the text of a file."""
        values = {name: getattr(self, name) for name in (*_PLAIN, *_TOLD)} | {"decisions": self.decisions}
        held = {name: to_plain(value) for name, value in values.items()}
        return json.dumps({"schema": _SCHEMA, **held}, allow_nan=False) + "\n"

    def outcome(self, model: Model, whose: str) -> Outcome:
        """Return the model once more.

        Args:
            model: The float model that this run made.
            whose: The report, for the error.

        Raises:
            EdgeoptError: If the float model or what is made of it is another one than it was.
        """
        if model.fingerprint != self.float_model:
            raise self._differs("the float model before INT8", whose)
        outcome = make_again(model, self.decisions)
        if outcome.model.fingerprint != self.made:
            raise self._differs("the INT8 model", whose)
        return outcome

    def _differs(self, what: str, whose: str) -> EdgeoptError:
        there, here = self.packages, package_versions()
        names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
        text = ", ".join(f"{name} {there.get(name, 'absent')} there, {here.get(name, 'absent')} here" for name in names)
        return EdgeoptError(
            f"{what} is not that of {whose}: {text or 'the same packages, but other steps or shapes'}",
            remedy="give the options of that run" + (", and install its packages" if text else ""),
        )


_PLAIN = ("original", "float_model", "calibration", "made", "is_joined", "options", "packages")
_TOLD = ("reason", "notes", "evidence")


def read_decisions(file: Path) -> StoredDecisions:
    """Read what decided a candidate.

    Raises:
        InvalidFileError: If it is no file of decisions.
    """
    values = read_object(file, schema=_SCHEMA, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    try:
        held = {name: from_plain(values[name]) for name in (*_PLAIN, *_TOLD, "decisions")}
        if not isinstance(held["decisions"], Decisions):
            raise TypeError("no decisions")
        return StoredDecisions(**held)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFileError(f"{file} is no file of decisions: {error!r}", remedy=_REMEDY) from error
