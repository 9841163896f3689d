"""A decoder whose attention reads pages, open on OpenVINO; and the pages, which hold keys and values of any texts.

Page tables say which pages a text has, so that one run takes the next tokens of several texts, as many of each as
there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors._guard import active_guard
from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS, POSITIONS, CachePart
from edgeopt.executors.openvino import EXECUTOR, compile_for, sentence_of, spec_of
from edgeopt.executors.openvino.memory import held_bytes
from edgeopt.executors.openvino.paged import ROWS, over_pages
from edgeopt.executors.openvino.short_weights import keep_short
from edgeopt.executors.openvino.weights_in_file import WeightsInFile
from edgeopt.graph.tensors import TensorSpec

PRECISION = "bf16"
"""Type in which prompts and tokens are computed; a processor without it computes them on ONNX Runtime."""
ENTRIES: Mapping[str, str] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}
"""Activations that meet weights in blocks are rounded to 8 bits, with a scale for every 64 numbers of a token, so that
a token's numbers depend on no other token."""
_PROVIDER, _KEPT_IN = "CPU", "KV_CACHE_PRECISION"
_PAGES = re.compile(r"(key|value)_cache\.(\d+)")


class PagesUse(StrEnum):
    """Purpose of a decoder over pages."""

    PROMPTS = "prompts"
    """Keys and values of prompts."""
    ANSWERS = "answers"
    """Logits."""


_REMEDIES = {
    PagesUse.PROMPTS: "take prefill_engine out of the recipe: ONNX Runtime computes prompts then",
    PagesUse.ANSWERS: "take engine out of the recipe: ONNX Runtime computes prompts and tokens then",
}


def options_on_openvino(threads: int) -> SessionOptions:
    """Return how OpenVINO opens a decoder."""
    return SessionOptions((_PROVIDER,), threads, ENTRIES, precision=PRECISION)


def why_not_on_openvino() -> str:
    """Return why OpenVINO computes no prompts and no tokens here; empty: it does."""
    if (missing := EXECUTOR.why_unavailable()) is not None:
        return str(missing)
    if PRECISION.upper() not in EXECUTOR.capabilities(_PROVIDER):
        return f"this processor does not compute in {PRECISION}"
    return ""


@dataclass(frozen=True, slots=True)
class PagedText:
    """The next tokens of a text, and where the text lies."""

    tokens: Sequence[int]
    past: int
    """Tokens that the pages hold."""
    pages: Sequence[int]
    """Numbers of its pages, the first tokens in the first; what comes has room in them."""


@dataclass(frozen=True, slots=True)
class PagePort:
    """An input of pages; a port of OpenVINO would hold the weights for as long as anybody has the pages."""

    shape: tuple[int, ...]
    """Shape of a page: heads, tokens, numbers."""
    type_: Any
    """An `openvino.Type`."""

    @classmethod
    def of(cls, port: Any) -> PagePort:
        """Return what a port is."""
        return cls(tuple(size.get_length() for size in [*port.get_partial_shape()][1:]), port.get_element_type())

    @property
    def type_name(self) -> str:
        """Name of the type, such as `bf16`."""
        return str(self.type_.get_type_name())

    @property
    def tokens(self) -> int:
        """Tokens of a page."""
        return self.shape[1]

    @property
    def page_bytes(self) -> int:
        """Memory of a page."""
        return math.prod(self.shape) * int(self.type_.size)


class PageMemory:
    """Pages of keys and values, (pages, heads, tokens of a page, numbers); numbers in bf16 as the bits that they have.

    There is one array for each part of the cache, and a page has the same number in all of them.
    """

    def __init__(self, ports: Mapping[str, PagePort], tensor: Any) -> None:
        """Take no memory yet; `ports` are the inputs of pages by name, `tensor` is the class `openvino.Tensor`."""
        self._ports, self._tensor = dict(ports), tensor
        self.tensors = dict[str, Any]()
        """Tensors that a request reads, by input; others after `reserve`."""
        self._arrays = dict[str, NDArray[Any]]()
        self.count = 0
        """How many pages there are."""

    @property
    def stored_bytes(self) -> int:
        """Memory of all pages."""
        return sum(array.nbytes for array in self._arrays.values())

    def reserve(self, count: int) -> None:
        """Take memory for so many pages; what they hold is kept."""
        if count <= self.count:
            return
        for name, port in self._ports.items():
            shape = [count, *port.shape]
            made = np.zeros(shape, np.uint16 if port.type_name == PRECISION else np.float32)
            if self.count:
                made[: self.count] = self._arrays[name]
            self._arrays[name] = made
            self.tensors[name] = self._tensor(made, shape, port.type_)
        self.count = count

    def read(self, part: CachePart, pages: Sequence[int], past: int) -> NDArray[np.float32]:
        """Return keys or values of the first tokens of a text: (1, heads, tokens, numbers)."""
        array = self._arrays[_input_of(part)][np.asarray(pages, np.int64)]
        rows = array.swapaxes(0, 1).reshape(array.shape[1], -1, array.shape[3])[:, :past]
        is_short = rows.dtype == np.uint16
        whole = (rows.astype(np.uint32) << np.uint32(16)).view(np.float32) if is_short else rows
        return np.ascontiguousarray(whole, np.float32)[None]

    def write(self, part: CachePart, pages: Sequence[int], stored: NDArray[Any], past: int) -> None:
        """Put the first `past` tokens of keys or values, (1, heads, tokens, numbers), into the pages of a text."""
        if (memory := self._arrays.get(_input_of(part))) is None:
            return  # a graph of prompts makes those of the last layer, and reads none of them
        _, heads, size, numbers = memory.shape
        whole = np.zeros((heads, len(pages) * size, numbers), np.float32)
        whole[:, :past] = stored[0, :, :past]
        is_short = memory.dtype == np.uint16  # what was computed in bf16 has no more bits than these
        rows = (whole.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if is_short else whole
        memory[np.asarray(pages, np.int64)] = rows.reshape(heads, len(pages), size, numbers).swapaxes(0, 1)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy pages."""
        for array in self._arrays.values():
            array[np.asarray(targets, np.int64)] = array[np.asarray(sources, np.int64)]


class PagedGraph:
    """A decoder that OpenVINO holds; several texts may use it, in turns. Hold `lock` until outputs are read."""

    def __init__(self, file: Path, options: SessionOptions, use: PagesUse) -> None:
        """Read and compile a graph.

        Args:
            file: ONNX, with weights beside it.
            options: Its threads, precision and entries.
            use: For what.

        Raises:
            EdgeoptError: If OpenVINO is not here, or refuses the graph; if a guard is active, and OpenVINO aborted on
                the graph in a child.
        """
        if guard := active_guard():
            guard.try_open("openvino", file, options, pages=use)
        read = dict[str, tuple[TensorSpec, ...]]()
        self._weights = WeightsInFile(file)

        def alter(openvino: Any, model: Any) -> Any:
            read["inputs"] = tuple(spec_of(port) for port in model.inputs)
            read["outputs"] = tuple(spec_of(port) for port in model.outputs)
            self._weights.put_in(openvino, model)
            keep_short(openvino, model)
            return over_pages(openvino, model, gives_logits=use is PagesUse.ANSWERS)

        entries = {_KEPT_IN: "bf16" if options.precision == PRECISION else "f32", **options.entries}
        compiled, self._tensor = compile_for(file, replace(options, entries=entries), alter=alter)
        self.held_bytes = held_bytes(file, is_alone=use is PagesUse.ANSWERS)
        """Memory of its weights beside the size of the file, about."""
        self.inputs, self.outputs = read["inputs"], read["outputs"]
        """Those of the file."""
        self.made = tuple(spec_of(port) for port in compiled.outputs)
        """Outputs of the graph over pages."""
        self.lock = RLock()
        self._request: Any = compiled.create_infer_request()
        self._places = {spec.name: i for i, spec in enumerate(self.made)}
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._pages = {name: PagePort.of(port) for name, port in ports.items() if _PAGES.fullmatch(name)}
        types = {port.type_name for port in self._pages.values()}
        if strange := sorted(types - {PRECISION, "f32"}):
            raise UnsupportedError(
                f"OpenVINO keeps the cache in {', '.join(strange)}", remedy=f"leave the entry {_KEPT_IN} out"
            )
        self._names = set(ports) - set(self._pages)
        self._bound: dict[str, Any] = {}
        self._remedy = _REMEDIES[use]
        self.page_tokens = next((port.tokens for port in self._pages.values()), 1)
        """Tokens of a page."""
        self.token_bytes = sum(port.page_bytes for port in self._pages.values()) // self.page_tokens
        """Memory of one token in the pages."""

    def memory(self) -> PageMemory:
        """Return pages of their own for some texts."""
        return PageMemory(self._pages, self._tensor)

    def pages_of(self, tokens: int) -> int:
        """Return how many pages so many tokens of a text take."""
        return -(-tokens // self.page_tokens)

    def run(self, memory: PageMemory, texts: Sequence[PagedText], rows: Sequence[int] = ()) -> None:
        """Compute the next tokens of texts; `output` gives what comes of it.

        Args:
            memory: Holds their pages.
            texts: One or more.
            rows: Tokens behind which logits are wanted, counted over all texts; of a graph of prompts none.

        Raises:
            UnsupportedError: If OpenVINO refuses them.
        """
        if self._request is None:
            raise UnsupportedError("the model is closed", remedy="open it again")
        counts = [len(text.tokens) for text in texts]
        afters = [text.past + count for text, count in zip(texts, counts, strict=True)]
        tables = [text.pages[: self.pages_of(after)] for text, after in zip(texts, afters, strict=True)]
        feeds = {
            IDS: np.concatenate([np.asarray(text.tokens, np.int64) for text in texts]),
            POSITIONS: np.concatenate(
                [np.arange(text.past, after, dtype=np.int64) for text, after in zip(texts, afters, strict=True)]
            ),
            "max_context_len": np.array(max(afters), np.int32),
            "past_lens": np.array([text.past for text in texts], np.int32),
            "subsequence_begins": np.cumsum([0, *counts], dtype=np.int32),
            "block_indices": np.concatenate([np.asarray(table, np.int32) for table in tables]),
            "block_indices_begins": np.cumsum([0, *map(len, tables)], dtype=np.int32),
            ROWS: np.asarray(rows, np.int64),
        }
        try:
            for name, tensor in memory.tensors.items():
                if self._bound.get(name) is not tensor:
                    self._request.set_tensor(name, tensor)
                    self._bound[name] = tensor
            for name, array in feeds.items():
                if name in self._names:
                    self._request.set_tensor(name, self._tensor(array))
            self._request.infer()
            self._weights.ran(sum(counts))
        except RuntimeError as error:
            raise UnsupportedError(
                f"OpenVINO does not run the decoder: {sentence_of(error)}", remedy=self._remedy
            ) from error

    def output(self, name: str) -> NDArray[Any]:
        """Return what the last run made, in memory over which the next one writes."""
        made: NDArray[Any] = self._request.get_output_tensor(self._places[name]).data
        return made

    def logits(self, memory: PageMemory, texts: Sequence[PagedText], rows: Sequence[int]) -> NDArray[np.float32]:
        """Return (rows, vocabulary) logits behind those tokens of the next ones of texts; see `run`."""
        with self.lock:
            self.run(memory, texts, rows)
            made = self.output(LOGITS)
            return np.array(made.reshape(-1, made.shape[-1]), np.float32)

    def try_once(self) -> None:
        """Run it on made-up tokens, so that a fault of the engine shows: two of a prompt, and one behind it."""
        memory = self.memory()
        memory.reserve(1)
        for count, past in ((2, 0), (1, 2)):
            self.run(memory, [PagedText([0] * count, past, [0])], [0])

    def close(self) -> None:
        """Free the request with the model, once the run on its way is over."""
        with self.lock:
            self._request = None
            self._weights.close()
            self._bound.clear()


def _input_of(part: CachePart) -> str:
    """Return the input of pages that holds a part of a cache."""
    _, layer, kind = part.past.split(".")
    return f"{kind}_cache.{layer}"
