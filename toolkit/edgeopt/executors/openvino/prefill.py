"""The graph of prompts on OpenVINO, while ONNX Runtime computes each token behind them over the same cache.

OpenVINO reads the ONNX file as it stands, computes in bf16 where the processor has it, and products with weights of 8
bits on integers. Its attention reads a cache of its own, in pages; keys and values of the new tokens are copied out of
each run. A past that is not there yet, of a stored prefix or of another text, is copied in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime.decoder import CachePart, cache_parts
from edgeopt.executors.onnxruntime.prefill import require_same_cache
from edgeopt.executors.openvino.pages import PagedGraph, PagedText, PagesUse
from edgeopt.graph.tensors import TensorSpec

_GROWTH = 2
"""Times the pages before that are taken where they do not suffice."""


class OpenVinoPrefill:
    """A graph of prompts that OpenVINO holds; several texts may use it, in turns."""

    pairs, engine_name = False, "OpenVINO"

    def __init__(self, file: Path, options: SessionOptions) -> None:
        """Read and compile a graph.

        Args:
            file: ONNX, with weights beside it.
            options: Its threads, precision and entries.

        Raises:
            EdgeoptError: If OpenVINO is not here, or refuses the graph.
        """
        self._graph = PagedGraph(file, options, PagesUse.PROMPTS)
        self._memory = self._graph.memory()
        self.held_bytes = self._graph.held_bytes
        self.inputs, self.outputs = self._graph.inputs, tuple(_whole(spec) for spec in self._graph.made)
        self._parts: tuple[CachePart, ...] = ()
        self._held, self._last = 0, list[NDArray[Any]]()
        """Tokens that the pages hold, and what the cache has of the last one: it hangs on all before it."""

    def fitted(self, parts: Sequence[CachePart], free_head: int = 0) -> OpenVinoPrefill:
        """Return it, bound to the cache of the graph of tokens.

        Args:
            parts: Of that cache.
            free_head: Numbers of a head in the cache where the model leaves them free.

        Raises:
            UnsupportedError: If it has another cache.
        """
        own = cache_parts(self.inputs, self.outputs, free_head, needs_logits=False)
        by_name = {part.past: part for part in own}
        self._parts = tuple(by_name[part.past] for part in parts if part.past in by_name)
        require_same_cache(self._parts, parts)
        return self

    def page_bytes(self, tokens: int) -> int:
        """Return the memory that pages take at most, once a prompt of so many tokens was computed."""
        return _GROWTH * self._graph.pages_of(tokens) * self._graph.page_tokens * self._graph.token_bytes

    def bound(self, memory: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return the memory of a text."""
        return memory

    def run(self, bound: Sequence[NDArray[Any]], tokens: Sequence[int], past: int) -> None:
        """Compute the next tokens of a prompt into the cache.

        Args:
            bound: Of `bound`.
            tokens: One or more.
            past: Tokens that the cache holds.

        Raises:
            UnsupportedError: If OpenVINO refuses them.
        """
        after, graph, memory = past + len(tokens), self._graph, self._memory
        with graph.lock:
            if (needed := graph.pages_of(after)) > memory.count:
                memory.reserve(max(needed, _GROWTH * memory.count))
            if past and not self._goes_on(bound, past):
                for part, array in zip(self._parts, bound, strict=True):
                    memory.write(part, range(graph.pages_of(past)), array, past)
            self._held = 0  # until the run is over
            graph.run(memory, [PagedText(tokens, past, range(needed))])
            for part, array in zip(self._parts, bound, strict=True):
                made = graph.output(part.present)
                array[0, :, past:after] = made.reshape(len(tokens), part.heads, part.head).swapaxes(0, 1)
            self._held, self._last = after, [array[:, :, after - 1].copy() for array in bound]

    def _goes_on(self, bound: Sequence[NDArray[Any]], past: int) -> bool:
        """Whether the pages hold just this past: the text may be another, or have been cut and continued."""
        return self._held == past and all(
            np.array_equal(array[:, :, past - 1], last) for array, last in zip(bound, self._last, strict=True)
        )

    def close(self) -> None:
        """Free the graph with its pages."""
        self._graph.close()
        self._memory, self._held = self._graph.memory(), 0


def _whole(spec: TensorSpec) -> TensorSpec:
    """Return an output with keys or values of new tokens, (tokens, heads, 1, numbers), as those of the whole text."""
    return replace(spec, shape=(None, spec.shape[1], None, spec.shape[3]))
