"""The beginning of an `optimize` of a language model, and the folder into which its forms are written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.graph.files.large_constants import FOLDER, kept_in
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.measurement.generation.right_writer import open_right_decoder
from edgeopt.optimization.generation.forms.attention import AttentionTrials
from edgeopt.optimization.generation.forms.kinds import FUSED, KEPT, MatrixForm, with_chunks
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.generation.forms.memory import JUDGED_COPIES, require_memory, require_room
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.resume import MODEL, Left
from edgeopt.optimization.generation.texts import TokenWindows, read_texts
from edgeopt.optimization.generation.writer_run import FormMaker, WriterRun
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.runtime.bundle import is_bundle
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.steps.convert.decoder_fusion import answers_last, fuse_decoder
from edgeopt.steps.convert.kept_blocks import MOST_IN_FLOATS, bits_of_blocks, bytes_in_floats, in_floats
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.system.disk.archives import read_archive
from edgeopt.system.disk.files import open_beside, write_beside
from edgeopt.system.machine.memory import give_back
from edgeopt.system.processes.time_limit import LONGER
from edgeopt.system.text import plural

_FORM = "form"
"""Below the folder of the large constants that live as long as the run."""
_RANGES = "candidates/cache_ranges.npz"


@dataclass(frozen=True, slots=True)
class DecoderStart:
    """A language model, open, with its texts and the folder of its forms."""

    run: WriterRun
    file: Path
    original: LanguageModel
    recipe: Recipe
    texts: TokenWindows
    loaded: Model
    left: Left

    @property
    def ranges_file(self) -> Path:
        """The largest numbers of the cache, of whoever made the forms for another machine."""
        return self.left.folder / _RANGES


@contextmanager
def started(run: WriterRun, file: Path) -> Iterator[DecoderStart]:
    """Open a language model, read its texts and take the output folder.

    Args:
        run: What is asked.
        file: Of the model.

    Raises:
        EdgeoptError: If the model, the text or the lengths do not fit, or the folder holds something else.
    """
    if is_bundle(file):
        find_model(str(file))  # which says what takes one
    original, recipe = open_right_decoder(file, run.threads)
    with original:
        run.require_time()
        _require_lengths(run.options, original)
        length = run.options.prompt_tokens + run.options.output_tokens
        texts = read_texts(recipe, original, run.options.eval, run.options.calib, length)
        loaded = load_model(file, in_place=True)
        left = run.take_folder(recipe.name, [loaded], texts.calibration)
        with kept_in(left.folder / FOLDER if loaded.is_outside else None):
            yield DecoderStart(run, file, original, recipe, texts, loaded, left)


@dataclass(frozen=True, slots=True)
class DecoderForms:
    """The forms of a language model that are tried."""

    forms: tuple[MatrixForm, ...]
    material: DecoderMaterial | None
    """Their material; None: another machine made them."""
    is_last_enough: bool
    """Whether forms may leave out what only the logits of earlier tokens need."""
    notes: tuple[Note, ...]


def prepared(start: DecoderStart, forms: tuple[MatrixForm, ...]) -> DecoderForms:
    """Return the forms with what they are made of.

    Args:
        start: The model.
        forms: That are tried; the fused one is tried too where anything can be fused.

    Raises:
        EdgeoptError: If memory does not suffice.
    """
    bits = bits_of_blocks(start.loaded)
    has_floats = bytes_in_floats(start.loaded) < MOST_IN_FLOATS
    require_memory(start.loaded)
    run, original, texts = start.run, start.original, start.texts
    listener = run.shares.listener
    listener.say("looking for groups of ops that one op can replace")
    fused = fuse_decoder(start.loaded, original.context, original.tokenizer.size)
    run.require_time()
    head = start.recipe.generation.head
    source, stored = fused.model, None
    if bits in KEPT:
        stored = fused.model
        source = in_floats(stored).model if has_floats else stored
    place = start.left.folder / FOLDER if start.loaded.is_outside else None
    material = DecoderMaterial(
        source, run.device, texts.calibration, run.threads, head, run.options.max_rise, listener, stored, place
    )
    listener.say(
        f"{plural(len(texts.windows), 'window')} of {len(texts.windows[0])} tokens of {texts.judging} judge, "
        f"{len(texts.calibration)} of {texts.calibrating} calibrate"
    )
    is_last_enough = answers_last(source, original.context, original.tokenizer.size)
    if stored is not None:
        notes = (*fused.notes, _told_of_blocks(bits, has_floats=has_floats))
        return DecoderForms((KEPT[bits], *(forms if has_floats else ())), material, is_last_enough, notes)
    return DecoderForms((FUSED, *forms) if fused.changes else forms, material, is_last_enough, fused.notes)


def _told_of_blocks(bits: int, *, has_floats: bool) -> Note:
    text = f"matrices come in blocks, most in {bits} bits: {KEPT[bits].name} keeps them"
    if has_floats:
        return Note(NoteKind.INFO, f"{text}, other forms round what they stand for again")
    return Note(NoteKind.WARNING, f"{text}; no other form is made, as in floats they are above 2 GB")


def taken_over(start: DecoderStart, forms: tuple[MatrixForm, ...]) -> DecoderForms:
    """Return the forms that another machine made.

    Raises:
        EdgeoptError: If memory does not suffice to judge them.
    """
    handover = start.left.handover
    assert handover is not None
    require_room(JUDGED_COPIES * start.loaded.size_bytes)
    made = [name for name in handover.steps if (start.left.place(name) / MODEL).is_file()]
    start.run.shares.listener.say(f"forms are taken up: {', '.join(made) or 'none'}")
    tried = tuple(form for form in (FUSED, *KEPT.values()) if form.name in handover.steps) + forms
    return DecoderForms(tried, None, False, handover.told)


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where forms are made and written, and what lies beside them."""

    start: DecoderStart
    of: DecoderForms
    attention: AttentionTrials | None
    """Chooses how forms compute prompts; None: it is chosen on another machine."""

    def make(self, form: MatrixForm) -> str:
        """Make a form, unless an earlier run did; return why there is none, empty: there is one.

        Of one that is there attention is chosen anew, for the lengths of this run.
        """
        left = self.start.left
        if left.is_finished(form.name):
            if self.attention is not None:
                self.copy_beside(self.file_of(form.name).parent, load_model(self.file_of(form.name), in_place=True))
            return ""
        if self.of.material is None:
            return left.why_not_here(form.name, form.left_out)
        with self._let_go_afterwards():
            outcome = form.make(self.of.material)
            if not outcome.changes:
                return form.left_out
            self.write(form.name, outcome.model)
            del outcome
        return ""

    @contextmanager
    def _let_go_afterwards(self) -> Iterator[None]:
        """Keep the large constants of one form in files until it is written: no two forms are held at a time."""
        with kept_in(self.start.left.folder / FOLDER / _FORM if self.start.loaded.is_outside else None):
            yield
        give_back()

    def makers(self) -> list[FormMaker]:
        """Return what makes the forms, in the order in which they are tried."""
        return [
            FormMaker(
                form.name,
                form.told,
                form.precision,
                self.file_of(form.name),
                partial(self.make, form),
                self.start.left.is_finished(form.name),
                self.start.loaded.size_bytes,
                form.read_tokens(self.start.texts.calibration),
            )
            for form in self.of.forms
        ]

    def file_of(self, name: str) -> Path:
        """Return the file of a form."""
        return self.start.left.place(name) / MODEL

    def write(self, name: str, made: Model) -> Path:
        """Write a form into a folder of its own, with recipe and tokenizer; return its file."""
        file = self.file_of(name)
        save_model(keep_last_logits(made).model if self.of.is_last_enough else made, file)
        self.copy_beside(file.parent, made)
        self.start.left.finish(name)
        return file

    def cache_ranges(self) -> Mapping[str, NDArray[np.float32]]:
        """Return the largest number of each channel of the cache, by its input's name.

        Raises:
            InvalidFileError: If the machine that made the forms left none, or they are damaged.
        """
        if self.of.material is not None:
            return self.of.material.cache_ranges
        if not self.start.ranges_file.is_file():
            raise InvalidFileError("there was no time to measure the cache", remedy=LONGER)
        return read_archive(self.start.ranges_file, remedy="the other forms go on")

    def copy_beside(self, place: Path, model: Model, prefill: str = "", engine: str = "") -> None:
        """Write recipe and tokenizer beside a form.

        Args:
            place: Its folder.
            model: That computes its prompts.
            prefill: File of the graph of prompts, where it is another than that of tokens.
            engine: Of what computes prompts, that graph or the form; empty: ONNX Runtime.
        """
        recipe, source = with_chunks(self.start.recipe, prefill, engine), self.start.file.parent
        recipe = replace(recipe, image=ImageTable())  # forms of a decoder that sees are judged on text
        if self.attention is not None and not engine:
            recipe = self.attention.choose(model, recipe)
        place.mkdir(parents=True, exist_ok=True)
        calib = recipe.evaluation.calib
        if Path(calib).is_absolute():  # as a form of an earlier run names it, in its own folder
            recipe = replace(recipe, evaluation=replace(recipe.evaluation, calib=Path(calib).name))
        for name, near in (
            (recipe.tokenizer.file, recipe.tokenizer.file),
            (calib, recipe.evaluation.calib),
            (recipe.generation.draft, recipe.generation.draft),
        ):
            if name and (source / name).is_file() and (source / name).resolve() != (place / near).resolve():
                (place / near).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / name, place / near)
        write_beside(place / "recipe.toml", recipe_text(replace(recipe, folder=place), name=recipe.name, labels=""))


def write_ranges(file: Path, ranges: Mapping[str, NDArray[np.float32]]) -> None:
    """Write the largest numbers of the cache for the machine that takes the forms up."""
    held: dict[str, Any] = {**ranges}
    with open_beside(file) as stream:
        np.savez(stream, **held)


def _require_lengths(options: LanguageOptions, opened: LanguageModel) -> None:
    if options.prompt_tokens + options.output_tokens > opened.context:
        raise EdgeoptError(
            f"{options.prompt_tokens} tokens of a prompt and {options.output_tokens} of its answer are more than the "
            f"context of {opened.context}",
            remedy="ask for shorter prompts or answers",
        )
