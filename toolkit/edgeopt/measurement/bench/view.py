"""A kind's own part of the document of `bench`: its tables and its sentence; what all kinds show is added."""

from __future__ import annotations

from dataclasses import dataclass

from edgeopt.errors import Note
from edgeopt.report.document import KeyFigure, Section, Value


@dataclass(frozen=True, slots=True)
class BenchView:
    """The parts of a document that are a kind's own."""

    title: str
    ran: tuple[Value, ...]
    """Lines that name the workload, its device and its load."""
    sections: tuple[Section, ...]
    """Its tables and charts."""
    sentence: str = ""
    """The verdict for somebody who knows no figures; empty: without a budget there is none."""
    facts: tuple[Value, ...] = ()
    """Facts on which the verdict rests."""
    more_facts: tuple[Value, ...] = ()
    """Facts behind those that every kind tells."""
    notes: tuple[Note, ...] = ()
    """Notes that stand beside the findings; others are among `ran`."""
    key_figures: tuple[KeyFigure, ...] = ()
    again: str = ""
    """The command that measures the same again; empty: as the machine noted it."""
    to_decide: str = ""
    """The command that decides where nothing is decided; empty: none is known."""
