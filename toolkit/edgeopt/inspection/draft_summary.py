"""A drafted recipe as a document."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable

from edgeopt.inspection.draft import Drafted, TriedReading
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.system.text import plural, shown_path

_ARRAYS = "INPUTS.npz"
_ANSWER = 44
"""Characters of an answer; a drawing shows all of it."""


def summarize(result: Drafted) -> Document:
    """Return what a reader sees: the answers to one picture, what is not known, and the file."""
    recipe, file = result.recipe, shown_path(result.file)
    others = {"sound": "SOUNDS", "text": "TEXTS.txt"}
    given = "PICTURES" if recipe.input.size else others.get(recipe.kind, _ARRAYS)
    facts = [Value("task", f"{recipe.task}, decoder {recipe.postprocess.decoder}, metric {recipe.evaluation.metric}")]
    if result.not_known:
        facts.append(Value("not known", f"{', '.join(result.not_known)}: guessed, and marked in the file"))
    if result.drawn:
        facts.append(Value("drawn", shown_path(result.drawn)))
    elif recipe.kind != "text" and given != _ARRAYS and not result.picture and not result.notes:
        what = "sound" if recipe.kind == "sound" else "picture"
        facts.append(Value(what, "none: --picture FILE shows what the model answers when it is read so"))
    guessed = f"; {plural(len(result.not_known), 'value')} in it guessed" if result.not_known else ""
    command = f"edgeopt optimize {shlex.quote(result.model)} --target cpu --recipe {shlex.quote(file)}"
    return Document(
        command="recipe",
        subject=result.model,
        title=f"A recipe for {result.model}",
        data=result.as_json(),
        sections=(_answers(result), Section(notes=result.notes)),
        verdict=VerdictLines(
            CommandOutcome.DONE, f"{file} is written{guessed}", tuple(facts), next_command=f"{command} --calib {given}"
        ),
    )


def _answers(result: Drafted) -> Section:
    """Return what each reading answers; the count of what was found where it tells readings apart."""
    if not result.readings:
        return Section()
    tells = len({reading.count for reading in result.readings}) > 1
    columns: dict[str, Callable[[TriedReading], str]] = {
        "reading": lambda reading: reading.name,
        "found": lambda reading: str(reading.count) if tells else "",
        "answer": lambda reading: textwrap.shorten(reading.answer, _ANSWER, placeholder=" ..."),
    }
    table = make_table(result.readings, columns, words=["reading", "answer"], chosen=0)
    several = "The right reading answers what is in the picture: write its colour, scale, mean and std into the file."
    return Section(f"Answers to {result.picture}", table, several if len(result.readings) > 1 else "")
