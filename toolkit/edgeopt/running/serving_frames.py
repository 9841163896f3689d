"""The bundle of a model of pictures behind an HTTP port, or of one that embeds texts or judges pairs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError, Note, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import find_model, load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.opening.given import open_given
from edgeopt.recipes.inputs.text_input import fill_of
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.running.serving import Hosted, ServedModel, ServeOptions, bytes_beside
from edgeopt.runtime.bundle import Bundle, is_bundle, read_bundle
from edgeopt.runtime.bundles.parts import Port
from edgeopt.runtime.fallback import least_bytes
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.model_memory import MemoryNeeds
from edgeopt.system.machine.threads import engine_threads

if TYPE_CHECKING:
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.model_memory import MemoryPlace
    from edgeopt.runtime.serve.routes.text_models import TextModel


class _Use(StrEnum):
    """The use that a server makes of a model of frames."""

    PICTURES = "pictures"
    VECTORS = "vectors"
    PAIRS = "pairs"
    """One number for two texts: a cross-encoder."""


_PATHS: Mapping[_Use, tuple[str, ...]] = {
    _Use.PICTURES: ("/v1/frames",),
    _Use.VECTORS: ("/v1/embeddings", "/v1/rerank"),
    _Use.PAIRS: ("/v1/rerank",),
}
_TOLD: Mapping[_Use, str] = {
    _Use.PICTURES: "/v1/frames, a picture in, JSON out",
    _Use.VECTORS: "/v1/embeddings, texts in, vectors out; and /v1/rerank",
    _Use.PAIRS: "/v1/rerank, a query and documents in, scores out",
}


@dataclass(frozen=True, slots=True)
class _Brought:
    """A model that reads texts of any number and length, as it was brought."""

    path: Path
    recipe: Recipe
    outputs: Sequence[TensorSpec]


def hosted_frames(model: str, options: ServeOptions) -> Hosted:
    """Return the bundle of a model of pictures, or a model that reads texts, which can be served.

    Raises:
        EdgeoptError: If it is none.
    """
    if (brought := _brought(model)) is not None:
        use = _use_of(brought.recipe, brought.outputs, model)
        needs = MemoryNeeds(bytes_beside(brought.path))
        return Hosted(model, brought.recipe.name, _PATHS[use], needs, options, open_brought)
    bundle = _find_bundle(model)
    paths = _PATHS[_use_of(bundle.recipe, bundle.artefacts[0].outputs, model)]
    return Hosted(model, bundle.recipe.name, paths, MemoryNeeds(least_bytes(bundle, 0)), options, open_frames)


def open_brought(model: str, options: ServeOptions, place: MemoryPlace | None = None) -> ServedModel:
    """Open an ONNX file of free sizes that reads texts, as it was brought, with its routes.

    Args:
        model: The file, or its folder.
        options: How it is served.
        place: Its part of the memory that several models share.

    Raises:
        EdgeoptError: If it does not open.
    """
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.routes.text_models import TextsByLength

    given = open_given(str(find_model(model)), "cpu", None)
    entries, path, recipe = given.correction.entries, given.path, given.recipe
    use, name = _use_of(recipe, given.model.outputs, model), options.name or recipe.name
    notes = given.choice.notes
    del given  # with its weights

    def opened() -> TextModel:
        threads = engine_threads(options.threads)
        return TextsByLength(EXECUTOR.open(path, SessionOptions(threads=threads, entries=entries)), recipe)

    return _of_texts(name, use, Holder(opened, options.keep_s, place), options, notes)


def open_frames(model: str, options: ServeOptions, place: MemoryPlace | None = None) -> ServedModel:
    """Open the bundle of a model of pictures, or of one that reads texts, with its routes.

    Args:
        model: The bundle.
        options: How it is served.
        place: Its part of the memory that several models share.

    Raises:
        EdgeoptError: If it does not open.
    """
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.routes.frames import PictureRoute
    from edgeopt.runtime.serve.routes.text_models import BundledTexts, TextsByLength
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    bundle = _find_bundle(model)
    use, name = _use_of(bundle.recipe, bundle.artefacts[0].outputs, model), options.name or bundle.recipe.name

    def opened() -> Runtime:
        return Runtime.load(bundle, threads=options.threads or None)

    def opened_texts() -> TextModel:
        runtime = opened()
        recipe = runtime.bundle.recipe
        if fill_of(recipe.tokenizer, runtime.session.inputs) is Fill.TOGETHER:
            return TextsByLength(runtime.session, recipe, runtime)
        return BundledTexts(runtime)

    if use is not _Use.PICTURES:
        return _of_texts(name, use, Holder(opened_texts, options.keep_s, place), options)
    holder = Holder(opened, options.keep_s, place)
    with holder.held() as runtime:
        tally, decoding = Tally(name, ("queue", "decode", *runtime.stages), holder), runtime.task.decoding
    pictures = PictureRoute(name, holder, options.limits, tally, SpanTracer(name), decoding)
    return ServedModel(name, tally, holder, pictures.routes(), pictures.close, _TOLD[use])


def _of_texts(
    name: str, use: _Use, holder: Holder[TextModel], options: ServeOptions, notes: tuple[Note, ...] = ()
) -> ServedModel:
    """Return a model that reads texts with its routes."""
    from edgeopt.runtime.serve.routes.embeddings import EmbeddingRoute
    from edgeopt.runtime.serve.routes.rerank import RerankRoute
    from edgeopt.runtime.serve.routes.text_reading import TextReading
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    with holder.held() as model:
        tally = Tally(name, ("queue", *model.stages), holder)
    reading = TextReading(holder, options.limits, tally, SpanTracer(name))
    routes = RerankRoute(name, reading, reads_pairs=use is _Use.PAIRS).routes()
    routes += EmbeddingRoute(name, reading).routes() if use is _Use.VECTORS else []
    return ServedModel(name, tally, holder, routes, reading.close, _TOLD[use], notes)


def _use_of(recipe: Recipe, outputs: Sequence[Port | TensorSpec], model: str) -> _Use:
    """Return what a model is served for.

    Raises:
        UnsupportedError: If it takes what is not sent over HTTP.
    """
    if recipe.kind == "picture" and recipe.input.size and not recipe.input.states:
        return _Use.PICTURES
    if recipe.kind == "text" and recipe.task == "embedding":
        return _Use.VECTORS
    is_one_number = len(outputs) == 1 and all(size == 1 for size in outputs[0].shape[1:])
    if recipe.kind == "text" and recipe.task == "tensors" and recipe.tokenizer.pairs and is_one_number:
        return _Use.PAIRS
    raise UnsupportedError(
        f"{model} takes no pictures: a server takes language models, models of single pictures, embeddings of texts, "
        "and cross-encoders of one score",
        remedy="call edgeopt.Runtime.load(...).predict(...) in the app",
    )


def _brought(model: str) -> _Brought | None:
    """Return a model that reads texts and takes any number of them, of any length; None of any other, or a bundle."""
    path = Path(model)
    if path.is_dir() and is_bundle(path):
        return None
    try:
        file = find_model(model)
        loaded = load_model(file)
        choice = choose_recipe(None, file, loaded.inputs, loaded.outputs, loaded.metadata)
    except EdgeoptError:
        return None  # what is no bundle either is told so
    if choice.recipe.kind != "text" or choice.recipe.tokenizer.fill is not Fill.TOGETHER:
        return None
    return _Brought(file, choice.recipe, loaded.outputs)


def _find_bundle(model: str) -> Bundle:
    """Return the bundle of a name.

    Raises:
        EdgeoptError: If it is none: what is served is what `optimize` wrote, not a model as it was brought.
    """
    path = Path(model)
    if path.is_dir():
        if not is_bundle(path) and (recipe := path / "recipe.toml").is_file():
            read_recipe(recipe)  # of a language model perhaps, with a fault that this says
        return read_bundle(path)
    find_model(model)  # a name that is none is told as such
    raise EdgeoptError(
        f"{model} is no bundle: of such a model a server takes what optimize wrote",
        remedy=f"edgeopt optimize {model} --target cpu -o out, then edgeopt serve out",
    )
