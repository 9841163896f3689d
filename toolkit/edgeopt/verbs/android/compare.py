"""`compare` on a phone: blocks of frames in turns (A B B A), each leg in a process of its own there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.compare.options import CompareOptions
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.compare.run import compare
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Quality, SideFacts, Tell
from edgeopt.measurement.turns.calls import round_order
from edgeopt.measurement.turns.interleaved import (
    AGAIN,
    LEAST_WHOLE,
    Pace,
    Turns,
    frames_of_block,
    in_rounds,
    join_legs,
)
from edgeopt.measurement.turns.side_by_side import Side, distinct_labels, notes_on, side_of
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.amounts import Percent
from edgeopt.system.text import plural
from edgeopt.verbs.android.bench import notes_on_loss
from edgeopt.verbs.android.facts import notes_on_state
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.phone import Phone
from edgeopt.verbs.android.request import WorkThere, request_for_turns
from edgeopt.verbs.android.subject import SubjectThere, SubjectWishes, open_there

_ORDERS = 256
"""Orders of rounds that are drawn for a leg; a longer one begins anew with the first."""


def compare_there(
    connect: Callable[[], Phone],
    sources: Sequence[str],
    wishes: SubjectWishes,
    options: CompareOptions,
    tell: Tell | None,
) -> Comparison:
    """Compare models and bundles on a phone with the first of them, and write what was asked for.

    Args:
        connect: Reaches the phone where they run, once it is known that the wishes can be met.
        sources: Two or more, as the user named them.
        wishes: How they are opened and fed.
        options: What to measure.
        tell: Hears progress.

    Raises:
        EdgeoptError: If one cannot be measured there, or the phone is gone before there is a figure.
    """
    return compare(_SidesOnPhone(connect, wishes), sources, options, tell)


@dataclass(frozen=True)
class _SidesOnPhone:
    """The opener of models for a comparison on a phone."""

    connect: Callable[[], Phone]
    wishes: SubjectWishes

    def open_sides(self, sources: Sequence[str], options: CompareOptions) -> PhoneSides:
        """Open them all; the first one's frames are those of all."""
        phone, opened = self.connect(), list[SubjectThere]()
        frames: Frames | None = None
        for source in sources:
            opened.append(open_there(phone, source, self.wishes, frames))
            frames = opened[0].frames
        labels = distinct_labels([there.subject.name for there in opened], sources)
        sides = tuple(
            side_of(label, source, there.subject) for label, source, there in zip(labels, sources, opened, strict=True)
        )
        return PhoneSides(phone, tuple(opened), sides, options.seed)


@dataclass(frozen=True)
class PhoneSides:
    """Models on a phone side by side."""

    phone: Phone
    opened: tuple[SubjectThere, ...]
    sides: tuple[Side, ...]
    seed: int
    run_notes: list[Note] = field(default_factory=list)
    """Notes on the run itself."""

    @cached_property
    def facts(self) -> tuple[SideFacts, ...]:
        """One for each, in order."""
        info = {"phone.address": self.phone.address}
        return tuple(
            SideFacts(
                label=side.label,
                given=side.given,
                size_bytes=side.size_bytes,
                sha256=side.sha256,
                threads=side.subject.threads,
                environment=there.environment(info),
            )
            for side, there in zip(self.sides, self.opened, strict=True)
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """Differences between them beyond the models, and notes of each."""
        unlike = _unlike(self.sides)
        return (*notes_on(self.sides), *unlike, *self.opened[0].notes, *self.phone.facts.notes, *self.run_notes)

    @property
    def source(self) -> str:
        """Where the frames come from."""
        return str(self.opened[0].frames.source)

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return nothing: what is accurate here is so there, as the numbers were compared."""
        del tell
        return {}

    def run_in_turns(self, seconds: float, tell: Tell | None) -> Turns:
        """Run blocks of all in turns, and of a second copy of the first, in fresh processes.

        Raises:
            EdgeoptError: If a model fails, or the phone is gone before two rounds.
        """
        labels = [side.label for side in self.sides]
        works = {label: there.work() for label, there in zip(labels, self.opened, strict=True)}
        works[labels[0] + AGAIN] = works[labels[0]]
        pace, frame_s = Pace(seconds), max(min(self.opened[0].session.frames_ns) / 1e9, 1e-6)
        block = frames_of_block(pace, frame_s, len(works))
        open_s = sum(min(there.session.opened_ns) for there in (*self.opened, self.opened[0])) / 1e9
        count, rng = pace.legs(block, frame_s, len(works), open_s), np.random.default_rng(self.seed)
        legs: list[dict[str, Samples]] = []
        readings: list[CounterReading] = []
        spent_ns, before = 0, self.phone.state()
        for number in range(count):
            leg = _Leg(works, rng, seconds / count, block)
            heard, _ = self.phone.run(leg.request(pace.least_rounds), on_rows=leg.shown(tell, number, count))
            whole = leg.samples(heard)
            if whole:
                legs.append(whole)
                readings += _going_on(readings, heard.readings)
                spent_ns += max(int(part.done_ns.max()) for part in whole.values() if part.done_ns is not None)
            if heard.lost is not None:
                rounds = sum(map(_rounds_of, legs))
                if rounds < LEAST_WHOLE:
                    raise heard.lost
                self.run_notes.extend(notes_on_loss(heard, plural(rounds, "round")))
                break
        self.run_notes.extend(notes_on_state(before, self.phone.state()))
        samples = {label: join_legs([leg[label] for leg in legs]) for label in works}
        return Turns(samples, tuple(readings), (), self.sides[0].subject.threads, spent_ns / 1e9)

    def close(self) -> None:
        """Leave the models there: the next command finds them."""


def _unlike(sides: Sequence[Side]) -> tuple[Note, ...]:
    """Return a warning where one model does what an app does for another, so that their frames are not the same."""
    parts = {side.label: {*side.subject.recipe.embedded} for side in sides}
    if all(held == parts[sides[0].label] for held in parts.values()):
        return ()
    texts = [f"{label} {' and '.join(sorted(held)) or 'none'}" for label, held in parts.items()]
    text = f"models hold different parts of a frame: {', '.join(texts)}"
    return (Note(NoteKind.WARNING, text, "the ratio includes that: compare models that hold the same"),)


class _Leg:
    """One process on the phone, with all models open in it."""

    def __init__(self, works: Mapping[str, WorkThere], rng: np.random.Generator, seconds: float, block: int) -> None:
        self._labels: list[str] = rng.permutation(list(works)).tolist()
        self._works, self._seconds, self._block = works, seconds, block
        self._orders = [round_order(tuple(works), rng) for _ in range(_ORDERS)]

    def request(self, rounds: int) -> bytes:
        """Return what the runner is asked for."""
        number = {label: place for place, label in enumerate(self._labels)}
        return request_for_turns(
            [self._works[label] for label in self._labels],
            [[number[label] for label in order] for order in self._orders],
            seconds=self._seconds,
            block=self._block,
            rounds=rounds,
        )

    def samples(self, heard: RunnerLog) -> dict[str, Samples]:
        """Return the whole rounds of each model by its label; nothing where there is none."""
        parts = {label: heard.samples(label, place) for place, label in enumerate(self._labels)}
        rounds = min((len(part) - self._block) // (2 * self._block) for part in parts.values())
        if rounds < 1:
            return {}
        warm = {label: replace(part, warmup=np.arange(len(part)) < self._block) for label, part in parts.items()}
        return {label: in_rounds(part, self._block, rounds) for label, part in warm.items()}

    def shown(self, tell: Tell | None, number: int, count: int) -> Callable[[int], None]:
        """Return what tells how far all legs are."""
        spent_ns = 0

        def hear(more_ns: int) -> None:
            nonlocal spent_ns
            spent_ns += more_ns
            share = min(1.0, spent_ns / 1e9 / max(self._seconds, 1e-9))
            if tell:
                tell("measure in turns", round(100 * (number + share) / count), Percent(100))

        return hear


def _rounds_of(leg: Mapping[str, Samples]) -> int:
    rounds = next(iter(leg.values())).round_id
    return 0 if rounds is None else int(rounds.max()) + 1


def _going_on(before: Sequence[CounterReading], readings: Sequence[CounterReading]) -> list[CounterReading]:
    """Return readings of a further process as if its own counters went on from those of the process before."""
    if not before:
        return [*readings]
    last = before[-1]
    own = ("own_s", "switches", "major_faults", "heat_throttled")
    return [
        replace(
            reading,
            **{
                name: getattr(reading, name) + getattr(last, name)
                for name in own
                if getattr(reading, name) is not None and getattr(last, name) is not None
            },
        )
        for reading in readings
    ]
