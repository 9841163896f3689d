"""A language model beside other engines: `compare --rivals`. Each side answers in a process of its own, ours too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.files.outside import sha256_of
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.perplexity import WINDOW_TOKENS
from edgeopt.measurement.generation.rivals import OWN, EngineRequest
from edgeopt.measurement.generation.sides.apart import ApartModel, ApartWriter, EngineFailure, FreshRun
from edgeopt.measurement.generation.sides.side_by_side import (
    ApartSide,
    labels_for,
    prompts_of,
    score_sides,
    time_in_legs,
)
from edgeopt.measurement.generation.sides.turns import FormTurns
from edgeopt.measurement.resources.anchor import measure_anchor
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.sides import Quality, SideFacts, SideFigure, Tell
from edgeopt.measurement.statistics.quantile import Quantile, quantile
from edgeopt.measurement.turns.interleaved import AGAIN, Turns
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.machine.environment import read_environment
from edgeopt.workloads.generation.rival_files import RivalFiles, RivalWish, read_wishes
from edgeopt.workloads.generation.writer_sides import GenerationSides, open_models, qualities_of, turns_of

STARTS = 6
"""Fresh processes of each side: the fewest whose median has an interval."""
_ROUND_TOKENS = 256
"""Memory is reserved for whole multiples of so many tokens, as llama.cpp does."""


@dataclass
class RivalSides:
    """Models of our own and their rivals; a rival that fails is left out, and a note says why."""

    own: GenerationSides
    options: SideOptions
    contenders: list[ApartSide]
    """All that are measured, ours first."""
    stack: ExitStack
    lost: dict[str, Note]
    """Why rivals are left out, or have no perplexity, by label."""
    figures: Mapping[str, Mapping[str, SideFigure]]
    """Figures by label, once they are measured."""

    @property
    def facts(self) -> tuple[SideFacts, ...]:
        """One for each that was not lost, in order."""
        own = {facts.label: facts for facts in self.own.facts}
        return tuple(self._facts(side, own.get(side.label)) for side in self.contenders)

    def _facts(self, side: ApartSide, own: SideFacts | None) -> SideFacts:
        origin, file = side.model.origin, side.model.model.request.file
        facts = own or SideFacts(
            label=side.label,
            given=str(file),
            size_bytes=origin.size_bytes,
            sha256=sha256_of(file) if file.is_file() else "",
            threads=origin.threads,
            environment=read_environment({"session.threads": origin.threads}),
        )
        first = self.contenders[0].model.answers
        both = [side.model.answers[prompt] == first[prompt] for prompt in side.model.answers if prompt in first]
        more = {} if side is self.contenders[0] else {"same answers": f"{sum(both)} of {len(both)}"}
        return replace(
            facts,
            threads=origin.threads,
            more=more,
            figures=self.figures.get(side.label, {}),
            settings=side.model.settings,
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes of each, and why rivals are left out."""
        return (*self.own.notes, *self.lost.values())

    @property
    def source(self) -> str:
        """Lengths of prompts and answers."""
        return self.own.source

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return the perplexity of each on the text that judges; a rival that gives no logits has none."""
        scores = score_sides(self.own.sides, self.own.text, tell)
        for i, side in enumerate(self._rivals if scores else ()):
            if tell:
                tell("judge rivals by the text", i, len(self._rivals))
            try:
                scores[side.label] = side.model.score(self.own.text.windows)
            except EngineFailure as failure:
                self.lost[side.label] = Note(NoteKind.SKIPPED, f"no perplexity of {side.label}: {failure.why}")
                self._open_anew(side)
        for own in self.own.sides:  # each is open in a process of its own
            own.model.close()
        return qualities_of(scores)

    def _open_anew(self, side: ApartSide) -> None:
        """Put a new process in the place of one that failed, or leave the rival out."""
        side.model.close()
        try:
            fresh = ApartSide(side.label, side.model.reopened())
        except EngineFailure as failure:
            self._lose(failure)
            return
        self.stack.callback(fresh.model.close)
        self.contenders[self.contenders.index(side)] = fresh

    @property
    def _rivals(self) -> list[ApartSide]:
        return [side for side in self.contenders if side.model.model.engine != OWN]

    def run_in_turns(self, seconds: float, tell: Tell | None) -> Turns:
        """Answer prompts with all of them in turns, then start each in fresh processes."""
        options = replace(self.options, seconds=seconds)
        while True:
            readings, anchors, began_s = [take_reading()], [measure_anchor()], monotonic()
            try:
                timed = time_in_legs(self.contenders, self.own.text, options, tell)
                break
            except EngineFailure as failure:  # the others begin anew, without it
                self._lose(failure)
        took_s = monotonic() - began_s
        readings.append(take_reading())
        anchors.append(measure_anchor())
        starts = self._start_fresh(tell)
        labels = [side.label for side in self.contenders]
        timed = {label: timed[label] for label in [*labels, labels[0] + AGAIN]}
        self.figures = {label: _figures(timed[label], starts[label]) for label in labels}
        turns = turns_of(timed, labels[0], readings, anchors, self.contenders[0].model.origin.threads)
        return replace(turns, seconds=took_s)  # pauses and the way between processes are in it

    def _start_fresh(self, tell: Tell | None) -> dict[str, list[FreshRun]]:
        """Return what fresh processes took, in turns."""
        runs: dict[str, list[FreshRun]] = {side.label: [] for side in self.contenders}
        for turn in range(STARTS):
            for side in self.contenders[:: -1 if turn % 2 else 1]:
                prompt = prompts_of(side.model, self.own.text, self.options)[turn]
                try:
                    with _open(side.model.model) as writer:
                        runs[side.label].append(writer.first_run(prompt, self.options.output_tokens))
                except EngineFailure as failure:
                    self._lose(failure)
            if tell:
                tell("start fresh processes", turn + 1, STARTS)
        return runs

    def _lose(self, failure: EngineFailure) -> None:
        """Leave a rival out.

        Raises:
            EngineFailure: If it is one of ours, or nothing is left to compare.
        """
        kept = [side for side in self.contenders if side.label != failure.label]
        if len(kept) < 2 or failure.label in {side.label for side in self.own.sides}:
            raise failure
        for side in self.contenders:
            if side.label == failure.label:
                side.model.close()
        self.contenders[:] = kept
        self.lost[failure.label] = Note(NoteKind.SKIPPED, f"{failure.label} left out: {failure.why}")

    def close(self) -> None:
        """End all processes and free all models."""
        self.stack.close()


@contextmanager
def _open(model: ApartModel) -> Iterator[ApartWriter]:
    writer = ApartWriter(model)
    try:
        yield writer
    finally:
        writer.close()


def open_rivals(sources: Sequence[str], options: SideOptions) -> RivalSides:
    """Open language models, and the rivals beside them.

    Raises:
        EdgeoptError: If a model does not open, a rival or its form is not known, or none of the rivals opens beside a
            single model.
    """
    wishes = read_wishes(options)
    with ExitStack() as stack:
        own = open_models(labels_for(sources), sources, options, is_compared=True)
        stack.callback(own.close)
        first = own.sides[0].model
        if not isinstance(first, LanguageModel):
            raise EdgeoptError(
                "--rivals stands beside language models, not encoders with decoders", remedy="leave it out"
            )
        wanted = max(options.prompt_tokens + options.output_tokens, WINDOW_TOKENS if own.text.windows else 0)
        shortest = min(side.model.context for side in own.sides)
        context = min(-(-wanted // _ROUND_TOKENS) * _ROUND_TOKENS, shortest)
        work = Path(stack.enter_context(TemporaryDirectory(prefix="edgeopt-rivals-")))
        contenders = list[ApartSide]()
        for side in own.sides:
            origin, begin = side.model.origin, side.recipe.generation.begin
            request = EngineRequest(
                origin.file, first.origin.threads, context, work=work, entries=origin.entries or None
            )
            writer = ApartWriter(ApartModel(side.label, OWN, request, begin, origin, first.tokenizer))
            stack.callback(writer.close)
            contenders.append(ApartSide(side.label, writer))
        sides = RivalSides(own, options, contenders, ExitStack(), {}, {})
        files, failures = RivalFiles(own.sides, work, first.origin.threads, context), list[EdgeoptError]()
        for wish in wishes:
            try:
                writer = _opened(wish, files)
            except EdgeoptError as error:
                failures.append(error)
                why = error.why if isinstance(error, EngineFailure) else error.problem
                sides.lost[wish.label] = Note(NoteKind.SKIPPED, f"{wish.label} left out: {why}", error.remedy)
                continue
            stack.callback(writer.close)
            contenders.append(ApartSide(writer.model.label, writer))
        if len(contenders) < 2:
            raise _joined(failures)
        sides.stack = stack.pop_all()
        return sides


def _joined(failures: Sequence[EdgeoptError]) -> EdgeoptError:
    """Return one error that says why none of the rivals opens."""
    if len(failures) == 1:
        return failures[0]
    return EdgeoptError("; ".join(error.problem for error in failures), remedy=failures[0].remedy)


def _opened(wish: RivalWish, files: RivalFiles) -> ApartWriter:
    if why := wish.rival.why_unavailable:
        problem, _, remedy = why.partition(": ")
        raise EdgeoptError(problem, remedy=remedy)
    return ApartWriter(files.model(wish))


def _figures(times: FormTurns, starts: Sequence[FreshRun]) -> dict[str, SideFigure]:
    """Return the figures of one side, each with its interval."""
    ttft, tpot = (quantile(np.round(times.times_ns[:, part]).astype(np.int64), 0.5) for part in (1, 2))
    first = quantile(np.array([start.first_token_ns for start in starts], np.int64), 0.5)
    peaks = [start.peak_bytes for start in starts]
    figures = {
        "TTFT": _figure(ttft, "ms", 1e-6),
        "TPOT": _figure(tpot, "ms", 1e-6),
        "decode": _rate(tpot),
        "cold start": _figure(first, "ms", 1e-6),
    }
    if all(peaks):
        figures["peak memory"] = _figure(quantile(np.array(peaks, np.int64), 0.5), "MiB", 1 / (1 << 20))
    return {name: figure for name, figure in figures.items() if figure}


def _figure(value: Quantile, unit: str, factor: float) -> SideFigure | None:
    if value.value_ns is None:
        return None
    low, high = (None if end is None else factor * end for end in (value.low_ns, value.high_ns))
    return SideFigure(factor * value.value_ns, low, high, unit)


def _rate(tpot: Quantile) -> SideFigure | None:
    """Return tokens a second behind the first one: the inverse of the time of each."""
    if not tpot.value_ns:
        return None
    low, high = (None if not end else 1e9 / end for end in (tpot.high_ns, tpot.low_ns))
    return SideFigure(1e9 / tpot.value_ns, low, high, "tokens/s")
