"""`edgeopt recipe`: a recipe drafted from a model, and what the model answers to one picture when it is read so."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.recipes.drafting.drafted import Draft, Facts
from edgeopt.recipes.drafting.drafting import draft_recipe
from edgeopt.recipes.drafting.other_readings import other_readings
from edgeopt.recipes.drafting.questions import Ask, name_of_reading, nobody
from edgeopt.recipes.drafting.readings import LINE_SIZE
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.made_up import synthetic_frames, synthetic_like
from edgeopt.recipes.inputs.picture_inputs import may_be_picture, picture_layout, plane_of
from edgeopt.recipes.inputs.preprocess import PICTURE_TYPES, Layout
from edgeopt.recipes.outputs.output_shapes import SPREADING
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.recipes.texts.alphabet import Alphabet
from edgeopt.report.contact_sheet import write_sheet
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.report.result import Result
from edgeopt.system.disk.files import require_writable, write_beside
from edgeopt.system.text import plural, shown_path
from edgeopt.tasks import find_task, make_task

_KEEPING_VALUES = frozenset({"Cast", "Identity", "Transpose"})
"""Ops between an input and the first that computes with it."""
_DRAWN_HEIGHT = 480
"""Pixels of a drawn picture."""
_RUN = 4
"""Made-up pictures whose answers tell scores from other numbers."""
_DRAWN = 2
"""Readings that are drawn side by side."""
_ARRAYS = "INPUTS.npz"
_ANSWER = 44
"""Characters of an answer; a drawing shows all of it."""


@dataclass(frozen=True, slots=True)
class TriedReading:
    """One way to feed the model, and what it answers."""

    name: str
    """Colour order and values of the pixels."""
    answer: str
    count: int
    """Things that were found."""


@dataclass(frozen=True, slots=True)
class Drafted(Result):
    """A recipe that was written."""

    command: ClassVar[str] = "recipe"

    model: str
    """As it was named."""
    file: Path
    recipe: Recipe
    not_known: tuple[str, ...]
    """Keys whose values are guesses, such as `preprocess.colour`."""
    picture: str = ""
    """The name of the picture that was shown; empty: none was."""
    readings: tuple[TriedReading, ...] = ()
    """Readings of that picture: as written first, then the usual other ways to feed it."""
    drawn: Path | None = None
    notes: tuple[Note, ...] = ()

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        readings = [
            {"reading": reading.name, "answer": reading.answer, "count": reading.count} for reading in self.readings
        ]
        return {
            "model": self.model,
            "file": str(self.file),
            "task": self.recipe.task,
            "decoder": self.recipe.postprocess.decoder,
            "not_known": list(self.not_known),
            "picture": self.picture,
            "readings": readings,
            "drawn": str(self.drawn) if self.drawn else None,
            "notes": [asdict(note) for note in self.notes],
        }


@guarded()
def draft(
    model: str, out: Path | None = None, *, recipe: str | None = None, picture: str = "", ask: Ask = nobody
) -> Drafted:
    """Write a commented recipe for a model, and show what it answers to one picture.

    Args:
        model: Path of an ONNX file, or the name of a shipped model.
        out: The file to write; None: `recipe.toml` beside the model.
        recipe: The recipe to begin with, by shipped name or path; None: read from the model.
        picture: A picture or a sound, or what holds some: the first is shown; empty: the recipe's own, or none.
        ask: Answers what the model does not tell.

    Raises:
        EdgeoptError: If the model or the picture cannot be read, the recipe to begin with does not fit, or the file
            exists or cannot be written.
    """
    path = find_model(model)
    file = out or path.parent / "recipe.toml"
    if file.exists():
        raise InvalidFileError(f"{file} exists, and is not written over", remedy="name another file: -o mine.toml")
    require_writable(file)
    frames = open_frames(Path(picture)).select([0]) if picture else None
    loaded = load_model(path)
    if not loaded.inputs:
        raise UnsupportedError(f"{model} takes no input, and a recipe says what is fed", remedy="name another model")
    facts = replace(_facts_of(loaded, path), sound_rate_hz=_rate_of(frames))
    result = draft_recipe(facts, recipe, ask)
    _write(result, facts, file)
    written = read_recipe(file)
    frames = frames or _own_frames(written)
    if frames is None:
        return Drafted(model, file, written, result.not_known)
    try:
        readings, drawn = _show(result.recipe, loaded, frames, file)
    except EdgeoptError as error:
        note = Note(NoteKind.WARNING, f"no answer to {frames.names[0]}: {error.problem}", error.remedy)
        return Drafted(model, file, written, result.not_known, notes=(note,))
    return Drafted(model, file, written, result.not_known, frames.names[0], readings, drawn)


def _rate_of(frames: Frames | None) -> int:
    """Return the rate of an example that is a sound; 0 where it is none."""
    example = frames.read(0) if frames is not None and frames.kind == "sound" else None
    return example.rate_hz if isinstance(example, Sound) else 0


def _facts_of(model: Model, path: Path) -> Facts:
    outputs, first_ops = _outputs_of(model), _first_ops(model)
    answers = _answers_of(model, outputs, first_ops)
    return Facts(model.name, path, model.opset, model.inputs, outputs, model.metadata, first_ops, answers)


def _answers_of(model: Model, outputs: Sequence[TensorSpec], first_ops: Sequence[str]) -> tuple[NDArray[Any], ...]:
    """Return what the only output gives for made-up pictures; empty where it is no row or table, or nothing runs."""
    if len(model.inputs) != 1 or len(outputs) != 1 or outputs[0].op in SPREADING or not may_be_picture(model.inputs[0]):
        return ()
    spec = model.inputs[0]
    sizes = [size if isinstance(size, int) else usual for size, usual in zip(spec.shape, (1, 3, 224, 224), strict=True)]
    is_table = len(outputs[0].shape) == 3 and outputs[0].shape[0] == 1 and outputs[0].is_static
    if sum(size != 1 for size in outputs[0].shape[1:]) != 1 and not is_table:
        return ()
    layout = picture_layout(spec)
    sizes[layout.channels] = 1 if spec.shape[layout.channels] == 1 else 3
    frames = synthetic_like(synthetic_frames(plane_of(sizes, layout)), plane_of(sizes, layout), _RUN)
    takes_raw = "float" not in spec.dtype or any(op in ("Sub", "Div", "Mul", "Add") for op in first_ops)
    try:
        session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    except EdgeoptError:
        return ()
    try:
        answers = []
        for i in range(_RUN):
            picture = frames.picture(i)[..., : sizes[layout.channels]].astype(np.float32)
            picture = picture if takes_raw else picture / np.float32(255) - np.float32(0.5)
            picture = picture if layout is Layout.NHWC else picture.transpose(2, 0, 1)
            fed = np.ascontiguousarray(picture.reshape(sizes)).astype(spec.dtype)
            answers.append(np.asarray(session.run({spec.name: fed})[outputs[0].name]))
    except EdgeoptError:
        return ()
    finally:
        session.close()
    return tuple(answers)


def _outputs_of(model: Model) -> tuple[TensorSpec, ...]:
    """Return the outputs; those whose shape nobody tells, for one picture, in the shape that runs of two widths return.

    So is a row whose length is free: exporters write such shapes by hand, and a row of classes is never of a free
    length.
    """
    if len(model.inputs) != 1:
        return model.outputs
    spec, odd = model.inputs[0], [output for output in model.outputs if output.is_unranked]
    if len(model.outputs) == 1:
        odd += [output for output in model.outputs if len(output.shape) == 2 and not isinstance(output.shape[1], int)]
    if not odd or len(spec.shape) != 4 or spec.dtype not in PICTURE_TYPES:
        return model.outputs
    height, width = LINE_SIZE
    try:
        session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    except EdgeoptError:
        return model.outputs
    try:
        runs = list[Tensors]()
        for usual in ((1, 3, height, width), (1, 3, height, 2 * width)):
            shape = [size if isinstance(size, int) else number for size, number in zip(spec.shape, usual, strict=True)]
            runs.append(session.run({spec.name: np.zeros(shape, spec.dtype)}))
    except EdgeoptError:
        return model.outputs
    finally:
        session.close()
    return tuple(_as_run(output, runs) if output in odd else output for output in model.outputs)


def _as_run(output: TensorSpec, runs: Sequence[Tensors]) -> TensorSpec:
    """Return an output with type and sizes as all runs gave them; free where they differ, as it was where ranks do."""
    arrays = [run[output.name] for run in runs]
    if len({array.ndim for array in arrays}) > 1:
        return output
    sizes = zip(*(array.shape for array in arrays), strict=True)
    shape = tuple(several[0] if len(set(several)) == 1 else None for several in sizes)
    dtype = str(arrays[0].dtype) if output.is_unranked else output.dtype
    return replace(output, shape=shape, dtype=dtype, is_unranked=False)


def _first_ops(model: Model) -> tuple[str, ...]:
    """Return the ops that compute with the inputs first."""
    seen, ops = {spec.name for spec in model.inputs}, list[str]()
    for node in model.proto.graph.node:
        if seen.isdisjoint(node.input):
            continue
        if node.op_type in _KEEPING_VALUES:
            seen.update(node.output)
        else:
            ops.append(node.op_type)
    return tuple(dict.fromkeys(ops))


def _write(found: Draft, facts: Facts, file: Path) -> None:
    """Write the recipe, and beside it its class names, and its alphabet where the model does not tell it."""
    labels = alphabet = ""
    if found.recipe.class_names:
        labels = f"{file.stem}.labels.txt"
        write_beside(file.with_name(labels), "\n".join(found.recipe.class_names) + "\n")
    if found.recipe.alphabet.characters and not Alphabet().or_of(facts.metadata).characters:
        alphabet = f"{file.stem}.alphabet.txt"
        write_beside(file.with_name(alphabet), "\n".join(found.recipe.alphabet.symbols) + "\n")
    write_beside(file, found.text(facts, labels, alphabet))


def _own_frames(recipe: Recipe) -> Frames | None:
    calib = recipe.path_of(recipe.evaluation.calib)
    return open_frames(calib).select([0]) if calib and calib.exists() else None


def _show(recipe: Recipe, model: Model, frames: Frames, file: Path) -> tuple[tuple[TriedReading, ...], Path | None]:
    """Return what the model answers to a picture in each reading, and where the first answers are drawn."""
    frames = fed(frames, recipe, model.inputs).select([0]) if frames.kind == "sound" else frames
    session = EXECUTOR.open(model.source, SessionOptions(entries=UNOPTIMIZED))
    try:
        tells = find_task(recipe.task).reveals_misreading and frames.holds_pictures
        fed_as = name_of_reading(recipe.preprocess) if frames.holds_pictures else frames.given
        named = [(f"{fed_as} (as written)", recipe)]
        named += [(name_of_reading(reading.preprocess), reading) for reading in other_readings(recipe)] if tells else []
        parts = [(name, *_answer(other, model, session, frames)) for name, other in named]
    finally:
        session.close()
    readings = tuple(TriedReading(name, text, count) for name, text, count, _ in parts)
    pictures = {name: [drawn] for name, _, _, drawn in parts[:_DRAWN] if drawn is not None}
    if not pictures:
        return readings, None
    path = file.with_name(f"{file.stem}.answer.png")
    write_sheet(path, pictures)
    return readings, path


def _answer(recipe: Recipe, model: Model, session: Session, frames: Frames) -> tuple[str, int, Frame | None]:
    """Return the answer as text, how many things it holds, and drawn, where it can be."""
    task = make_task(recipe, model.inputs, model.outputs, evaluating=False)
    answer = answers(session, task, frames)[0]
    drawn = task.draw(frames.read(0), answer, _DRAWN_HEIGHT) if frames.given in task.draws else None
    return task.as_text(answer), task.count(answer), drawn


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
        result,
        subject=result.model,
        title=f"A recipe for {result.model}",
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
