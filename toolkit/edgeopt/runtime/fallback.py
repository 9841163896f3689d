"""Which of a bundle's models runs here: the first that opens, and why those before it do not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.runtime.bundle import Artefact, Bundle
from edgeopt.runtime.opening import Opening, opening_of


@dataclass(frozen=True, slots=True)
class Opened:
    """A bundle's artefact that runs."""

    artefact: Artefact
    opening: Opening
    """How it was opened."""
    session: Session
    notes: tuple[Note, ...]
    """Why artefacts before it do not run, and where it runs on fewer threads than it was measured on."""


def open_first(bundle: Bundle, threads: int = 0, *, strict: bool = False) -> Opened:
    """Open a bundle's artefacts in their order, until one opens.

    Args:
        bundle: Its artefacts, the preferred one first.
        threads: 0: as the artefact was measured, but no more than logical cores.
        strict: Whether the first one opens or none does.

    Raises:
        EdgeoptError: If none opens; with `strict` what is wrong with the first.
    """
    notes: list[Note] = []
    for artefact in bundle.artefacts:
        try:
            opened = open_artefact(bundle, artefact, threads)
        except EdgeoptError as error:
            if strict:
                raise
            notes.append(Note(NoteKind.WARNING, f"{artefact.file} not used: {error.problem}", error.remedy))
            continue
        return replace(opened, notes=(*notes, *opened.notes))
    raise EdgeoptError(
        f"no model of {bundle.folder} opens here: {'; '.join(note.detail for note in notes)}",
        remedy="run edgeopt doctor",
    )


def open_artefact(bundle: Bundle, artefact: Artefact, threads: int = 0) -> Opened:
    """Open one artefact of a bundle as it was measured.

    Args:
        bundle: It is of.
        artefact: Any of its models.
        threads: 0: as it was measured, but no more than logical cores.

    Raises:
        EdgeoptError: If it does not open.
    """
    opening = opening_of(artefact)
    opening = opening.with_threads(threads) if threads else opening
    return Opened(artefact, opening, opening.open(bundle.path_of(artefact)), _fewer_cores(artefact, threads))


def _fewer_cores(artefact: Artefact, asked: int) -> tuple[Note, ...]:
    used = opening_of(artefact).options.threads
    if asked or used >= artefact.threads:
        return ()
    detail = f"{artefact.file} was measured on {artefact.threads} threads, this machine runs {used}: {used} are used"
    return (Note(NoteKind.INFO, detail),)
