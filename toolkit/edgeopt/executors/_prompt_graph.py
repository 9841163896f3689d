"""The graph that computes prompts: on which engine it is opened, and what takes over where that one is not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime.decoder import CachePart
from edgeopt.executors.onnxruntime.prefill import OnnxPrefill, Prefill
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.executors.onnxruntime.sums import rounds_rows
from edgeopt.executors.openvino.prefill import OpenVinoPrefill, options_of_prompts

OPENVINO = "openvino"
"""The other engine, as a recipe and a manifest name it."""
_ENGINES = ("", "onnxruntime", OPENVINO)

PromptGraph = Session | OpenVinoPrefill
"""A graph of prompts that is open."""


def open_prompt_graph(
    file: Path, engine: str, threads: int, otherwise: Callable[[], Session], options: SessionOptions | None = None
) -> tuple[PromptGraph, tuple[Note, ...]]:
    """Return a graph of prompts on the engine that it was measured on, or on ONNX Runtime with the reason.

    Args:
        file: Of the graph.
        engine: As the recipe or the manifest names it; empty: ONNX Runtime.
        threads: Of the engine.
        otherwise: Opens the same file on ONNX Runtime.
        options: How OpenVINO opens it; None: as forms are measured.

    Raises:
        UnsupportedError: If there is no such engine for prompts.
        EdgeoptError: If ONNX Runtime, where it takes over, refuses the graph too.
    """
    if engine not in _ENGINES:
        raise UnsupportedError(
            f"no engine named {engine!r} computes prompts",
            remedy=f"write prefill_engine = {OPENVINO!r} in recipe.toml, or leave it out",
        )
    if engine != OPENVINO:
        return otherwise(), ()
    try:
        return OpenVinoPrefill(file, options or options_of_prompts(threads)), ()
    except EdgeoptError as error:
        note = f"OpenVINO computes no prompts here, ONNX Runtime does, slower: {error.problem}"
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
