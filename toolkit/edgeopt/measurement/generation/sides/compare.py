"""Which of several language models answers faster, for prompts and answers of asked lengths, and what it loses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt.errors import EXIT_PASS, Note, NoteKind
from edgeopt.measurement.generation.held_out import lengths_of
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.perplexity import Rise, agreement_between, rise_between
from edgeopt.measurement.generation.sides.side_by_side import (
    TWIN,
    Tell,
    open_again,
    open_sides,
    read_judging_text,
    require_room,
    score_sides,
    time_sides,
)
from edgeopt.measurement.generation.sides.turns import PARTS, ratio_between
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.system.machine.environment import read_environment


@dataclass(frozen=True, slots=True)
class ComparedWriter:
    """One language model."""

    label: str
    file: str
    size_bytes: int
    token_bytes: int
    """Token bytes of the cache."""
    threads: int
    times_ms: Mapping[str, float]
    """Medians by `PARTS`."""
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    """To the first; none of the first itself."""
    perplexity: float | None = None
    rise: Rise | None = None
    """Against the first."""
    agreement: float | None = None
    """Share of tokens behind which both would choose the same."""


@dataclass(frozen=True, slots=True)
class WriterComparison:
    """All of them; the first is what the others are compared with."""

    rows: tuple[ComparedWriter, ...]
    null: Mapping[str, Ratio]
    """The first against a second copy of itself, by part."""
    prompt_tokens: int
    output_tokens: int
    text: str
    """That judged; empty: none."""
    windows: int
    margin: float
    cpu: str
    seconds: float
    notes: tuple[Note, ...] = ()
    told_lengths: str = ""
    """Lengths of what an encoder hears or reads, and of its answers; empty: of prompts."""

    @property
    def exit_code(self) -> int:
        """0: a comparison informs; `edgeopt check` is the gate."""
        return EXIT_PASS

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare_language_models(
    models: Mapping[str, Path], options: SideOptions, *, tell: Tell = lambda *_: None
) -> WriterComparison:
    """Compare language models in turns.

    Args:
        models: Bundles or ONNX files by label, two or more; the first is the standard.
        options: Lengths, text and time.
        tell: Hears how far it is.

    Raises:
        EdgeoptError: If one does not open, or the lengths or the text do not fit.
    """
    began_s = monotonic()
    with ExitStack() as stack:
        sides = open_sides(models, options.threads, stack)
        require_room(sides, options)
        text = read_judging_text(sides, options)
        scores = score_sides(sides, text, tell)
        first = sides[0]
        twin = open_again(first)
        stack.callback(twin.close)
        turns = time_sides(sides, twin, text, options, tell)
        null = {part: ratio_between(turns[first.label], turns[TWIN], part) for part in PARTS}
        rows = list[ComparedWriter]()
        for side in sides:
            origin = side.model.origin
            row = ComparedWriter(
                label=side.label,
                file=str(origin.file),
                size_bytes=origin.size_bytes,
                token_bytes=side.model.token_bytes,
                threads=origin.threads,
                times_ms={part: turns[side.label].median_ms(part) for part in PARTS},
            )
            if side is not first:
                base, mine = turns[first.label], turns[side.label]
                ratios = {part: ratio_between(base, mine, part, null[part], options.margin) for part in PARTS}
                row = replace(row, ratios=ratios)
            if scores:
                row = replace(row, perplexity=scores[side.label].perplexity)
            if scores and side is not first:
                mine_score, base_score = scores[side.label], scores[first.label]
                rise, agreement = rise_between(base_score, mine_score), agreement_between(base_score, mine_score)
                row = replace(row, rise=rise, agreement=agreement)
            rows.append(row)
        notes = [note for side in sides for note in side.model.origin.notes]
    if text.why_not_judged:
        notes.append(Note(NoteKind.INFO, f"no perplexity is compared: {text.why_not_judged}"))
    return WriterComparison(
        rows=tuple(rows),
        null=null,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        text=text.name,
        windows=len(text.windows),
        margin=options.margin,
        cpu=read_environment().cpu,
        seconds=monotonic() - began_s,
        notes=tuple(dict.fromkeys(notes)),
        told_lengths=f"{lengths_of(text.sources)}, answers of {options.output_tokens}" if text.sources else "",
    )
