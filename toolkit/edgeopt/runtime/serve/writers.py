"""A language model as a server holds it: open, warm, with the caches of what stands before every prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from edgeopt.runtime.decoding.batching.shared_model import SharedModel, parts_alone
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.writing import ServedAnswer

_WARM = AnswerOptions(most_tokens=2, ends=False)


class ServedWriter(Protocol):
    """A model that writes, from any number of threads."""

    def generate(self, prompt: Sequence[int], asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a prompt; a larger priority goes first where memory is short."""
        ...

    def expect(self, tokens: Sequence[int], behind: Sequence[int]) -> None:
        """Compute the beginning of a prompt that may come, while nobody asks.

        Args:
            tokens: With which the next prompt of a conversation begins.
            behind: The prompt that was answered.
        """
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Together:
    """Answers side by side in slots."""

    def __init__(self, model: LanguageModel, limits: Limits) -> None:
        """Take a model, which is closed with it."""
        with ExitStack() as undone:
            undone.callback(model.close)
            self._model, self._shared = model, SharedModel(model, limits.slots, chunk_tokens=limits.chunk_tokens)
            undone.callback(self._shared.close)
            with self._shared.generate([0], _WARM) as answer:
                answer.text()  # warm before anybody waits
            self._shared.forget()
            undone.pop_all()

    @property
    def memory_bytes(self) -> int:
        """Weights, and the cache of all slots."""
        return self._model.origin.size_bytes + self._shared.cache_bytes

    @property
    def turns_told(self) -> str:
        """Why the texts take turns; empty: they share runs."""
        return self._shared.turns_told

    def generate(self, prompt: Sequence[int], asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a prompt."""
        return self._shared.generate(prompt, asked, priority)

    def expect(self, tokens: Sequence[int], behind: Sequence[int]) -> None:
        """Compute the beginning of a prompt that may come, while no slot is taken."""
        self._shared.expect(tokens, behind)

    def close(self) -> None:
        """Free it."""
        self._shared.close()
        self._model.close()


class OneByOne:
    """One answer at a time, whose next tokens are guessed."""

    def __init__(self, model: LanguageModel, *, uses_draft: bool) -> None:
        """Take a model that guesses (`LanguageModel.guesses`), which is closed with it."""
        self._model, self._uses_draft = model, uses_draft
        with ExitStack() as undone:
            undone.callback(model.close)
            with self.generate([0], replace(_WARM, guesses=None), 0) as answer:
                for _ in answer:
                    pass
            undone.pop_all()

    def generate(self, prompt: Sequence[int], asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a prompt; nobody is beside it, so that no priority counts."""
        parts = parts_alone(self._model)  # a cancelled answer ends behind one
        return self._model.generate(prompt, replace(asked, chunk_tokens=parts, uses_draft=self._uses_draft))

    def expect(self, tokens: Sequence[int], behind: Sequence[int]) -> None:
        """Do nothing: an answer whose tokens are guessed is exact, and stays in the cache as it is."""

    def close(self) -> None:
        """Free it."""
        self._model.close()
