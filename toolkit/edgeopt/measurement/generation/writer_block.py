"""A model that writes tokens, open to be timed: what all such models share in `bench`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TypedDict

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.fresh_process.cold_start import ColdStart
from edgeopt.measurement.generation.answers.series import (
    LEAST_ANSWERS,
    AnswerSeries,
    measure_answers,
    samples_of_series,
)
from edgeopt.measurement.generation.diagnosis import find_complaints
from edgeopt.measurement.generation.guesses import GuessForecast
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.result import GenerationResult
from edgeopt.measurement.generation.sides.turns import Writes
from edgeopt.measurement.generation.symptoms import symptoms_of
from edgeopt.measurement.generation.under_load.load import LoadRun
from edgeopt.measurement.generation.under_load.load_result import summarize_run
from edgeopt.measurement.generation.under_load.slots import notes_of, write_answers
from edgeopt.measurement.load.run import observe
from edgeopt.measurement.resources.trust import judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Tell
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.machine.environment import read_environment

Hears = Callable[[str, int, int], None]
"""Hears what is done, how far, of how much."""


class OpenFacts(TypedDict, total=False):
    """Facts of an open model that has not answered yet, as fields of `GenerationResult`."""

    model: str
    file: str
    size_bytes: int
    parameters_told: str
    threads: int
    load_ms: float
    token_bytes: int
    heard_bytes: int
    state_bytes: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterBlock(ABC):
    """An open model, and the answers that it is timed by."""

    options: GenerationOptions
    facts: OpenFacts
    notes: tuple[Note, ...]
    began_s: float
    """When it began to open, by `monotonic`."""
    out: Path | None = None
    """Folder for all requests of a load, `answers.jsonl`; None: they are not written."""

    @property
    @abstractmethod
    def writer(self) -> Writes:
        """The model."""

    @abstractmethod
    def series(self, options: GenerationOptions) -> Sequence[AnswerSeries]:
        """Return what it is asked, one kind of prompt after the other."""

    def forecast(self, hears: Hears) -> GuessForecast | None:
        """Predict what guesses gain; None where none are asked for."""
        return None

    def options_by(self, forecast: GuessForecast | None) -> GenerationOptions:
        """Return the options with the number of guesses."""
        return self.options

    def notes_on(self, options: GenerationOptions) -> Sequence[Note]:
        """Return what a reader must know of answers with these options."""
        return ()

    def wanted(self, options: GenerationOptions) -> AnswerOptions:
        """Return what is asked of each answer."""
        return AnswerOptions(most_tokens=options.output_tokens, ends=False)

    def run_load(self, options: GenerationOptions, hears: Hears) -> tuple[LoadRun, ...]:
        """Answer under the load, in each number of slots; nothing where none is asked for."""
        return ()

    @abstractmethod
    def start_cold(self, options: GenerationOptions, series: Sequence[AnswerSeries], hears: Hears) -> ColdStart:
        """Start fresh processes; this one's model stays open meanwhile, and does nothing."""

    def run(self, tell: Tell | None) -> GenerationResult:
        """Time its answers: one at a time, then under a load, then in fresh processes, and judge."""
        hears = tell or (lambda *_: None)
        forecast = self.forecast(hears)
        options = self.options_by(forecast)
        timed = _Timed(self, options, hears)
        observed = observe(timed.run)
        runs = timed.load_runs
        if self.out is not None and runs:
            write_answers(self.out / "answers.jsonl", runs)
        loads = tuple(summarize_run(run, options.budget, options.max_miss_ratio) for run in runs)
        threads = self.facts["threads"]
        result = GenerationResult(
            **self.facts,
            environment=read_environment(),
            first_ttft_ms=timed.first_ttft_ms,
            lengths=tuple(series.summary(options) for series in timed.series),
            loads=loads,
            notes=(*self.notes, *self.notes_on(options), *_about_time(options, timed.alone_s), *notes_of(loads)),
            trust=judge_trust(observed.samples, observed.readings, observed.anchors, workers=threads),
            forecast=forecast,
            price_per_s=options.price_per_s,
            cold=self.start_cold(options, timed.series, hears) if options.cold else None,
            samples=observed.samples,
            seconds=monotonic() - self.began_s,
        )
        return replace(result, findings=find_complaints(symptoms_of(result)))


class _Timed:
    """The timed part of a run, which is observed as a whole."""

    def __init__(self, block: WriterBlock, options: GenerationOptions, hears: Hears) -> None:
        self._block, self._options, self._hears = block, options, hears
        self.series = block.series(options)
        self.first_ttft_ms, self.alone_s = 0.0, 0.0
        self.load_runs: tuple[LoadRun, ...] = ()

    def run(self) -> Samples:
        began_s, wanted = monotonic(), self._block.wanted(self._options)
        self.first_ttft_ms = measure_answers(self._block.writer, self.series, wanted, self._options, self._hears)
        self.alone_s = monotonic() - began_s
        self.load_runs = self._block.run_load(self._options, self._hears)
        return samples_of_series(self.series, self._block.facts["model"])


def _about_time(options: GenerationOptions, took_s: float) -> Iterator[Note]:
    """Yield that answers took far longer than was asked for; a budget may want that."""
    if options.budget is None and took_s > 2 * options.seconds:
        text = f"one request at a time took {took_s:.1f} s, {options.seconds:g} s were asked for"
        detail = f"{text}: {LEAST_ANSWERS} answers of each length are the least"
        yield Note(NoteKind.INFO, detail, "ask for shorter prompts or answers")
