"""The verdict and the exit code of `optimize`, whatever was optimized; and how a stored report is read back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_PASS, InvalidFileError
from edgeopt.measurement.resources.trust import TrustLevel
from edgeopt.system.toml import parse_table, read_object

Stored = TypeVar("Stored")
_REMEDY = "name the output folder of edgeopt optimize"


def noise_of(trust: str) -> str:
    """Return NOISY or INVALID of the words of a run's trust; empty where the machine was quiet, or nothing measured."""
    level = trust.partition(";")[0]
    return "" if level == TrustLevel.TRUSTED.upper() else level


def verdict_of(frames: str | None, trust: str, *, budget_asked: bool) -> str:
    """Return PASS, FAIL or INCONCLUSIVE by the budget; NOISY or INVALID where the machine closes the gate.

    Args:
        frames: What the frames of the choice prove about the budget; None: nothing was measured.
        trust: In words, as a report keeps it.
        budget_asked: Whether somebody asked for the budget.
    """
    if frames is None:
        return "INCONCLUSIVE"
    return (noise_of(trust) if budget_asked else "") or frames


def exit_code_of(budget_code: int, *, is_accuracy_open: bool, was_cut: bool) -> int:
    """Return 130 of a run that was interrupted, else the code of the budget, else 3 where accuracy is not decided.

    Args:
        budget_code: The exit code of the budget and the device alone.
        is_accuracy_open: Whether accuracy was asked for, and what was chosen is not proven to keep it.
        was_cut: Whether the run was interrupted.
    """
    if was_cut:
        return EXIT_INTERRUPTED
    return EXIT_INCONCLUSIVE if budget_code == EXIT_PASS and is_accuracy_open else budget_code


def read_stored_as(
    kind: type[Stored], path: Path, schema: int, derived: Collection[str], what: str, folders: dict[str, Any]
) -> Stored:
    """Return a stored report as an object.

    Args:
        kind: Its class.
        path: Its file.
        schema: The number that it must have.
        derived: Keys of the file that are no fields.
        what: What the file is not, where it is damaged: `report of a pipeline`.
        folders: Fields that follow from where the file lies.

    Raises:
        InvalidFileError: If there is none, it is damaged, or of another version.
    """
    values = read_object(path, schema=schema, remedy=_REMEDY)
    known = {key: value for key, value in values.items() if key not in derived}
    try:
        return parse_table(kind, known, f"{path} is no {what}", folders)
    except InvalidFileError as error:
        raise InvalidFileError(error.problem, remedy=_REMEDY) from error
