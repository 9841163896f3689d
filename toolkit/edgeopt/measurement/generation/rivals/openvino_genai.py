"""OpenVINO GenAI on the processor, from a `.gguf` file or a folder of OpenVINO's own.

Source: https://openvinotoolkit.github.io/openvino.genai/docs/guides/gguf; `llm_pipeline.cpp` of
OpenVINO GenAI (what its pipeline sets where nobody says).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.measurement.generation.rivals import EngineAnswer, EngineRequest, RivalEngine, RivalWeights, link_file
from edgeopt.measurement.generation.rivals._clock import TokenTimes

MODEL = "openvino_model.xml"
_WHOLE_PROMPT = 1 << 20
"""Tokens of a batch: the prompt is computed at once, as the pipeline does where nobody says otherwise."""


class _OpenVinoEngine:
    def __init__(self, request: EngineRequest) -> None:
        import openvino
        import openvino_genai

        self._genai, self._openvino, self._request = openvino_genai, openvino, request
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False  # prompts come again, and each is to be computed
        scheduling.max_num_batched_tokens = _WHOLE_PROMPT
        self._properties = {"INFERENCE_NUM_THREADS": request.threads}
        self._pipeline = openvino_genai.LLMPipeline(
            str(request.file), "CPU", scheduler_config=scheduling, **self._properties
        )
        core = openvino.Core()
        self.settings: Mapping[str, str] = {
            "engine": f"OpenVINO GenAI {openvino_genai.get_version()}",
            "form": request.form or "as the file has it",
            "threads": str(request.threads),
            "batch": "the whole prompt",
            "cache": f"paged, no prefix kept, {_word_of(core, 'KV_CACHE_PRECISION')}",
            "computes in": _word_of(core, "INFERENCE_PRECISION_HINT"),
            "device": str(core.get_property("CPU", "FULL_DEVICE_NAME")),
        }

    def answer(self, prompt: Sequence[int], count: int) -> EngineAnswer:
        """Answer a prompt; a streamer hears each token."""
        genai, tensor = self._genai, self._openvino.Tensor
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos, config.do_sample = True, False
        ids = np.array([prompt], np.int64)
        inputs = genai.TokenizedInputs(tensor(ids), tensor(np.ones_like(ids)))
        hearing = _streamer(genai)
        self._pipeline.generate(inputs, config, hearing)
        answer: EngineAnswer = hearing.times.answer
        return answer

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits of the network itself: the pipeline gives none."""
        request, count = self._network, len(tokens)
        request.reset_state()
        ids = np.array([tokens], np.int64)
        fed = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(count)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        wanted = {name for port in request.model_inputs for name in port.names}
        result = request.infer({name: value for name, value in fed.items() if name in wanted})
        logits: NDArray[np.float32] = np.asarray(next(iter(result.values())), np.float32)[0]
        return logits

    @cached_property
    def _network(self) -> Any:
        folder, file = self._request.file, self._request.file
        if file.suffix == ".gguf":
            folder = self._request.work
            copy = folder / f"copy-of-{file.name}"
            link_file(file, copy)  # the network is written beside it
            self._genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
        if not (folder / MODEL).is_file():
            raise UnsupportedError("OpenVINO GenAI wrote no network of it", remedy="leave --eval out")
        compiled = self._openvino.Core().compile_model(str(folder / MODEL), "CPU", self._properties)
        return compiled.create_infer_request()


def _streamer(genai: Any) -> Any:
    """Return what the pipeline tells each token; its class is the package's."""

    class Hearing(genai.StreamerBase):  # type: ignore[misc]
        """Notes when tokens come."""

        def __init__(self) -> None:
            super().__init__()
            self.times = TokenTimes()

        def write(self, tokens: Any) -> Any:
            """Take one token, or several."""
            for token in [tokens] if isinstance(tokens, int) else tokens:
                self.times.take(int(token))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Do nothing: no text is kept back."""

    return Hearing()


def _word_of(core: Any, name: str) -> str:
    """Return a default of OpenVINO's processor, in its own word."""
    try:
        value = core.get_property("CPU", name)
        return str(value.get_type_name() if hasattr(value, "get_type_name") else value)
    except (RuntimeError, TypeError):  # another version has no such property
        return "not told"


RIVAL = RivalEngine(
    name="openvino-genai",
    package="openvino-genai",
    module="openvino_genai",
    weights=RivalWeights.GGUF,
    forms={4: "q4_0", 8: "q8_0", 16: "f16", 32: "f16"},
    open=_OpenVinoEngine,
    own_files="a .gguf file, or a folder of optimum-intel's export",
)
