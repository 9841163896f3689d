"""The bundle of a model of pictures behind an HTTP port, or of one that embeds texts or judges pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.model import find_model
from edgeopt.recipes.recipe import read_recipe
from edgeopt.running.serving import Hosted, ServedModel, ServeOptions
from edgeopt.runtime.bundle import Bundle, is_bundle, read_bundle
from edgeopt.runtime.fallback import least_bytes
from edgeopt.runtime.runtime import Runtime

if TYPE_CHECKING:
    from edgeopt.runtime.serve.room import MemoryPlace


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


def hosted_frames(model: str, options: ServeOptions) -> Hosted:
    """Return the bundle of a model of pictures, or of one that reads texts, which can be served.

    Raises:
        EdgeoptError: If it is none.
    """
    bundle = _find_bundle(model)
    paths = _PATHS[_use_of(bundle, model)]
    return Hosted(model, bundle.recipe.name, paths, least_bytes(bundle.artefacts[0], 0), options, open_frames)


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
    from edgeopt.runtime.serve.routes.embeddings import EmbeddingRoute
    from edgeopt.runtime.serve.routes.frames import PictureRoute
    from edgeopt.runtime.serve.routes.rerank import RerankRoute
    from edgeopt.runtime.serve.routes.text_reading import TextReading
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    bundle = _find_bundle(model)
    use, name = _use_of(bundle, model), options.name or bundle.recipe.name
    holder = Holder(lambda: Runtime.load(bundle, threads=options.threads or None), options.keep_s, place)
    with holder.held() as runtime:
        stages = ("queue", *(["decode"] if use is _Use.PICTURES else []), *runtime.stages)
    tally, tracer, told = Tally(name, stages, holder), SpanTracer(name), _TOLD[use]
    if use is _Use.PICTURES:
        pictures = PictureRoute(name, holder, options.limits, tally, tracer)
        return ServedModel(name, tally, holder, pictures.routes(), pictures.close, told)
    reading = TextReading(holder, options.limits, tally, tracer)
    routes = RerankRoute(name, reading, reads_pairs=use is _Use.PAIRS).routes()
    routes += EmbeddingRoute(name, reading).routes() if use is _Use.VECTORS else []
    return ServedModel(name, tally, holder, routes, reading.close, told)


def _use_of(bundle: Bundle, model: str) -> _Use:
    """Return what a model is served for.

    Raises:
        UnsupportedError: If it takes what is not sent over HTTP.
    """
    recipe, outputs = bundle.recipe, bundle.artefacts[0].outputs
    if recipe.kind == "picture" and recipe.input.size and not recipe.input.states:
        return _Use.PICTURES
    if recipe.kind == "text" and recipe.task == "embedding":
        return _Use.VECTORS
    is_one_number = len(outputs) == 1 and all(size in (1, None) for size in outputs[0].shape)
    if recipe.kind == "text" and recipe.task == "tensors" and recipe.tokenizer.pairs and is_one_number:
        return _Use.PAIRS
    raise UnsupportedError(
        f"{model} takes no pictures: a server takes language models, models of single pictures, embeddings of texts, "
        "and cross-encoders of one score",
        remedy="call edgeopt.Runtime.load(...).predict(...) in the app",
    )


def _find_bundle(model: str) -> Bundle:
    """Return the bundle of a name.

    Raises:
        EdgeoptError: If it is none: what is served is what `optimize` wrote, not a model as it was brought.
    """
    path = Path(model)
    if path.is_dir():
        if not is_bundle(path) and (told := path / "recipe.toml").is_file():
            read_recipe(told)  # of a language model perhaps, with a fault that this says
        return read_bundle(path)
    find_model(model)  # a name that is none is told as such
    raise EdgeoptError(
        f"{model} is no bundle: of such a model a server takes what optimize wrote",
        remedy=f"edgeopt optimize {model} --target cpu -o out, then edgeopt serve out",
    )
