"""A language model as a server holds it: open, warm, with the caches of what stands before every prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock
from typing import Protocol

from edgeopt.runtime.decoding.batching.prompt_odds import UntoldOddsError, prompt_odds
from edgeopt.runtime.decoding.batching.prompt_turns import Scoring, in_turn
from edgeopt.runtime.decoding.batching.shared_model import SharedModel, parts_alone
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.memory import bytes_beside_cache, bytes_of_text
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.model_memory import MemoryNeeds
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.writing import ServedAnswer

_WARM = AnswerOptions(most_tokens=2, ends=False)


class ServedWriter(Protocol):
    """A model that writes, from any number of threads."""

    def generate(self, prompt: Sequence[int], asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a prompt; a larger priority goes first where memory is short."""
        ...

    def odds(self, prompt: Sequence[int], count: int) -> Scoring:
        """Yield the probability of each token of a prompt, and of the likeliest in its place; None while it waits.

        Raises:
            RefusedError: If the model does not tell them.
        """
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


class _PromptOdds:
    """Probabilities of prompts, one prompt at a time, as each has a cache beside that of the slots meanwhile."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._turn = model, Lock()

    def of(self, prompt: Sequence[int], count: int) -> Scoring:
        try:
            yield from in_turn(self._turn, lambda: prompt_odds(self._model, prompt, count))
        except UntoldOddsError as error:  # an engine's own fault stays one, for which the model is opened anew
            raise RefusedError(400, f"echo: {error.problem}", code="unsupported_value", param="echo") from error


class Together:
    """Answers side by side in slots."""

    def __init__(self, model: LanguageModel, limits: Limits) -> None:
        """Take a model, which is closed with it."""
        with ExitStack() as undone:
            undone.callback(model.close)
            chunk_tokens, token_s = limits.chunk_tokens, limits.token_s
            self._model, self._odds = model, _PromptOdds(model)
            self._shared = SharedModel(model, limits.slots, chunk_tokens=chunk_tokens, token_s=token_s)
            undone.callback(self._shared.close)
            with self._shared.generate([0], _WARM) as answer:
                answer.text()  # warm before anybody waits
            self._shared.forget()
            undone.pop_all()

    @property
    def needs(self) -> MemoryNeeds:
        """The memory of weights with what engines hold of them, and of the cache of all slots."""
        context = self._model.context
        weights_bytes = bytes_beside_cache(self._model, context)
        return MemoryNeeds(weights_bytes, self._shared.cache_bytes, context=context, slots=self._shared.slots)

    @property
    def turns_told(self) -> str:
        """Why the texts take turns; empty: they share runs."""
        return self._shared.turns_told

    def generate(self, prompt: Sequence[int], asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a prompt."""
        return self._shared.generate(prompt, asked, priority)

    def odds(self, prompt: Sequence[int], count: int) -> Scoring:
        """Yield the probability of each token of a prompt."""
        yield from self._odds.of(prompt, count)

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
        self._model, self._uses_draft, self._odds = model, uses_draft, _PromptOdds(model)
        with ExitStack() as undone:
            undone.callback(model.close)
            with self.generate([0], replace(_WARM, guesses=None), 0) as answer:
                for _ in answer:
                    pass
            undone.pop_all()

    @property
    def needs(self) -> MemoryNeeds:
        """The memory of weights with what engines hold of them, of the cache of one text, and of a draft with its own.

        A draft that is named is open from the beginning, and that of a recipe since the text that warmed the model.
        """
        model, context = self._model, self._model.context
        draft = model.opened_draft() if self._uses_draft else None
        weights_bytes = bytes_beside_cache(model, context)
        cache_bytes = bytes_of_text(model, context) - weights_bytes
        return MemoryNeeds(weights_bytes, cache_bytes, bytes_of_text(draft, context) if draft else 0, context)

    def generate(self, prompt: Sequence[int], asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a prompt; nobody is beside it, so that no priority counts."""
        parts = parts_alone(self._model)  # a cancelled answer ends behind one
        return self._model.generate(prompt, replace(asked, chunk_tokens=parts, uses_draft=self._uses_draft))

    def odds(self, prompt: Sequence[int], count: int) -> Scoring:
        """Yield the probability of each token of a prompt."""
        yield from self._odds.of(prompt, count)

    def expect(self, tokens: Sequence[int], behind: Sequence[int]) -> None:
        """Do nothing: an answer whose tokens are guessed is exact, and stays in the cache as it is."""

    def close(self) -> None:
        """Free it."""
        self._model.close()
