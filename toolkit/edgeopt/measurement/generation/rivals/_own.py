"""Our own engine, in a process as the rivals have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.generation.rivals import EngineAnswer, EngineRequest, RivalEngine, RivalWeights
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model


class _OwnEngine:
    def __init__(self, request: EngineRequest) -> None:
        self._model, _ = open_language_model(
            request.file, request.threads, request.context, entries=request.entries or {}
        )
        precision, prefill = self._model.origin.precision, self._model.prefill
        elsewhere = self._model.elsewhere
        self.settings: Mapping[str, str] = {
            "engine": f"edgeopt on {elsewhere.engine_name if elsewhere else 'ONNX Runtime'}",
            **({"prompts": f"on {prefill.engine_name}, in parts of {self._model.chunk}"} if prefill else {}),
            **({"form": precision} if precision else {}),
            "threads": str(self._model.origin.threads),
            "context": str(self._model.context),
        }

    def answer(self, prompt: Sequence[int], count: int) -> EngineAnswer:
        """Answer a prompt, which has no first tokens of its own: the model puts them before it."""
        self._model.forget()
        begun_ns, tokens = perf_counter_ns(), list[int]()
        with self._model.generate(prompt, AnswerOptions(most_tokens=count, ends=False)) as answer:
            tokens += [piece.token for piece in answer]
        return EngineAnswer(tuple(tokens), begun_ns, answer.account.token_at_ns)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the model's logits."""
        return self._model.logits(tokens)


RIVAL = RivalEngine(
    name="edgeopt",
    package="edgeopt",
    module="edgeopt",
    weights=RivalWeights.GRAPH,
    forms={},
    open=_OwnEngine,
)
