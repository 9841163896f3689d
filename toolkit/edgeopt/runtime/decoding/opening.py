"""Open a language model: a bundle, or an ONNX file with the recipe and the tokenizer beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from edgeopt.executors import SessionOptions
from edgeopt.executors._prompt_graph import open_prompt_graph, open_token_graph
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.flash_attention import flash_attention
from edgeopt.graph.files.in_place import mapped
from edgeopt.recipes.drafting.generation_drafting import drafted_generation
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.recipes.texts.encoder_decoder import graphs_in
from edgeopt.runtime.bundle import is_bundle, read_bundle
from edgeopt.runtime.decoding.binding import REMEDY, bind_language_model, require_writing, tokens_of, with_context
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.decoding.language_model import LanguageModel, Origin
from edgeopt.runtime.decoding.memory import bytes_of_decoder, bytes_of_graphs, require_memory
from edgeopt.runtime.fallback import open_first
from edgeopt.system.disk.files import require_regular
from edgeopt.system.disk.links import beside
from edgeopt.system.machine.huge_pages import huge_pages
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.in_background import InBackground

_FILES = ("model.onnx", "onnx/model.onnx")
"""The decoder in a folder that `export`, optimum or the hub wrote."""


def recipe_beside(model: Path) -> Recipe:
    """Return the recipe beside a model: its own, or what configurations of other tools tell.

    Raises:
        InvalidFileError: If there is none, or one is damaged.
    """
    file = beside(model, "recipe.toml")
    if not file.is_file() and (drafted := drafted_generation(model.parent)):
        return drafted
    require_regular(file, remedy=REMEDY)
    return read_recipe(file, stays_inside=True)


def bundle_of(path: Path) -> Path | None:
    """Return the bundle that a path is, holds or lies in as a model; None: it is none."""
    return path if is_bundle(path) else path.parent if is_bundle(path.parent) and path.is_file() else None


def decoder_file(model: Path) -> Path:
    """Return the file of a decoder that is given itself, or by its folder."""
    return next((model / file for file in _FILES if (model / file).is_file()), model) if model.is_dir() else model


def holds_pair(path: Path) -> bool:
    """Return whether a path is of a folder with an encoder and its decoder, or of a bundle of them."""
    try:
        if not path.is_dir():
            return False
    except OSError:  # a name too long for a file, which whoever opens it tells
        return False
    return graphs_in(path) is not None or (is_bundle(path) and graphs_in(path / "bundle") is not None)


def open_writer(
    model: Path, threads: int = 0, entries: Mapping[str, str] | None = None
) -> LanguageModel | EncoderDecoder:
    """Return a language model or an encoder with a decoder, open; see `open_language_model`, `open_encoder_decoder`."""
    if holds_pair(model):
        return open_encoder_decoder(model, threads, entries)
    return open_language_model(model, threads, entries=entries)[0]


def open_language_model(
    model: Path,
    threads: int = 0,
    context: int = 0,
    draft: Path | None = None,
    entries: Mapping[str, str] | None = None,
) -> tuple[LanguageModel, Recipe]:
    """Return an open language model and its recipe.

    Args:
        model: A bundle, or the output folder of `edgeopt optimize` that holds one; else the ONNX file, or its folder:
            `recipe.toml` and the tokenizer that it names lie beside it, or the configurations of onnxruntime-genai's
            builder, of optimum or of Hugging Face with their `tokenizer.json`.
        threads: Of the engine; 0: as the bundle was measured, or one per fast physical core.
        context: Tokens of prompt and answer together, for which memory is reserved; 0: all that the model has.
        draft: A smaller model with the same tokens that guesses, given as `model` is; None: the recipe's, if any.
        entries: Of ONNX Runtime's session; a bundle has its own.

    Raises:
        InvalidFileError: If one of them is absent or damaged.
        UnsupportedError: If the recipe is of another task, or they do not fit each other.
        EdgeoptError: If weights and cache do not fit into memory, or the model has no such context.
    """
    if draft is not None:
        opened, recipe = open_language_model(model, threads, context, entries=entries)
        try:
            opened.use_draft(open_language_model(draft, opened.origin.threads)[0])
        except BaseException:
            opened.close()
            raise
        return opened, recipe
    if path := bundle_of(model):
        bundle = read_bundle(path, hashes_weights=False)
        require_writing(bundle.recipe, bundle.folder)
        bundle = bundle.mapped(lambda each: replace(each, recipe=with_context(each.recipe, context)))
        first = open_first(bundle, threads)
        assert isinstance(first.writer, LanguageModel)
        first.writer.origin = replace(first.writer.origin, notes=first.notes)
        return first.writer, first.bundle.recipe
    file = decoder_file(model)
    recipe = recipe_beside(file)
    require_writing(recipe, file.parent / "recipe.toml")
    recipe, count = with_context(recipe, context), engine_threads(threads)
    graphs = [file, *([file.parent / recipe.generation.prefill] if recipe.generation.prefill else [])]
    for graph in graphs[1:]:
        require_regular(graph, remedy="put it back beside the model")
    size = bytes_of_graphs(graphs)
    require_memory(bytes_of_decoder(file, recipe), 0, recipe)
    tokens = InBackground(lambda: tokens_of(recipe))
    pages = huge_pages(size, file.resolve().parent)
    with pages, flash_attention(recipe.generation.flash_attention), ExitStack() as undone:
        options, engine = SessionOptions(threads=count, entries=entries or {}), recipe.generation.prefill_engine
        of_tokens = recipe.generation.engine
        session, notes = open_token_graph(file, of_tokens, count, lambda: EXECUTOR.open(mapped(file), options))
        undone.callback(session.close)
        prefill = None
        for graph in graphs[1:]:
            prefill, more = open_prompt_graph(graph, engine, count, lambda: EXECUTOR.open(mapped(graphs[1]), options))
            notes = (*notes, *more)
            undone.callback(prefill.close)
        origin = Origin(file, size, count, notes=notes, entries=entries or {})
        opened = bind_language_model(session, recipe, origin, prefill, tokens.take)
        undone.pop_all()
    return opened, recipe
