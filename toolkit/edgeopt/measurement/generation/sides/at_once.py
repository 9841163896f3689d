"""A language model that answers for several clients at once, as a server of as many slots does, timed like one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from edgeopt.measurement.generation.sides.turns import Writes
from edgeopt.runtime.decoding.batching.request import SharedAnswer
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.processes.closing import Closing

_MORE_TOKENS = 64
"""Beyond prompt and answer, for which slots have memory."""


class AnswersAtOnce(Closing):
    """Answers to the same number of prompts that came at the same time: one answer, whose times are those of all."""

    def __init__(self, slots: SharedModel, prompts: Sequence[Sequence[int]], asked: AnswerOptions) -> None:
        """Ask for them."""
        began_ns = perf_counter_ns()
        self._begun_ns, self._answers = list[int](), list[SharedAnswer]()
        for prompt in prompts:
            self._begun_ns.append(perf_counter_ns() - began_ns)
            self._answers.append(slots.generate(prompt, asked))

    def __iter__(self) -> Iterator[Any]:
        for answer in self._answers:
            yield from answer

    @property
    def account(self) -> Account:
        """Account of the first, with times since the first was asked for: until all had a token, two, and so on."""
        accounts = [answer.account for answer in self._answers]
        times = [
            [begun_ns + at_ns for at_ns in account.token_at_ns]
            for begun_ns, account in zip(self._begun_ns, accounts, strict=True)
        ]
        return replace(accounts[0], token_at_ns=tuple(map(max, zip(*times, strict=True))))

    def close(self) -> None:
        """End them."""
        for answer in self._answers:
            answer.close()


class ForClients(Closing):
    """A language model for so many clients: each asks for an answer to a prompt of its own at the same time."""

    def __init__(self, model: LanguageModel, clients: int) -> None:
        """Take a model, which stays open."""
        self._model, self._clients = model, clients
        self._slots: SharedModel | None = None

    def forget(self) -> None:
        """Free what is kept of earlier answers."""
        if self._slots is not None:
            self._slots.forget()

    def generate(self, prompt: Any, asked: AnswerOptions | None = None) -> AnswersAtOnce:
        """Return the answers to a prompt for each client, which begins with another of its tokens."""
        asked = asked or AnswerOptions()
        if self._slots is None:
            tokens = self._model.begins_with + len(prompt) + asked.most_tokens + _MORE_TOKENS
            needed = self._clients * tokens * max(self._model.token_bytes, 1)  # without attention there is no cache
            self._slots = SharedModel(self._model, self._clients, memory_bytes=needed + self._beside_bytes)
        prompts = [[*prompt[i:], *prompt[:i]] for i in (number % len(prompt) for number in range(self._clients))]
        return AnswersAtOnce(self._slots, prompts, asked)

    @property
    def _beside_bytes(self) -> int:
        """Memory of states, and of pages that are filled in part."""
        model = self._model
        page = model.elsewhere.page_bytes if model.elsewhere else 0
        return self._clients * (2 * model.state_bytes + page)

    def close(self) -> None:
        """Free the slots."""
        if self._slots is not None:
            self._slots.close()


@contextmanager
def for_clients(models: Mapping[str, Any], clients: int) -> Iterator[dict[str, Writes]]:
    """Yield models as they answer for so many clients at once; as they are for one.

    Args:
        models: By name; language models, where clients are several.
        clients: One or more.
    """
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(ForClients(model, clients)) if clients > 1 else model
            for name, model in models.items()
        }
