"""The bundle of a model of pictures behind an HTTP port, or of one that embeds texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.graph.model import find_model
from edgeopt.recipes.recipe import Recipe, read_recipe
from edgeopt.running.serving import Hosted, ServedModel, ServeOptions
from edgeopt.runtime.bundle import Bundle, is_bundle, read_bundle
from edgeopt.runtime.fallback import least_bytes
from edgeopt.runtime.runtime import Runtime

if TYPE_CHECKING:
    from edgeopt.runtime.serve.room import MemoryPlace

_PICTURES, _EMBEDDINGS = "/v1/frames", "/v1/embeddings"


def hosted_frames(model: str, options: ServeOptions) -> Hosted:
    """Return the bundle of a model of pictures, or of one that embeds texts, which can be served.

    Raises:
        EdgeoptError: If it is none.
    """
    bundle = _bundle_of_frames(model)
    path = _PICTURES if _sees(bundle.recipe) else _EMBEDDINGS
    return Hosted(model, bundle.recipe.name, (path,), least_bytes(bundle.artefacts[0], 0), options, open_frames)


def _sees(recipe: Recipe) -> bool:
    return bool(recipe.kind == "picture" and recipe.input.size and not recipe.input.states)


def open_frames(model: str, options: ServeOptions, place: MemoryPlace | None = None) -> ServedModel:
    """Open the bundle of a model of pictures with its route, `/v1/frames`, or of one that embeds texts.

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
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    bundle = _bundle_of_frames(model)
    recipe, sees = bundle.recipe, _sees(bundle.recipe)
    holder = Holder(lambda: Runtime.load(bundle, threads=options.threads or None), options.keep_s, place)
    with holder.held() as runtime:
        stages = ("queue", "decode", *runtime.stages) if sees else ("queue", *runtime.stages)
    name = options.name or recipe.name
    tally = Tally(name, stages, holder)
    parts = (name, holder, options.limits, tally, SpanTracer(name))
    route: PictureRoute | EmbeddingRoute = PictureRoute(*parts) if sees else EmbeddingRoute(*parts)
    shown = "/v1/frames, a picture in, JSON out" if sees else "/v1/embeddings, texts in, vectors out"
    return ServedModel(name, tally, holder, route.routes(), route.close, shown)


def _bundle_of_frames(model: str) -> Bundle:
    """Return the bundle of a name.

    Raises:
        EdgeoptError: If it is none: what is served is what `optimize` wrote, not a model as it was brought.
        UnsupportedError: If it takes what is not sent over HTTP.
    """
    bundle = _find_bundle(model)
    recipe = bundle.recipe
    if not _sees(recipe) and not (recipe.kind == "text" and recipe.task == "embedding"):
        raise UnsupportedError(
            f"{model} takes no pictures: a server takes language models, models of single pictures, and embeddings of "
            "texts",
            remedy="call edgeopt.Runtime.load(...).predict(...) in the app",
        )
    return bundle


def _find_bundle(model: str) -> Bundle:
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
