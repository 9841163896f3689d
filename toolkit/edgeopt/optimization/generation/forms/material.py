"""The material of a language model's forms: its graph, and what a calibration text tells of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.files.large_constants import held_outside
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.steps._context import Listener
from edgeopt.steps.convert.blocks import Blocks, Rounding, k_quant
from edgeopt.steps.convert.expert_inputs import expert_grams_of
from edgeopt.steps.convert.fitting.grams import rounding_with
from edgeopt.steps.convert.fitting.layer_by_layer import round_layer_by_layer
from edgeopt.steps.convert.kv_cache import cache_ranges
from edgeopt.steps.convert.loud_tokens.product_inputs import ProductInput, product_inputs_of
from edgeopt.steps.convert.sensitivity import sensitive_products
from edgeopt.system.declared.target import Target

_LOST_OTHERWISE = 0.001
"""Nats a token that 8 bits lose, of activations and of the other matrices."""
_LOST_UNFITTED = 1.5
"""Matrices rounded without a text, as they are where the sensitive ones are looked for, lose 1.8 times what they lose
in the form; what is left of that leaves room for an interval of the perplexity below what is allowed."""


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
    stored: Model | None = None
    """The model with its matrices in the blocks that it came with, of which `model` has the floats; None: in floats."""
    folder: Path | None = None
    """Where what forms share lies in files, until the run is over; None: in memory."""
    _rounded: dict[tuple[int, frozenset[str]], dict[str, Blocks]] = field(default_factory=dict)
    """Blocks of 4 bits by the length of a block and the matrices in 8 bits."""

    @property
    def head(self) -> str:
        """Name of the node that makes the logits; empty: none."""
        graph = Graph.from_model(self.model)
        node = graph.producer(graph.value(LOGITS))
        return "" if node is None else node.name or ""

    @cached_property
    def cache_ranges(self) -> Mapping[str, NDArray[np.float32]]:
        """The largest number of each channel of the cache, on the whole calibration text."""
        return cache_ranges(self.model, self.windows, threads=self.threads, free_head=self.free_head)

    def product_inputs(self, model: Model) -> dict[str, ProductInput]:
        """Return what products read on the calibration text, by the names of tensors.

        Args:
            model: That of the material, or one that is made of it.
        """
        return product_inputs_of(
            model,
            self.windows,
            threads=self.threads,
            free_head=self.free_head,
            tell=lambda done, of: self.listener.progress("look for loud tokens", done, of),
        )

    def sensitive(self, bits: int, block: int) -> tuple[str, ...]:
        """Return the nodes that make up half of what all matrices but the head lose in blocks, or more.

        More, where otherwise more would be lost than is allowed: a loss of 0.01 nats is a perplexity 1 % higher.
        """
        allowed = max(self.max_rise - _LOST_OTHERWISE, 0.0) * _LOST_UNFITTED if self.max_rise >= 0 else np.inf
        return sensitive_products(
            self.model,
            self.windows,
            k_quant,
            bits=bits,
            block=block,
            most_left=allowed,
            threads=self.threads,
            free_head=self.free_head,
            apart=(self.head,),
            tell=lambda done, of: self.listener.progress("find the sensitive matrices", done, of),
        )

    def four_bits(self, block: int, wide: Collection[str] = (), wide_block: int = 0) -> Rounding:
        """Return what rounds matrices with the calibration text, each on what the rounded ones before it make of it.

        Args:
            block: Weights that share a scale.
            wide: Nodes whose matrix is in 8 bits; the head among them is rounded to nearest, as tables may read it.
            wide_block: Weights that share a scale in those.
        """
        inner = frozenset(wide) - {self.head}
        known = block, inner
        if known not in self._rounded or (self.head not in wide and self.head not in self._rounded[known]):
            self._rounded[known] = round_layer_by_layer(
                self.model,
                self.windows,
                lambda node: (8, wide_block or block) if node in inner else (4, block),
                threads=self.threads,
                free_head=self.free_head,
                left_out=() if self.head not in wide else (self.head,),
                tell=lambda done, of: self.listener.progress("fit matrices to the calibration text", done, of),
                keep=self._held,
            )
        blocks = self._rounded[known]

        def rounded(node: str, columns: NDArray[np.float32], bits: int, length: int) -> Blocks:
            if node in blocks and node not in {*wide} - inner:
                return blocks[node]
            return self._of_experts(node, columns, bits, length)

        return rounded

    @cached_property
    def _of_experts(self) -> Rounding:
        """A rounding of experts by the tokens that come to them, and of other matrices without a text."""
        grams = expert_grams_of(
            self.model,
            self.windows,
            threads=self.threads,
            free_head=self.free_head,
            tell=lambda done, of: self.listener.progress("read the calibration text", done, of),
            keep=self._held,
        )
        return rounding_with(grams)

    def _held(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if self.folder is None else held_outside(array, self.folder)
