"""Which target of a bundle for several runs here: the order in which they are tried, and why.

    1. measured on this processor and this system
    2. measured on another processor of the same instructions
    3. made for such a processor, and measured on another one or on none
    4. made for another processor: where the bundle's own test of its numbers holds here, and without one in float32
    5. its engine or its device is not here: only what it falls back to

In each of them comes first what was fastest where it was measured: its time over that of the fastest target measured on
the same processor. Then comes more of this processor's instructions, then the order of the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from platform import system
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.devices.availability import why_absent, why_unavailable
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.place import current_place
from edgeopt.system.machine.processor import cpu_kind, this_processor
from edgeopt.system.text import format_ms

MEASURED_ON = "measured_on"
"""Key of a bundle's `expected` that says on which machine its figures were measured."""


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """The kind of machine on which the figures of a bundle were measured."""

    processor: str
    architecture: str
    instructions: tuple[str, ...]
    """Those that matter for speed, in Linux words."""
    system: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as `expected` keeps them."""
        return asdict(self)


ORIGINAL = "original"
"""Key of a bundle's `expected` with the hash of the model that it was made of."""


def why_one_target(recipe: Recipe) -> str:
    """Return why a bundle is for one target and joins no others, as a sentence about it; empty where it may."""
    if recipe.image.sees:
        return "is a language model that sees, which stays a bundle for one target"
    if recipe.generation.encoder:
        return "is an encoder with a decoder, which stays a bundle for one target"
    if recipe.generation.prefill:
        return "has a graph for prompts and another for tokens, and stays a bundle for one target"
    return ""


def this_machine() -> MeasuredOn:
    """Return what tells machines like this one, or the one that computes for it, apart from others."""
    from edgeopt.system.machine.environment import NOTABLE  # few bundles are for several machines

    mine, place = this_processor(), current_place()
    flags = tuple(flag for flag in NOTABLE if flag in mine.flags)
    return MeasuredOn(cpu_kind(), mine.architecture, flags, system() if place is None else place.system)


def measured_on(expected: Mapping[str, Any]) -> MeasuredOn | None:
    """Return where the figures of a bundle were measured; None where it does not say, or nothing was measured."""
    values = expected.get(MEASURED_ON)
    if not isinstance(values, Mapping):
        return None
    flags = values.get("instructions")
    named = [str(flag) for flag in flags] if isinstance(flags, list | tuple) else []
    texts = [str(values.get(key) or "") for key in ("processor", "architecture", "system")]
    return MeasuredOn(texts[0], texts[1], tuple(named), texts[2]) if all(texts) else None


def frame_ms(expected: Mapping[str, Any]) -> float | None:
    """Return the median time of a frame or a token that a bundle tells; None where nothing was measured."""
    values = (expected.get("frame_p50_ms"), expected.get("tpot_p50_ms"))
    return next((float(value) for value in values if isinstance(value, int | float) and value > 0), None)


ASKED = "asked for"
"""Why a target runs that somebody named."""


class TargetFit(IntEnum):
    """The ways in which a target may suit this machine, the best first."""

    MEASURED = 1
    SAME_INSTRUCTIONS = 2
    MADE_FOR = 3
    BY_NUMBERS = 4
    NOT_HERE = 5


@dataclass(frozen=True, slots=True)
class Contender:
    """One target of a bundle, as far as the order depends on it."""

    target: Target
    """Profile of the bundle, with the engine and the providers of its first model."""
    precision: str
    """Precision of its first model."""
    measured_on: MeasuredOn | None
    frame_ms: float | None
    is_tested: bool
    """Whether the bundle has a test of the numbers of its first model."""


@dataclass(frozen=True, slots=True)
class TargetStanding:
    """The place of one target in the order."""

    index: int
    """Its place in the manifest."""
    fit: TargetFit
    reason: str
    """Reason, in a clause."""
    frame_ms: float | None
    is_measured_here: bool = False
    """Whether a machine like this one measured it."""

    @property
    def leads(self) -> bool:
        """Whether its first model is tried; else only what it falls back to."""
        return self.fit is not TargetFit.NOT_HERE


def rank(contenders: Sequence[Contender]) -> list[TargetStanding]:
    """Return the targets of a bundle in the order in which this machine tries them."""
    here, fastest = this_machine(), dict[str, float]()
    for each in contenders:
        if each.measured_on and each.frame_ms:
            name = each.measured_on.processor
            fastest[name] = min(each.frame_ms, fastest.get(name, each.frame_ms))
    standings = [_standing(i, each, here) for i, each in enumerate(contenders)]

    def key(standing: TargetStanding) -> tuple[int, float, int, int]:
        other = contenders[standing.index]
        there, ms = other.measured_on, other.frame_ms
        slower = ms / fastest[there.processor] if there and ms else float("inf")
        shared = len({*there.instructions} & {*here.instructions}) if there else 0
        return standing.fit, slower, -shared, standing.index

    return sorted(standings, key=key)


def _standing(index: int, contender: Contender, here: MeasuredOn) -> TargetStanding:
    fit, reason = _fit(contender, here)
    return TargetStanding(index, fit, reason, contender.frame_ms, contender.measured_on == here)


def _fit(contender: Contender, here: MeasuredOn) -> tuple[TargetFit, str]:
    target, there = contender.target, contender.measured_on
    if missing := why_unavailable(target) or why_absent(target):
        return TargetFit.NOT_HERE, str(missing)
    if there == here:
        return TargetFit.MEASURED, f"measured on {'' if target.device == 'cpu' else 'a machine with '}this processor"
    where = f"measured on {there.processor}, {there.system}" if there else "nothing tells where it was measured"
    unfit = target.why_unfit() or target.why_no_precision(contender.precision)
    if not unfit and there and (there.architecture, there.instructions) == (here.architecture, here.instructions):
        return TargetFit.SAME_INSTRUCTIONS, f"{where}, which has the same instructions"
    if not unfit:
        return TargetFit.MADE_FOR, f"made for such a processor; {where}"
    if contender.is_tested:
        return TargetFit.BY_NUMBERS, f"made for another ({unfit}), and its numbers hold here; {where}"
    if contender.precision == "fp32":
        return TargetFit.BY_NUMBERS, f"made for another ({unfit}), in float32, which computes alike everywhere; {where}"
    return TargetFit.NOT_HERE, f"{unfit}, and no test of its numbers could show that they hold here"


def contender_of(target: Target, executor: str, providers: tuple[str, ...], precision: str, **known: Any) -> Contender:
    """Return a contender: the profile may be of another engine than the one that its first model was fastest on."""
    return Contender(replace(target, executor=executor, providers=providers), precision, **known)


def notes_of_choice(
    label: str, standing: TargetStanding, others: Mapping[str, TargetStanding], why: str = ""
) -> tuple[Note, ...]:
    """Return which of a bundle's targets runs and why, and which faster one lacks its engine here.

    Args:
        label: Name of the target that runs.
        standing: Its place in the order.
        others: The other targets by their names.
        why: Why it runs, if not by that place.
    """
    time = f", {_ms(standing)} a frame" if standing.frame_ms and standing.is_measured_here else ""
    text = f"target {label} of {len(others) + 1} in the bundle: {why or standing.reason + time}"
    if why == ASKED:
        return (Note(NoteKind.CHOICE, text),)
    missed = [
        Note(
            NoteKind.WARNING, f"target {name} took {_ms(other)} on this processor, and cannot run here: {other.reason}"
        )
        for name, other in others.items()
        if other.fit is TargetFit.NOT_HERE and other.is_measured_here and _is_faster(other, standing)
    ]
    return (Note(NoteKind.CHOICE, text), *missed)


def _is_faster(other: TargetStanding, than: TargetStanding) -> bool:
    if not other.frame_ms:
        return False
    return not than.is_measured_here or not than.frame_ms or other.frame_ms < than.frame_ms


def _ms(standing: TargetStanding) -> str:
    return f"{format_ms((standing.frame_ms or 0.0) * 1e6)} ms"
