"""onnxruntime-genai on the compared ONNX file itself: the same weights, the same kernels, another loop around them.

Source: https://onnxruntime.ai/docs/genai/reference/config.html (configuration).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.generation.rivals import EngineAnswer, EngineRequest, RivalEngine, RivalWeights, link_file
from edgeopt.measurement.generation.rivals._clock import TokenTimes

CONFIG = "genai_config.json"
_CACHE = re.compile(r"past_key_values\.(\d+)\.key")
_KNOWN = re.compile(r"input_ids|attention_mask|position_ids|past_key_values\.\d+\.(key|value)")
_REMEDY = "name a folder of onnxruntime-genai's builder: --rival-model onnxruntime-genai=FOLDER"


class _GenaiEngine:
    def __init__(self, request: EngineRequest) -> None:
        import onnxruntime_genai as genai

        folder = request.file if (request.file / CONFIG).is_file() else request.work
        settings = json.loads((folder / CONFIG).read_text("utf-8"))
        config, threads = genai.Config(str(folder)), {"intra_op_num_threads": request.threads}
        # no token ends an answer: all have the length asked for
        config.overlay(json.dumps({"model": {"eos_token_id": [], "decoder": {"session_options": threads}}}))
        self._model = genai.Model(config)
        params = genai.GeneratorParams(self._model)
        params.set_search_options(max_length=request.context, do_sample=False)
        # one for all answers, which begin by rewinding it: making one takes longer than a short prompt
        self._generator = genai.Generator(self._model, params)
        kept = bool(settings.get("search", {}).get("past_present_share_buffer"))
        self.settings: Mapping[str, str] = {
            "engine": f"onnxruntime-genai {genai.__version__}",
            "threads": str(request.threads),
            "context": str(request.context),
            "generator": "kept, rewound for each answer",
            "cache": "written in place" if kept else "copied from run to run",
        }

    def answer(self, prompt: Sequence[int], count: int) -> EngineAnswer:
        """Answer a prompt: the whole of it at once, then token after token."""
        tokens, generator = np.array([prompt], np.int32), self._generator
        times = TokenTimes()
        generator.rewind_to(0)
        generator.append_tokens(tokens)
        for _ in range(count):
            generator.generate_next_token()
            times.take(int(generator.get_next_tokens()[0]))
        return times.answer

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return what the graph gives for the whole text; where it gives the last row alone, row after row."""
        generator = self._generator
        generator.rewind_to(0)
        generator.append_tokens(np.array([tokens], np.int32))
        whole = np.asarray(generator.get_output("logits"), np.float32)
        if whole.shape[1] == len(tokens):
            logits: NDArray[np.float32] = whole[0]
            return logits
        rows = list[NDArray[np.float32]]()
        generator.rewind_to(0)
        for token in tokens:
            generator.append_tokens(np.array([[token]], np.int32))
            rows.append(np.asarray(generator.get_logits(), np.float32)[0, -1].copy())
        return np.stack(rows)


def lay_out(request: EngineRequest) -> Path:
    """Write a configuration for an ONNX decoder into the work folder, and return that folder.

    Raises:
        UnsupportedError: If the decoder takes what onnxruntime-genai does not hand in.
    """
    import onnx

    proto = onnx.load(str(request.file), load_external_data=False)
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in stored}
    if odd := [name for name in inputs if not _KNOWN.fullmatch(name)]:
        raise UnsupportedError(f"the graph takes {odd[0]}, which onnxruntime-genai does not hand in", remedy=_REMEDY)
    keys = [name for name in inputs if _CACHE.fullmatch(name)]
    shape = [dim.dim_value for dim in inputs[keys[0]].type.tensor_type.shape.dim] if keys else []
    logits = next((value for value in proto.graph.output if value.name == "logits"), None)
    vocabulary = logits.type.tensor_type.shape.dim[-1].dim_value if logits else 0
    heads = _heads(proto)
    if len(shape) != 4 or not (shape[1] and shape[3] and vocabulary and heads):
        raise UnsupportedError("the graph's cache is not one that onnxruntime-genai knows", remedy=_REMEDY)
    named = {name: name for name in ("input_ids", "attention_mask", "position_ids") if name in inputs}
    caches = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    presents = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    decoder = {
        "session_options": {"intra_op_num_threads": request.threads, "provider_options": []},
        "filename": request.file.name,
        "head_size": shape[3],
        "hidden_size": heads * shape[3],
        "num_attention_heads": heads,
        "num_hidden_layers": len(keys),
        "num_key_value_heads": shape[1],
        "inputs": named | caches,
        "outputs": {"logits": "logits", **presents},
    }
    model = {"type": "llama", "vocab_size": vocabulary, "context_length": request.context, "decoder": decoder}
    ends = {"bos_token_id": 0, "eos_token_id": [], "pad_token_id": 0}
    search = {"max_length": request.context, "past_present_share_buffer": True, "do_sample": False}
    for file in (request.file, *outside_files(request.file)):  # the package opens nothing outside its folder
        link_file(file, request.work / file.relative_to(request.file.parent))
    (request.work / CONFIG).write_text(json.dumps({"model": ends | model, "search": search}), "utf-8")
    return request.work


def _heads(proto: Any) -> int:
    """Return the number of heads that the graph's attention has; 0: it has none that tells it."""
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "GroupQueryAttention" and attribute.name == "num_heads":
                return int(attribute.i)
    return 0


RIVAL = RivalEngine(
    name="onnxruntime-genai",
    package="onnxruntime-genai",
    module="onnxruntime_genai",
    weights=RivalWeights.GRAPH,
    forms={},
    open=_GenaiEngine,
    own_files=f"a folder with {CONFIG}",
    prepare=lay_out,
)
