"""The engines of prompts and of tokens: on which a graph is opened, and what takes over where that one is not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime.decoder import CachePart
from edgeopt.executors.onnxruntime.prefill import OnnxPrefill, Prefill
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.executors.onnxruntime.sums import rounds_rows
from edgeopt.executors.openvino.decoder import OpenVinoDecoder
from edgeopt.executors.openvino.pages import options_on_openvino
from edgeopt.executors.openvino.prefill import OpenVinoPrefill

OPENVINO = "openvino"
"""The other engine, as a recipe and a manifest name it."""
_ENGINES = ("", "onnxruntime", OPENVINO)

PromptGraph = Session | OpenVinoPrefill
"""A graph of prompts that is open."""
_Graph = TypeVar("_Graph", OpenVinoPrefill, OpenVinoDecoder)
TokenGraph = Session | OpenVinoDecoder
"""A graph of tokens that is open."""


def open_token_graph(
    file: Path, engine: str, threads: int, otherwise: Callable[[], Session], options: SessionOptions | None = None
) -> tuple[TokenGraph, tuple[Note, ...]]:
    """Return a decoder on the engine that it was measured on, or on ONNX Runtime with the reason.

    Args:
        file: Of the decoder.
        engine: As the recipe or the manifest names it; empty: ONNX Runtime.
        threads: Of the engine.
        otherwise: Opens the same file on ONNX Runtime.
        options: How OpenVINO opens it; None: as forms are measured.

    Raises:
        UnsupportedError: If there is no such engine for tokens.
        EdgeoptError: If ONNX Runtime, where it takes over, refuses the decoder too.
    """
    how = options or options_on_openvino(threads)
    return _opened(engine, ("tokens", "engine"), lambda: OpenVinoDecoder(file, how), otherwise)


def open_prompt_graph(
    file: Path, engine: str, threads: int, otherwise: Callable[[], Session], options: SessionOptions | None = None
) -> tuple[PromptGraph, tuple[Note, ...]]:
    """Return a graph of prompts on the engine that it was measured on, or on ONNX Runtime; as `open_token_graph`."""
    how = options or options_on_openvino(threads)
    return _opened(engine, ("prompts", "prefill_engine"), lambda: OpenVinoPrefill(file, how), otherwise)


def _opened(
    engine: str, words: tuple[str, str], on_openvino: Callable[[], _Graph], otherwise: Callable[[], Session]
) -> tuple[_Graph | Session, tuple[Note, ...]]:
    """Return a graph open on its engine, or on ONNX Runtime with the reason.

    Args:
        engine: As the recipe or the manifest names it.
        words: How what it computes is called, and the key of the recipe that names the engine.
        on_openvino: Opens it there.
        otherwise: Opens it on ONNX Runtime.
    """
    computed, key = words
    if engine not in _ENGINES:
        raise UnsupportedError(
            f"no engine named {engine!r} computes {computed}",
            remedy=f"write {key} = {OPENVINO!r} in recipe.toml, or leave it out",
        )
    if engine != OPENVINO:
        return otherwise(), ()
    try:
        return on_openvino(), ()
    except EdgeoptError as error:
        note = f"OpenVINO computes no {computed} here, ONNX Runtime does, slower: {error.problem}"
        return otherwise(), (Note(NoteKind.WARNING, note, error.remedy),)


def bind_prompt_graph(graph: PromptGraph, parts: Sequence[CachePart], free_head: int) -> Prefill:
    """Return an open graph of prompts bound to the cache of the graph of tokens.

    Args:
        graph: Closed with what is returned.
        parts: Of that cache.
        free_head: Numbers of a head in the cache where the model leaves them free.

    Raises:
        UnsupportedError: If it has another cache, or another engine holds it.
    """
    if isinstance(graph, OpenVinoPrefill):
        return graph.fitted(parts, free_head)
    if not isinstance(graph, OnnxRuntimeSession):
        raise UnsupportedError(
            "prompts of language models run on ONNX Runtime or OpenVINO", remedy="make them with --target cpu"
        )
    return OnnxPrefill(graph, parts, free_head, pairs=rounds_rows(graph))
