"""A language model behind an HTTP port: completions and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.answer_defaults import GUESSES
from edgeopt.running.prompt_turn import template_of
from edgeopt.running.serving import Hosted, ServedModel, ServeOptions
from edgeopt.running.writing import find_language_model, read_system
from edgeopt.runtime.bundle import parse_bundle
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.memory import bytes_of_decoder, bytes_of_graphs
from edgeopt.runtime.decoding.opening import bundle_of, decoder_file, open_language_model, recipe_beside
from edgeopt.runtime.decoding.prefixes import prefix_folder
from edgeopt.runtime.fallback import least_bytes
from edgeopt.runtime.serve.model_memory import MemoryNeeds

if TYPE_CHECKING:
    from edgeopt.measurement.opening.right_optimizations import Correction
    from edgeopt.runtime.serve.model_memory import MemoryPlace
    from edgeopt.runtime.serve.reader import PromptReader

_PATHS = ("/v1/completions", "/v1/chat/completions")


def hosted_texts(model: str, options: ServeOptions) -> Hosted:
    """Return a language model that can be served.

    Raises:
        EdgeoptError: If it is not there, or its files say nothing of it.
    """
    slots, prompting = options.limits.slots, options.prompting
    recipe, weights_bytes, cache_bytes = _least_of(find_language_model(model), prompting.context, slots)
    most = recipe.generation.context
    context = min(prompting.context or most, most)
    needs = MemoryNeeds(weights_bytes, cache_bytes, _least_of_draft(recipe, options, context), context, slots)
    return Hosted(model, recipe.name, _PATHS, needs, options, open_texts)


def _least_of(file: Path, context: int, slots: int) -> tuple[Recipe, int, int]:
    """Return a model's recipe, the memory of its weights, and that of its cache, which the files of a bundle tell.

    Args:
        file: A bundle, an ONNX file, or its folder.
        context: Tokens of a slot, where the model has as many; 0: all that it has.
        slots: Texts that are written at once.
    """
    if folder := bundle_of(file):
        bundle = parse_bundle(folder)
        most = bundle.recipe.generation.context
        tokens, weights_bytes = min(context or most, most) * slots, least_bytes(bundle, 0)
        return bundle.recipe, weights_bytes, least_bytes(bundle, tokens) - weights_bytes
    file = decoder_file(file)
    recipe = recipe_beside(file)
    return recipe, bytes_of_decoder(file, recipe), 0


def _least_of_draft(recipe: Recipe, options: ServeOptions, context: int) -> int:
    """Return the least memory of the smaller model that guesses; 0: none does."""
    if named := options.prompting.draft:
        return sum(_least_of(find_language_model(named), context, 1)[1:])
    generation = recipe.generation
    guesses = generation.guesses if options.guesses is None else options.guesses
    is_used = guesses and options.uses_draft and options.limits.slots == 1
    return bytes_of_graphs([recipe.folder / generation.draft]) if generation.draft and is_used else 0


def open_texts(model: str, options: ServeOptions, place: MemoryPlace | None = None) -> ServedModel:
    """Open a language model with its routes: `/v1/completions` and `/v1/chat/completions`.

    Args:
        model: A bundle, a shipped model, its ONNX file or folder.
        options: How it is served.
        place: Its part of the memory that several models share.

    Raises:
        EdgeoptError: If it does not open.
    """
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.reader import PromptReader
    from edgeopt.runtime.serve.routes.texts import STAGES, TextRoutes
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer
    from edgeopt.runtime.serve.writers import OneByOne, ServedWriter, Together

    file, prompting, limits = find_language_model(model), options.prompting, options.limits
    if (options.guesses or prompting.draft) and limits.slots > 1:
        raise EdgeoptError(
            f"guesses are made for one text at a time, and --slots is {limits.slots}", remedy="add --slots 1"
        )
    system = read_system(prompting.system) if prompting.system else ""
    draft = find_language_model(prompting.draft) if prompting.draft else None
    corrections: list[Correction | None] = []
    read, notes = list[PromptReader](), list[Note]()

    def open_model() -> ServedWriter:
        if not corrections:
            corrections.append(_correction_of(file))
            notes.extend(corrections[0].notes if corrections[0] else ())
        entries = corrections[0].entries if corrections[0] else None
        opened, recipe = open_language_model(file, options.threads, prompting.context, draft, entries)
        try:
            is_first = not read
            if is_first:
                read.append(_reader_of(opened, recipe, file, system))
            if options.guesses is not None or draft is not None:
                opened.guesses = GUESSES if options.guesses is None else options.guesses
            if options.exact:
                opened.require_exact()
                opened.is_exact = True
            for start in read[0].starts:
                kept = opened.keep_prefix(start, prompting.prefixes or prefix_folder())
                notes.extend([Note(NoteKind.INFO, kept.note)] if is_first and kept.note else [])
        except ValueError as error:
            opened.close()
            raise EdgeoptError(str(error), remedy="shorten the text of --system") from error
        except BaseException:
            opened.close()
            raise
        guesses = bool(opened.guesses) and limits.slots == 1
        if is_first:
            notes.extend((*opened.origin.notes, *_told_of_guesses(opened, guesses=guesses)))
            names.append(recipe.name)
        if guesses:
            return OneByOne(opened, uses_draft=options.uses_draft)
        slots = Together(opened, limits)
        if is_first and slots.turns_told:
            notes.append(Note(NoteKind.INFO, f"texts take turns, one run a token: {slots.turns_told}"))
        return slots

    names = list[str]()
    holder = Holder(open_model, options.keep_s, place)
    name, reader = options.name or names[0], read[0]
    tally, tracer = Tally(name, STAGES, holder, writes=True), SpanTracer(name)
    texts = TextRoutes(name, holder, reader, limits, tally, tracer)
    text = "/v1, completions and chat " + ("in a plain form" if reader.stop else "by the model's own template")
    return ServedModel(name, tally, holder, texts.routes(), texts.close, text, tuple(notes))


def _correction_of(file: Path) -> Correction | None:
    """Return how ONNX Runtime must be held back; None: a bundle tells it, and is served without onnx."""
    if bundle_of(file):
        return None
    from edgeopt.measurement.generation.right_writer import correction_of_decoder

    return correction_of_decoder(file)


def _reader_of(opened: LanguageModel, recipe: Recipe, file: Path, system: str) -> PromptReader:
    from edgeopt.runtime.serve.reader import PromptReader

    template = template_of(recipe, file)
    marks = opened.images.marks if opened.images is not None else None
    return PromptReader(opened.tokenizer, opened.context, recipe.generation.begin, template, system, marks)


def _told_of_guesses(opened: LanguageModel, *, guesses: bool) -> Iterator[Note]:
    """Yield what a user should know of guesses."""
    if guesses:
        yield from notes_of_guesses(opened.sums)
    if opened.guesses and not guesses:
        yield Note(NoteKind.INFO, "its guesses are left out: several texts are written at once", "--slots 1 has them")
