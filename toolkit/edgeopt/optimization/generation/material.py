"""The material of a language model's forms: its graph, and what a calibration text tells of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.files.large_constants import held_outside, let_go
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps._context import Listener
from edgeopt.steps.convert.blocks import Blocks
from edgeopt.steps.convert.blocks_with_inputs import Gram, rounding_with
from edgeopt.steps.convert.cache_integers import cache_ranges
from edgeopt.steps.convert.sensitivity import sensitive_products
from edgeopt.steps.convert.text_inputs import grams_of, most_held_bytes
from edgeopt.system.declared.target import Target

_HELD_BACK = 4
"""One window in so many calibrates no rounding: it tells what the rounding loses."""


@dataclass
class DecoderMaterial:
    """A float decoder with its calibration text; what takes time is computed when a form first asks for it."""

    model: Model
    target: Target
    windows: Sequence[Sequence[int]]
    """Tokens of the calibration text."""
    threads: int
    free_head: int
    max_rise: float
    """Max rise of the perplexity that is allowed, as a share."""
    listener: Listener
    folder: Path | None = None
    """Where what forms share lies in files, until the run is over; None: in memory."""
    _grams: dict[str, Gram] = field(default_factory=dict)
    _rounded: dict[tuple[str, int, int], Blocks] = field(default_factory=dict)
    _read: list[NDArray[Any]] = field(default_factory=list)

    @property
    def head(self) -> str:
        """Name of the node that makes the logits; empty: none."""
        graph = Graph.from_model(self.model)
        node = graph.producer(graph.value(LOGITS))
        return "" if node is None else node.name or ""

    @property
    def seen(self) -> Sequence[Sequence[int]]:
        """Windows that calibrate roundings."""
        kept = [window for i, window in enumerate(self.windows) if i % _HELD_BACK]
        return kept or self.windows

    @property
    def held_back(self) -> Sequence[Sequence[int]]:
        """Windows that tell what roundings lose."""
        return self.windows[::_HELD_BACK]

    @cached_property
    def cache_ranges(self) -> Mapping[str, NDArray[np.float32]]:
        """The largest number of each channel of the cache, on the whole calibration text."""
        return cache_ranges(self.model, self.windows, threads=self.threads, free_head=self.free_head)

    def sensitive(self, bits: int, block: int) -> tuple[str, ...]:
        """Return the nodes that make up half of what all matrices but the head lose in blocks."""
        return sensitive_products(
            self.model,
            self.held_back,
            self.with_inputs,
            bits=bits,
            block=block,
            threads=self.threads,
            free_head=self.free_head,
            apart=(self.head,),
            tell=lambda done, of: self.listener.progress("find the sensitive matrices", done, of),
        )

    def with_inputs(self, node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
        """Round a matrix with what the calibration text feeds it; a `Rounding`, computed once for all forms."""
        if not self._grams:
            self._grams = grams_of(
                self.model,
                self.seen,
                threads=self.threads,
                free_head=self.free_head,
                most_bytes=most_held_bytes(self.model.size_bytes),
                tell=lambda done, of: self.listener.progress("read the calibration text", done, of),
                keep=self._held,
            )
        known = node, bits, block
        for array in self._read:  # of one matrix at a time the pages stay in memory
            let_go(array)
        if known not in self._rounded:
            blocks = rounding_with(self._grams)(node, columns, bits, block)
            self._rounded[known] = replace(blocks, integers=self._held(blocks.integers), scale=self._held(blocks.scale))
        made = self._rounded[known]
        self._read = [made.integers, made.scale, *(self._grams[node].parts if node in self._grams else ())]
        return made

    def _held(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if self.folder is None else held_outside(array, self.folder)
