"""The graph of prompts on OpenVINO, while ONNX Runtime computes each token behind them over the same cache.

OpenVINO reads the ONNX file as it stands, computes in bf16 where the processor has it, and products with weights of 8
bits on integers. Its attention reads a cache of its own, in pages; keys and values of the new tokens are copied out of
each run. A past that is not there yet, of a stored prefix or of another text, is copied in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime.decoder import IDS, POSITIONS, CachePart, cache_parts
from edgeopt.executors.onnxruntime.prefill import require_same_cache
from edgeopt.executors.openvino import EXECUTOR, compile_for, sentence_of, spec_of
from edgeopt.executors.openvino.paged import over_pages
from edgeopt.graph.tensors import TensorSpec

PRECISION = "bf16"
"""In which prompts are computed; a processor without it computes them on ONNX Runtime."""
ENTRIES: Mapping[str, str] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}
"""What products with weights in blocks read is rounded to 8 bits, with a scale for so many numbers of a token: its
numbers hang on no other token."""
_PROVIDER, _KEPT_IN = "CPU", "KV_CACHE_PRECISION"
_COPIES = 3
"""Times the stored weights that OpenVINO takes: it keeps them as it converted them, and packs them for its kernels."""
_PAGES = re.compile(r"(key|value)_cache\.(\d+)")


def options_of_prompts(threads: int) -> SessionOptions:
    """Return how OpenVINO opens a graph of prompts."""
    return SessionOptions((_PROVIDER,), threads, ENTRIES, precision=PRECISION)


def why_no_prompts() -> str:
    """Return why OpenVINO computes no prompts here; empty: it does."""
    if (missing := EXECUTOR.why_unavailable()) is not None:
        return str(missing)
    if PRECISION.upper() not in EXECUTOR.capabilities(_PROVIDER):
        return f"this processor does not compute in {PRECISION}"
    return ""


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
        stored_bytes, inputs = list[int](), list[TensorSpec]()

        def alter(openvino: Any, model: Any) -> Any:
            inputs.extend(spec_of(port) for port in model.inputs)
            stored_bytes.append(sum(node.get_byte_size() for node in model.get_ops() if _is_constant(node)))
            return over_pages(openvino, model)

        entries = {_KEPT_IN: "bf16" if options.precision == PRECISION else "f32", **options.entries}
        compiled, self._tensor = compile_for(file, replace(options, entries=entries), alter=alter)
        self.held_bytes = _COPIES * sum(stored_bytes)
        self.inputs = tuple(inputs)
        self.outputs = tuple(_whole(spec_of(port)) for port in compiled.outputs)
        self._request, self._lock = compiled.create_infer_request(), Lock()
        self._places = {spec.name: i for i, spec in enumerate(self.outputs)}
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        self._parts: tuple[CachePart, ...] = ()
        self._pages = dict[str, NDArray[Any]]()
        """By input, (pages, heads, tokens of a page, numbers); numbers in bf16 as the bits that they have."""
        self._page_tokens = next(
            (port.get_partial_shape()[2].get_length() for name, port in self._ports.items() if _PAGES.fullmatch(name)),
            1,
        )
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
        after = past + len(tokens)
        with self._lock:
            self._reserve(after)
            if past and not self._goes_on(bound, past):
                self._take_in(bound, past)
            self._held = 0  # until the run is over
            pages = -(-after // self._page_tokens)
            feeds = {
                IDS: np.asarray(tokens, np.int64),
                POSITIONS: np.arange(past, after, dtype=np.int64),
                "max_context_len": np.array(after, np.int32),
                "past_lens": np.array([past], np.int32),
                "subsequence_begins": np.array([0, len(tokens)], np.int32),
                "block_indices": np.arange(pages, dtype=np.int32),
                "block_indices_begins": np.array([0, pages], np.int32),
            }
            try:
                for name, array in feeds.items():
                    if name in self._ports:
                        self._request.set_tensor(name, self._tensor(array))
                self._request.infer()
            except RuntimeError as error:
                raise UnsupportedError(
                    f"OpenVINO does not compute the prompt: {sentence_of(error)}",
                    remedy="take prefill_engine out of the recipe: ONNX Runtime computes prompts then",
                ) from error
            for part, array in zip(self._parts, bound, strict=True):
                made = self._request.get_output_tensor(self._places[part.present]).data
                array[0, :, past:after] = made.reshape(len(tokens), part.heads, part.head).swapaxes(0, 1)
            self._held, self._last = after, [array[:, :, after - 1].copy() for array in bound]

    def _goes_on(self, bound: Sequence[NDArray[Any]], past: int) -> bool:
        """Whether the pages hold just this past: the text may be another, or have been cut and continued."""
        return self._held == past and all(
            np.array_equal(array[:, :, past - 1], last) for array, last in zip(bound, self._last, strict=True)
        )

    def _reserve(self, tokens: int) -> None:
        """Take pages for so many tokens; what they hold is kept."""
        pages = -(-tokens // self._page_tokens)
        for name, port in self._ports.items():
            before = self._pages.get(name)
            if _PAGES.fullmatch(name) is None or (before is not None and len(before) >= pages):
                continue
            is_short = port.get_element_type().get_type_name() == PRECISION
            count = max(pages, 0 if before is None else 2 * len(before))
            shape = [count, *(size.get_length() for size in [*port.get_partial_shape()][1:])]
            made = np.zeros(shape, np.uint16 if is_short else np.float32)
            if before is not None:
                made[: len(before)] = before
            self._pages[name] = made
            self._request.set_tensor(name, self._tensor(made, shape, port.get_element_type()))

    def _take_in(self, bound: Sequence[NDArray[Any]], past: int) -> None:
        """Copy a past into the pages."""
        by_name = {part.past: array for part, array in zip(self._parts, bound, strict=True)}
        count = -(-past // self._page_tokens)
        for name, pages in self._pages.items():
            match = _PAGES.fullmatch(name)
            assert match is not None
            array = by_name[f"past_key_values.{match[2]}.{match[1]}"][0, :, :past]
            whole = np.zeros((array.shape[0], count * self._page_tokens, array.shape[2]), np.float32)
            whole[:, :past] = array
            is_short = pages.dtype == np.uint16  # what was computed in bf16 has no more bits than these
            rows = (whole.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if is_short else whole
            pages[:count] = rows.reshape(array.shape[0], count, self._page_tokens, -1).swapaxes(0, 1)

    def close(self) -> None:
        """Free the request with the model."""
        self._request, self._ports = None, {}
        self._pages.clear()


def _whole(spec: TensorSpec) -> TensorSpec:
    """Return an output with keys or values of new tokens, (tokens, heads, 1, numbers), as those of the whole text."""
    return replace(spec, shape=(None, spec.shape[1], None, spec.shape[3]))


def _is_constant(node: Any) -> bool:
    return bool(node.get_type_name() == "Constant")
