"""The graph of prompts on OpenVINO, while ONNX Runtime computes each token behind them over the same cache.

OpenVINO reads `GroupQueryAttention`, `MatMulNBits` and their kin as they stand in the ONNX file, computes in bf16 where
the processor has it, and products with weights of 8 bits on integers. It does not write into memory behind a past: keys
and values of earlier tokens are handed to it in one piece, and those of the new tokens are copied into the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime.decoder import IDS, MASK, POSITIONS, CachePart, cache_parts
from edgeopt.executors.onnxruntime.prefill import require_same_cache
from edgeopt.executors.openvino import EXECUTOR, compile_for, sentence_of, spec_of

PRECISION = "bf16"
"""In which prompts are computed; a processor without it computes them on ONNX Runtime."""
ENTRIES: Mapping[str, str] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}
"""What products with weights in blocks read is rounded to 8 bits, with a scale for so many numbers of a token: its
numbers hang on no other token."""
_PROVIDER = "CPU"
_TOKENS, _FAR = 2, 1 << 62
"""Axis of tokens in the cache, and an end beyond any."""


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

    pairs = False

    def __init__(self, file: Path, options: SessionOptions) -> None:
        """Read and compile a graph.

        Args:
            file: ONNX, with weights beside it.
            options: Its threads, precision and entries.

        Raises:
            EdgeoptError: If OpenVINO is not here, or refuses the graph.
        """
        compiled, self._tensor = compile_for(file, options, alter=_give_new_tokens_alone)
        self._request, self._lock = compiled.create_infer_request(), Lock()
        self.inputs = tuple(spec_of(port) for port in compiled.inputs)
        self.outputs = tuple(spec_of(port) for port in compiled.outputs)
        self._names = {spec.name for spec in self.inputs}
        self._places = {spec.name: i for i, spec in enumerate(self.outputs)}
        self._parts: tuple[CachePart, ...] = ()

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
        feeds: dict[str, NDArray[Any]] = {IDS: np.asarray(tokens, np.int64)[None]}
        if MASK in self._names:
            feeds[MASK] = np.ones((1, after), np.int64)
        if POSITIONS in self._names:
            feeds[POSITIONS] = np.arange(past, after, dtype=np.int64)[None]
        for part, array in zip(self._parts, bound, strict=True):
            feeds[part.past] = np.ascontiguousarray(array[:, :, :past])
        with self._lock:
            try:
                self._request.infer(feeds, share_inputs=True)
            except RuntimeError as error:
                raise UnsupportedError(
                    f"OpenVINO does not compute the prompt: {sentence_of(error)}",
                    remedy="take prefill_engine out of the recipe: ONNX Runtime computes prompts then",
                ) from error
            for part, array in zip(self._parts, bound, strict=True):
                array[:, :, past:after] = self._request.get_output_tensor(self._places[part.present]).data

    def close(self) -> None:
        """Free the request with the model."""
        self._request = None


def _give_new_tokens_alone(openvino: Any, model: Any) -> Any:
    """Return the graph with keys and values of the new tokens alone as outputs.

    Whole ones would be written out for every layer at once: as much memory as the cache itself, and the time of that.
    """
    ops = openvino.opset13
    pasts = {port.get_any_name(): port for port in model.inputs}
    results = []
    for output in model.outputs:
        name = output.get_any_name()
        past = pasts.get(name.replace("present", "past_key_values", 1))
        if past is None:
            results.append(output.get_node())
            continue
        axis = np.array([_TOKENS], np.int64)
        begin = ops.gather(ops.shape_of(past), axis, np.int64(0))
        new = ops.slice(output.get_node().input_value(0), begin, np.array([_FAR], np.int64), np.array([1]), axis)
        made = ops.result(new)
        made.output(0).set_names({name})
        made.set_friendly_name(name)
        results.append(made)
    return openvino.Model(results, model.get_parameters(), model.get_friendly_name())
