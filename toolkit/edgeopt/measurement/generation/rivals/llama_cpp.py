"""llama.cpp by the package llama-cpp-python: its C interface, not the Python class around it.

Source: https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.measurement.generation.rivals import EngineAnswer, EngineRequest, RivalEngine, RivalWeights
from edgeopt.measurement.generation.rivals._clock import TokenTimes
from edgeopt.system.machine.processor import cpu_flags

_FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "q4_k_s": 14, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}
"""`llama_ftype` of llama.h."""
_CACHE_TYPES = {0: "f32", 1: "f16", 8: "q8_0"}
"""`ggml_type` of ggml.h."""
_REMEDY = "name another file: --rival-model llama.cpp=FILE.gguf"


class _LlamaEngine:
    def __init__(self, request: EngineRequest) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        llama_cpp.llama_backend_init()
        opened = llama_cpp.llama_model_default_params()
        opened.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(request.file).encode(), opened)
        if not self._model:
            raise UnsupportedError(f"{request.file.name} is not read", remedy=_REMEDY)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = request.context, request.threads, request.threads
        params.n_batch = max(params.n_batch, request.context)  # a prompt is one call, which takes no more
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise UnsupportedError(f"no context of {request.context} tokens opens", remedy=_REMEDY)
        self._greedy = llama_cpp.llama_sampler_init_greedy()
        self._vocabulary = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))
        info = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
        self.settings: Mapping[str, str] = {
            "engine": f"llama.cpp, llama-cpp-python {llama_cpp.__version__}",
            "form": request.form or "as the file has it",
            "threads": str(request.threads),
            "context": str(int(llama_cpp.llama_n_ctx(self._context))),
            "batch": f"{int(params.n_batch)}, at once {int(params.n_ubatch)}",
            "cache": " and ".join(dict.fromkeys(_CACHE_TYPES.get(kind, str(kind)) for kind in _kinds(params))),
            "build": f"{_lacking(info)}{_features(info)}",
        }

    def answer(self, prompt: Sequence[int], count: int) -> EngineAnswer:
        """Answer a prompt: one batch of it, then each token by itself."""
        lib = self._lib
        tokens = (lib.llama_token * len(prompt))(*prompt)
        times = TokenTimes()
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        self._decode(lib.llama_batch_get_one(tokens, len(prompt)))
        token = (lib.llama_token * 1)()
        for i in range(count):
            if i:
                self._decode(lib.llama_batch_get_one(token, 1))
            token[0] = lib.llama_sampler_sample(self._greedy, self._context, -1)
            times.take(int(token[0]))
        return times.answer

    def _decode(self, batch: Any) -> None:
        if code := self._lib.llama_decode(self._context, batch):
            raise UnsupportedError(f"llama_decode ended with {code}", remedy=_REMEDY)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits of one batch."""
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
                batch.seq_id[i][0] = 0
            self._decode(batch)
        finally:
            lib.llama_batch_free(batch)
        rows = [lib.llama_get_logits_ith(self._context, i) for i in range(len(tokens))]
        return np.stack([np.ctypeslib.as_array(row, (self._vocabulary,)).copy() for row in rows])


def _features(info: str) -> str:
    """Return what a build uses, in llama.cpp's words, without what it leaves unused."""
    pairs = (entry.rpartition(":")[2].partition("=") for entry in info.split("|") if "=" in entry)
    used = {name.strip(): value.strip() for name, _, value in pairs if value.strip() != "0"}
    return " ".join(name if value == "1" else f"{name}={value}" for name, value in used.items())


def _lacking(info: str) -> str:
    """Return that a build leaves wide instructions of this processor unused; empty: it does not."""
    has = any(flag.startswith("avx512") for flag in cpu_flags())
    return (
        "without the AVX-512 that this processor has, build it here to use it: " if has and "AVX512" not in info else ""
    )


def _kinds(params: Any) -> tuple[int, int]:
    return int(params.type_k), int(params.type_v)


def quantize(request: EngineRequest) -> Path:
    """Round the floats of a file with llama.cpp's own quantizer, as `llama-quantize` does, and return the new file.

    Raises:
        UnsupportedError: If it refuses.
    """
    import llama_cpp

    if request.form in ("", "f32"):
        return request.file
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = _FILE_TYPES[request.form], request.threads
    made = request.work / f"{request.form}.gguf"
    code = llama_cpp.llama_model_quantize(str(request.file).encode(), str(made).encode(), ctypes.byref(params))
    if code or not made.is_file():
        raise UnsupportedError(f"the quantizer ended with {code} for {request.form}", remedy=_REMEDY)
    return made


RIVAL = RivalEngine(
    name="llama.cpp",
    package="llama-cpp-python",
    module="llama_cpp",
    weights=RivalWeights.GGUF,
    forms={4: "q4_0", 8: "q8_0", 16: "f16", 32: "f32"},
    open=_LlamaEngine,
    more_forms=tuple(name for name in _FILE_TYPES if "_k" in name),
    own_files="a .gguf file",
    prepare=quantize,
)
