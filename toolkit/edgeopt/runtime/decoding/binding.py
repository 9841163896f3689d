"""A loaded decoder bound to its recipe and tokenizer: a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors._prompt_graph import PromptGraph, TokenGraph
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.flash_attention import flash_attention
from edgeopt.executors.onnxruntime.image_rows import IMAGE_ROWS
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.executors.openvino.decoder import OpenVinoDecoder
from edgeopt.graph.facts.positions import positions_of
from edgeopt.graph.files.in_place import mapped
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.generation import GENERATION
from edgeopt.recipes.texts.tokens import Tokens, read_tokens
from edgeopt.runtime.decoding.language_model import LanguageModel, Origin
from edgeopt.runtime.decoding.memory import bytes_of_graphs, require_memory
from edgeopt.system.disk.files import require_regular
from edgeopt.system.machine.huge_pages import huge_pages

if TYPE_CHECKING:
    from edgeopt.runtime.decoding.image_reader import ImageReader

REMEDY = "edgeopt export hf:FOLDER -o model.onnx writes the recipe and the tokenizer beside a model"


def require_writing(recipe: Recipe, path: Path) -> None:
    """Raise unless a recipe is of a language model, with tokenizer and context.

    Args:
        recipe: Any.
        path: Where it stands.

    Raises:
        UnsupportedError: If it is not.
    """
    if recipe.generation.encoder:
        raise UnsupportedError(f"{path} is an encoder with a decoder", remedy="open it with Runtime.load")
    if recipe.task != GENERATION:
        raise UnsupportedError(
            f"{path} is of the task {recipe.task}: its model writes no text",
            remedy="name a language model, such as tiny_lm; of other models edgeopt run takes a bundle and a picture",
        )
    if not recipe.tokenizer.file or not recipe.generation.context:
        raise UnsupportedError(f"{path} is not the recipe of a language model that writes", remedy=REMEDY)


def with_context(recipe: Recipe, context: int) -> Recipe:
    """Return the recipe with a shorter context; 0: its own.

    Raises:
        EdgeoptError: If the model has no such context.
    """
    most = recipe.generation.context
    if not 0 <= context <= most:
        raise EdgeoptError(f"a context of {context} tokens: {recipe.name} has {most}", remedy=f"ask for {most} or less")
    return replace(recipe, generation=replace(recipe.generation, context=context or most))


def tokens_of(recipe: Recipe) -> Tokens:
    """Return the tokenizer of a recipe; raises as `bind_language_model`."""
    return read_tokens(recipe.folder / recipe.tokenizer.file)


def bind_language_model(
    session: TokenGraph,
    recipe: Recipe,
    origin: Origin,
    prefill: PromptGraph | None = None,
    tokens: Callable[[], Tokens] | None = None,
) -> LanguageModel:
    """Return the language model of a session.

    Args:
        session: Of its decoder.
        recipe: Its own, with the folder in which its tokenizer lies.
        origin: From what it was opened.
        prefill: Of the graph that computes prompts, where the recipe names one.
        tokens: Returns its tokenizer, where it is read already; None: it is read now.

    Raises:
        InvalidFileError: If the tokenizer is absent or damaged.
        UnsupportedError: If they do not fit each other, or another engine than ONNX Runtime holds it.
        EdgeoptError: If the recipe's context is longer than the model's positions, or the cache of one text does not
            fit into memory.
    """
    if not isinstance(session, OnnxRuntimeSession | OpenVinoDecoder):
        raise UnsupportedError("language models run on ONNX Runtime or OpenVINO", remedy="make them with --target cpu")
    if prefill is not None and isinstance(session, OpenVinoDecoder):
        raise UnsupportedError(
            "a decoder on OpenVINO computes prompts itself, into a cache of its own",
            remedy="take engine or prefill out of recipe.toml",
        )
    _require_positions(recipe, origin.file)
    tokenizer, generation = tokens() if tokens else tokens_of(recipe), recipe.generation

    def open_draft() -> LanguageModel:
        file = recipe.folder / generation.draft
        size = require_regular(file, remedy="put the draft back, or name another: --draft MODEL")
        require_memory(size, 0, recipe)
        with huge_pages(), flash_attention(generation.flash_attention):
            opened = EXECUTOR.open(mapped(file), SessionOptions(threads=origin.threads))
        context = generation.draft_context or generation.context
        return LanguageModel(
            opened, tokenizer, context, generation.end, generation.begin, 0, Origin(file, size, origin.threads)
        )

    draft = open_draft if generation.draft else None
    begins = generation.context, generation.end, generation.begin
    images = None
    if recipe.image.sees:
        images = open_image_reader(recipe.folder / recipe.image.encoder, recipe, tokenizer, origin.threads)
        origin = replace(origin, size_bytes=origin.size_bytes + images.size_bytes)
    try:
        made = LanguageModel(
            session,
            tokenizer,
            *begins,
            generation.head,
            origin,
            draft,
            generation.guesses,
            generation.chunk,
            prefill,
            images,
        )
        require_memory(0, made.token_bytes, recipe)
        if images is not None:
            _require_width(session, images)
    except BaseException:
        if images is not None:
            images.close()
        raise
    return made


def open_image_reader(file: Path, recipe: Recipe, tokenizer: Tokens, threads: int) -> ImageReader:
    """Return an encoder of pictures, open.

    Args:
        file: Of the encoder.
        recipe: Of the model that sees, with the folder in which its tokenizer lies.
        tokenizer: Of the model.
        threads: Of the engine.

    Raises:
        InvalidFileError: If the file is absent or damaged.
        UnsupportedError: If it does not fit the recipe.
    """
    require_regular(file, remedy="put the encoder of pictures back beside the recipe")
    from edgeopt.runtime.decoding.image_reader import ImageReader  # few models see

    with huge_pages():
        opened = EXECUTOR.open(file, SessionOptions(threads=threads))
    assert isinstance(opened, OnnxRuntimeSession)
    try:
        folder = (recipe.folder / recipe.tokenizer.file).parent
        size = bytes_of_graphs([file])
        return ImageReader(opened, recipe.image, tokenizer, recipe.generation.begin, folder, size_bytes=size)
    except BaseException:
        opened.close()
        raise


def _require_width(session: TokenGraph, images: ImageReader) -> None:
    """Raise unless a decoder takes the rows that an encoder gives."""
    rows = next((spec for spec in session.inputs if spec.name == IMAGE_ROWS), None)
    if rows is None or rows.shape[-1] != images.width:
        raise UnsupportedError(
            f"the encoder of pictures gives rows of {images.width} numbers, the decoder takes "
            f"{rows if rows is not None else 'none: it has no input ' + IMAGE_ROWS}",
            remedy="put back the files that edgeopt export wrote together",
        )


def _require_positions(recipe: Recipe, file: Path) -> None:
    """Raise where a recipe tells of a longer context than the model has positions.

    Raises:
        EdgeoptError: If so.
    """
    context, most = recipe.generation.context, positions_of(file)
    if most is not None and context > most:
        raise EdgeoptError(
            f"{recipe.name} has {most} positions, and its recipe tells of a context of {context} tokens",
            remedy=f"write context = {most} or less in its recipe.toml, or ask for --context {most}",
        )
