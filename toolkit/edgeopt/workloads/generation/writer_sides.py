"""Models that write tokens, open side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.files.outside import sha256_of
from edgeopt.measurement.check.run import thresholds_of
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.held_out import lengths_of
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.perplexity import TextScore, agreement_between, on_the_same, rise_between
from edgeopt.measurement.generation.sides.side_by_side import (
    JudgingText,
    WriterSide,
    open_writers,
    prompts_of,
    read_judging_text,
    require_room,
    score_sides,
    time_alone,
    time_in_legs,
)
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns
from edgeopt.measurement.resources.anchor import AnchorTimes, measure_anchor
from edgeopt.measurement.resources.readings import CounterReading, take_reading
from edgeopt.measurement.resources.trust import Trust, judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import CheckGuard, Quality, SideFacts, Tell
from edgeopt.measurement.turns.interleaved import Turns
from edgeopt.recipes.default_limits import MAX_RISE, Check
from edgeopt.recipes.texts.encoder_decoder import graphs_in
from edgeopt.running.writing import find_language_model
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import format_bytes, plural
from edgeopt.workloads.generation.guards import BudgetGuard, CacheGuard, PerplexityGuard

_WHOLE = PARTS[0]


@dataclass(frozen=True)
class GenerationSides:
    """Models that write tokens, open side by side."""

    sides: tuple[WriterSide, ...]
    given: tuple[str, ...]
    """As the user named them."""
    options: SideOptions
    stack: ExitStack
    """Closes them."""
    is_compared: bool
    """Whether `compare` opened them, which says why no perplexity is compared."""
    budget: AnswerBudget | None = None
    """Limits that answers must keep beside."""

    @cached_property
    def text(self) -> JudgingText:
        """Text that judges, and of which prompts are cut."""
        return read_judging_text(self.sides, self.options)

    @cached_property
    def facts(self) -> tuple[SideFacts, ...]:
        """One for each, in order."""
        return tuple(
            SideFacts(
                label=side.label,
                given=given,
                size_bytes=side.model.origin.size_bytes,
                sha256=_hash_of(side.model.origin.file),
                threads=side.model.origin.threads,
                environment=read_environment({"session.threads": side.model.origin.threads}),
                more={"cache a token": format_bytes(side.model.token_bytes)},
            )
            for side, given in zip(self.sides, self.given, strict=True)
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes of each."""
        notes = [note for side in self.sides for note in side.model.origin.notes]
        if self.is_compared and self.text.why_not_judged:
            notes.append(Note(NoteKind.INFO, f"no perplexity is compared: {self.text.why_not_judged}"))
        return tuple(notes)

    @property
    def source(self) -> str:
        """Lengths of prompts and answers."""
        if self.text.sources:
            return f"{lengths_of(self.text.sources)}, answers of {self.options.output_tokens}"
        prompts = plural(self.options.prompt_tokens, "token")
        return f"prompts of {prompts}, answers of {self.options.output_tokens}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Lengths of prompts and answers."""
        return {"prompt_tokens": self.options.prompt_tokens, "output_tokens": self.options.output_tokens}

    @property
    def judged_parts(self) -> tuple[str, ...]:
        """The whole answer, its first token, each one after it."""
        return PARTS

    @cached_property
    def guards(self) -> Mapping[str, CheckGuard]:
        """Guards of `check` besides those of every kind."""
        now = self.sides[-1]
        guards: dict[str, CheckGuard] = {
            "accuracy": PerplexityGuard(self.sides, self.text),
            "memory": CacheGuard(now.model.token_bytes),
        }
        if self.budget:
            prompts = prompts_of(now.model, self.text, self.options)
            guards["budget"] = BudgetGuard(self.budget, now, prompts, self.options)
        return guards

    def limits(self, wishes: Mapping[str, float]) -> Check:
        """Return what `check` allows: `accuracy_drop` is the share by which a perplexity may rise."""
        return thresholds_of(self.sides[-1].recipe.check, wishes, MAX_RISE)

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return the perplexity of each on the text that judges."""
        scores = score_sides(self.sides, self.text, tell)
        return qualities_of(scores)

    def run_in_turns(self, seconds: float, tell: Tell | None) -> Turns:
        """Answer prompts with all of them in turns, and with a second copy of the first."""
        readings, anchors = [take_reading()], [measure_anchor()]
        timed = time_in_legs(self.sides, self.text, replace(self.options, seconds=seconds), tell)
        readings.append(take_reading())
        anchors.append(measure_anchor())
        return turns_of(timed, self.sides[0].label, readings, anchors, self.sides[0].model.origin.threads)

    def run_alone(self, seconds: float, tell: Tell | None) -> tuple[Samples, Trust]:
        """Answer prompts with the last one alone."""
        side = self.sides[-1]
        readings, anchors = [take_reading()], [measure_anchor()]
        turns = time_alone(side, self.text, replace(self.options, seconds=seconds), tell)
        readings.append(take_reading())
        anchors.append(measure_anchor())
        samples = samples_of(turns, side.label)
        return samples, judge_trust(samples, readings, anchors, workers=side.model.origin.threads)

    def without_first(self) -> GenerationSides:
        """Close the first, and return the others."""
        self.sides[0].model.close()
        return replace(self, sides=self.sides[1:], given=self.given[1:])

    def close(self) -> None:
        """Free all models."""
        self.stack.close()


def open_models(
    labels: Sequence[str], sources: Sequence[str], options: SideOptions, *, is_compared: bool
) -> GenerationSides:
    """Open models.

    Raises:
        EdgeoptError: If one does not open, or the lengths do not fit.
    """
    models = {label: find_language_model(source) for label, source in zip(labels, sources, strict=True)}
    with ExitStack() as stack:
        sides = open_writers(models, options.threads, stack)
        require_room(sides, options)
        return GenerationSides(tuple(sides), tuple(sources), options, stack.pop_all(), is_compared)


def _hash_of(model: Path) -> str:
    """Return the hash of a model's file, or of the graphs of an encoder and its decoder."""
    graphs = {*(graphs_in(model) or ())} if model.is_dir() else {model}
    return " ".join(sha256_of(graph) for graph in sorted(graphs))


def samples_of(turns: FormTurns, label: str) -> Samples:
    """Return times of answers as raw samples, a round each."""
    times = np.round(turns.times_ns).astype(np.int64)
    rows = len(times)
    return Samples(
        stages=PARTS[1:],
        times_ns=times[:, 1:],
        frame_ns=times[:, 0],
        warmup=np.zeros(rows, np.bool_),
        variant=label,
        whole=_WHOLE,
        round_id=np.arange(rows),
    )


def qualities_of(scores: Mapping[str, TextScore]) -> dict[str, Quality]:
    """Return perplexities on what all of them predict, and what each is above the first one's."""
    qualities, scores = dict[str, Quality](), on_the_same(scores)
    for label, score in scores.items():
        first = next(iter(scores.values()))
        quality = Quality("perplexity", score.perplexity, loss_name="rise", more_is_better=False)
        if score is not first:
            quality = replace(quality, loss=rise_between(first, score), agreement=agreement_between(first, score))
        qualities[label] = quality
    return qualities


def turns_of(
    timed: Mapping[str, FormTurns],
    first: str,
    readings: Sequence[CounterReading],
    anchors: Sequence[AnchorTimes],
    threads: int,
) -> Turns:
    """Return times in turns as raw samples.

    Args:
        timed: By label, the second copy of the first too.
        first: Its label.
        readings: Of the machine, before and after.
        anchors: Its own speed, before and after.
        threads: Of one engine.
    """
    samples = {label: samples_of(turns, label) for label, turns in timed.items()}
    seconds = len(samples) * float(samples[first].frame_ns.sum()) / 1e9
    return Turns(samples, tuple(readings), tuple(anchors), threads, seconds, PARTS)
