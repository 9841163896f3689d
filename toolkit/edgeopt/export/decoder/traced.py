"""A decoder of any type that transformers has, traced by torch with its cache as inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS, MASK, POSITIONS
from edgeopt.export.from_torch import said
from edgeopt.export.quiet import quiet_export
from edgeopt.export.to_onnx import forget_traces
from edgeopt.export.whole_network import open_whole
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.model import Model

_OPSET = 20
_ROWS, _TOKENS, _PAST = 2, 3, 5
"""Rows, tokens and past of the trace: torch takes 0 and 1 for fixed, and equal sizes for one."""


class TracedDecoder:
    """A decoder that is open in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        """Open a folder of `save_pretrained`; no code beside the weights is run.

        Raises:
            MissingDependencyError: If torch, onnxscript or transformers is not installed.
            InvalidFileError: If transformers does not open it, or weights are missing.
            UnsupportedError: If it takes no positions, or keeps more than keys and values.
        """
        whole = open_whole(folder, "AutoModelForCausalLM")
        module, transformers = whole.module, whole.transformers
        self._torch, self.framework = whole.torch, whole.framework
        self._module, self.kind = module, str(module.config.model_type)
        self._caches = transformers.cache_utils.DynamicCache
        if any(name.endswith(".experts") for name, _ in module.named_modules()):
            raise self._refused("its mixture of experts is not traced by torch")
        if POSITIONS not in signature(module.forward).parameters:
            raise self._refused("its forward takes no position_ids")
        self._sizes = self._measured()

    @property
    def vocabulary(self) -> int:
        """Logits of a token."""
        return int(self._module.config.get_text_config().vocab_size)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) behind each token of a text, computed by torch at once."""
        with self._torch.no_grad():
            array: NDArray[np.float32] = self._module(self._torch.tensor([list(tokens)])).logits[0].numpy()
        return array

    def traced(self, name: str) -> Model:
        """Return the graph, with the inputs and outputs that `write_llama` has, and `position_ids`.

        Raises:
            UnsupportedError: If torch cannot export it.
        """
        torch = self._torch
        parts = [f"{i}.{part}" for i in range(len(self._sizes)) for part in ("key", "value")]
        free = torch.export.Dim.DYNAMIC
        axes = (*[{0: free, 1: free}] * 3, ({0: free, 2: free},) * len(parts))
        with quiet_export(torch):
            try:
                made = torch.export.export(self._wrapped(), self._example(), dynamic_shapes=axes, strict=False)
                exported = torch.onnx.export(
                    made,
                    dynamo=True,
                    opset_version=_OPSET,
                    input_names=[IDS, MASK, POSITIONS, *(f"past_key_values.{other}" for other in parts)],
                    output_names=[LOGITS, *(f"present.{other}" for other in parts)],
                    verbose=False,
                )
            except Exception as error:
                raise self._refused(f"torch cannot export it: {said(error.__cause__ or error)}") from error
        proto: onnx.ModelProto = exported.model_proto
        forget_traces(proto)
        _name_axes(proto)
        require_valid(proto, name)
        return Model(proto, name)

    def _measured(self) -> list[tuple[int, int]]:
        """Return heads and numbers of a head of each layer's cache."""
        torch = self._torch
        try:
            with torch.no_grad():
                tokens = torch.zeros(1, 2, dtype=torch.int64)
                layers = self._module(tokens, use_cache=True).past_key_values.layers
                if any(hasattr(layer, "conv_states") for layer in layers):
                    raise AttributeError("states beside keys and values")
                if any(layer.keys.shape != layer.values.shape for layer in layers):
                    raise self._refused("its keys and values are of different sizes")
                return [(int(layer.keys.shape[1]), int(layer.keys.shape[3])) for layer in layers]
        except (AttributeError, TypeError, IndexError) as error:
            raise self._refused("it keeps something else than keys and values") from error

    def _example(self) -> tuple[Any, ...]:
        torch = self._torch
        ids = torch.arange(_ROWS * _TOKENS).reshape(_ROWS, _TOKENS) % self.vocabulary
        mask = torch.ones(_ROWS, _PAST + _TOKENS, dtype=torch.int64)
        positions = torch.arange(_PAST, _PAST + _TOKENS)[None].repeat(_ROWS, 1)
        past = [torch.ones(_ROWS, heads, _PAST, head) for heads, head in self._sizes for _ in range(2)]
        return (ids, mask, positions, *past)

    def _wrapped(self) -> Any:
        """Return a module that takes and gives the cache as single tensors."""
        torch, module, caches, count = self._torch, self._module, self._caches, len(self._sizes)

        class WithCache(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> tuple[Any, ...]:
                cache = caches()
                for i in range(count):
                    cache.update(past[2 * i], past[2 * i + 1], i)
                answer = self.inner(
                    input_ids=input_ids,
                    attention_mask=attention_mask,
                    position_ids=position_ids,
                    past_key_values=cache,
                    use_cache=True,
                )
                present = [value for layer in answer.past_key_values.layers for value in (layer.keys, layer.values)]
                return (answer.logits, *present)

        return WithCache().eval()

    def _refused(self, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"a decoder of the type {self.kind} is not exported: {reason}",
            remedy="export it with optimum-cli or onnxruntime-genai's builder, and name the folder that it writes",
        )


def _name_axes(proto: onnx.ModelProto) -> None:
    """Give free dimensions the names that a written decoder has, in place of `s34`."""
    names = dict[str, str]()
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        last = {IDS: "sequence", POSITIONS: "sequence", MASK: "total"}.get(value.name)
        names[dims[0].dim_param] = "batch"
        names[dims[2 if last is None else 1].dim_param] = last or "past"
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
