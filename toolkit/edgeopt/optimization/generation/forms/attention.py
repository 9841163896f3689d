"""How prompts' attention is computed: in ONNX Runtime's tiles, or in one piece where that is measured to be faster.

One attention of the model runs alone, on the parts of a prompt of the length asked for: all layers have the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import SHARING_OP
from edgeopt.executors.onnxruntime.flash_attention import flash_attention
from edgeopt.graph.files.outside_weights import load_inside
from edgeopt.graph.model import Model
from edgeopt.measurement.statistics.ratio import Change, Ratio, ratio_of_rounds
from edgeopt.recipes.recipe import Recipe

_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _LAST, _TOTAL = range(7)
"""Inputs of the op; those behind are constants, or it is not tried."""
_MOST_BYTES = 64 << 20
"""Most bytes of the scores of one part of a prompt at the end of the context, which a piece holds and tiles do not."""
_LEAST_ROUNDS, _MOST_ROUNDS, _SECONDS = 6, 24, 0.4
_MARGIN = 0.05
_STARTS = 4
"""Parts of a prompt that are timed, at most."""


@dataclass
class AttentionTrials:
    """Finds out how the attention of forms is computed, once for those that have the same."""

    prompt_tokens: int
    threads: int
    _found: dict[bytes, Ratio | None] = field(default_factory=dict)

    def choose(self, model: Model, recipe: Recipe) -> Recipe:
        """Return the recipe of a form with how the attention of its prompts is computed.

        Args:
            model: Of the form.
            recipe: Its own: how many tokens of a prompt run at once, and the context.
        """
        alone = alone_in(model, recipe.generation.head)
        if alone is None:
            return recipe
        generation, key = recipe.generation, alone.model.SerializeToString()
        if key not in self._found:
            part = min(self.prompt_tokens, generation.chunk or self.prompt_tokens)
            largest = generation.chunk or generation.context or self.prompt_tokens  # of any prompt that may come
            fits = alone.heads * largest * 4 * (generation.context or self.prompt_tokens) <= _MOST_BYTES
            self._found[key] = self._try(alone, part) if fits else None
        ratio = self._found[key]
        is_faster = ratio is not None and ratio.verdict is Change.FASTER
        return replace(recipe, generation=replace(generation, flash_attention=not is_faster))

    def _try(self, alone: AttentionAlone, part: int) -> Ratio | None:
        try:
            return piece_over_tiles(alone, self.prompt_tokens, part, self.threads)
        except EdgeoptError:  # who opens the form tells what is wrong with it
            return None

    def notes(self) -> list[Note]:
        """Return what was found."""
        parts = [f"{ratio}" for ratio in self._found.values() if ratio is not None and ratio.verdict is Change.FASTER]
        if not parts:
            return []
        detail = f"attention of prompts in one piece: {parts[0]} as fast as in ONNX Runtime's tiles (flash_attention)"
        return [Note(NoteKind.INFO, detail)]


@dataclass(frozen=True, slots=True)
class AttentionAlone:
    """One attention as a model."""

    model: onnx.ModelProto
    heads: int
    sizes: Mapping[str, int]
    """Numbers of a token by the name of each of its floats."""
    past: tuple[int, int, np.dtype[Any]]
    """Heads, numbers of a head and type of the cache."""

    def feed(self, tokens: int, past: int) -> dict[str, NDArray[Any]]:
        """Return inputs of so many tokens behind others."""
        chance, (heads, head, kind) = np.random.default_rng(tokens + past), self.past
        floats = {name: chance.standard_normal((1, tokens, size), np.float32) for name, size in self.sizes.items()}
        cache = {name: np.ones((1, heads, past, head), kind) for name in ("past_key", "past_value")}
        return {
            **floats,
            **cache,
            "last": np.array([past + tokens - 1], np.int32),
            "total": np.array(past + tokens, np.int32),
        }


def alone_in(model: Model, head: int = 0) -> AttentionAlone | None:
    """Return the first attention with a shared cache as a model; None where there is none, or it reads more.

    Args:
        model: A decoder.
        head: Numbers of a head where the model leaves them free.
    """
    node = next((value for value in model.proto.graph.node if value.op_type == SHARING_OP), None)
    cache = {spec.name: spec for spec in model.inputs}.get(node.input[_PAST_KEY]) if node is not None else None
    if node is None or cache is None:
        return None
    stored = {constant.name: constant for constant in model.proto.graph.initializer}
    more = [name for name in node.input[_TOTAL + 1 :] if name]
    sizes = [one for one in (cache.shape[1], cache.shape[3]) if isinstance(one, int)]
    heads = next((attribute.i for attribute in node.attribute if attribute.name == "num_heads"), 0)
    if any(value not in stored for value in more) or not sizes or not heads:
        return None
    width = sizes[1] if len(sizes) > 1 else head
    if not width:
        return None
    is_packed = not node.input[_KEY]
    floats = {"query": (heads + 2 * sizes[0] if is_packed else heads) * width}
    if not is_packed:
        floats |= dict.fromkeys(("key", "value"), sizes[0] * width)
    kind = np.dtype(cache.dtype)
    alone = onnx.NodeProto.FromString(node.SerializeToString())
    names = ["query", "" if is_packed else "key", "" if is_packed else "value", "past_key", "past_value"]
    alone.input[: _TOTAL + 1] = [*names, "last", "total"]
    alone.output[:] = ["made", "present_key", "present_value"]
    of_cache = helper.np_dtype_to_tensor_dtype(kind)
    many: list[str | int | None] = [1, sizes[0], "past", width]
    infos = [
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "tokens", n]) for name, n in floats.items()),
        *(helper.make_tensor_value_info(name, of_cache, many) for name in ("past_key", "past_value")),
        helper.make_tensor_value_info("last", TensorProto.INT32, [1]),
        helper.make_tensor_value_info("total", TensorProto.INT32, []),
    ]
    made = [
        helper.make_tensor_value_info("made", TensorProto.FLOAT, None),
        *(helper.make_tensor_value_info(name, of_cache, None) for name in ("present_key", "present_value")),
    ]
    graph = helper.make_graph([alone], "attention", infos, made, [stored[name] for name in dict.fromkeys(more)])
    proto = helper.make_model(graph, opset_imports=model.proto.opset_import, ir_version=model.proto.ir_version)
    return AttentionAlone(load_inside(proto), heads, floats, (sizes[0], width, kind))


def piece_over_tiles(alone: AttentionAlone, prompt_tokens: int, part: int, threads: int) -> Ratio:
    """Return how many times as fast a prompt's attention is in one piece as in tiles; both run in turns.

    Args:
        alone: The attention.
        prompt_tokens: Of the prompt.
        part: Tokens that run at once.
        threads: Of the engine.
    """
    starts = range(0, prompt_tokens, part)
    timed = sorted({round(i) for i in np.linspace(0, len(starts) - 1, min(_STARTS, len(starts)))})
    feeds = [alone.feed(min(part, prompt_tokens - starts[i]), starts[i]) for i in timed]
    with ExitStack() as opened:
        sides = list[Session]()
        for wanted in (True, False):
            with flash_attention(wanted):
                session = EXECUTOR.open(alone.model.SerializeToString(), SessionOptions(threads=threads))
            sides.append(opened.enter_context(closing(session)))
        for side in sides:
            _time_ns(side, feeds)
        return ratio_of_rounds(np.array(_logs(sides, feeds)), pairs=len(feeds), margin=_MARGIN)


def _logs(sides: Sequence[Session], feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[float]:
    logs, began_s = list[float](), monotonic()
    while len(logs) < _LEAST_ROUNDS or (len(logs) < _MOST_ROUNDS and monotonic() - began_s < _SECONDS):
        order = (0, 1) if len(logs) % 2 else (1, 0)
        times = {i: _time_ns(sides[i], feeds) for i in order}
        logs.append(float(np.log(times[0] / times[1])))
    return logs


def _time_ns(session: Session, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> int:
    began_ns = perf_counter_ns()
    for feed in feeds:
        session.run(feed)
    return perf_counter_ns() - began_ns
