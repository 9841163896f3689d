"""A language model in a process of its own, whoever's engine runs it: what `compare --rivals` measures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.generation.perplexity import TextScore
from edgeopt.measurement.generation.rivals import OWN, EngineRequest
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.runtime.decoding.language_model import Origin
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.programs import add_program, drop_program
from edgeopt.system.processes.worker import Worker, WorkerDeathError, module_command

_WORKER = "edgeopt.measurement.generation.rivals._worker"
_OPEN_S, _ANSWER_S, _SCORE_S = 600.0, 300.0, 1800.0
"""The longest that opening, an answer and judging by a text may take."""
_SETTLE_S = 0.02
"""Between two answers: threads of the engine that answered before wait busily for some milliseconds."""


class EngineFailure(EdgeoptError):  # noqa: N818, it is no fault of the program
    """An engine in its own process died, hung, or told an error."""

    def __init__(self, label: str, why: str) -> None:
        """Take the label of the side, and what happened."""
        super().__init__(f"{label}: {why}", remedy="leave it out of --rivals, or name another file by --rival-model")
        self.label, self.why = label, why


@dataclass(frozen=True, slots=True)
class ApartAnswer:
    """An answer that is over: it came from another process, with the time of each token."""

    account: Account
    tokens: tuple[int, ...]

    def __enter__(self) -> ApartAnswer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: it holds nothing."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tokens)


@dataclass(frozen=True, slots=True)
class ApartModel:
    """A model that a process opens."""

    label: str
    engine: str
    """File of the engine in `rivals`."""
    request: EngineRequest
    begin: tuple[int, ...]
    """Tokens before every prompt."""
    origin: Origin
    tokenizer: Tokens


@dataclass(frozen=True, slots=True)
class FreshRun:
    """The time of a fresh process to its first token, and the most memory it held."""

    first_token_ns: int
    peak_bytes: int | None


class ApartWriter:
    """One process that is open with a model, and answers."""

    def __init__(self, model: ApartModel, answers: dict[tuple[int, ...], tuple[int, ...]] | None = None) -> None:
        """Start the process and open the engine.

        Args:
            model: What it opens.
            answers: Takes the answers by their prompts; None: a new one does.

        Raises:
            EngineFailure: If it does not open.
        """
        self.model, self._begun_ns = model, time.perf_counter_ns()
        self.answers = {} if answers is None else answers
        """The last answer to each prompt."""
        command = module_command(_WORKER, model.engine)
        self._worker = Worker(command, f"the process of {model.label}")
        self._is_closed = False
        add_program(self._worker.pid)  # its processor time is that of the comparison, not of a neighbour
        try:
            self.settings = self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> Mapping[str, str]:
        settings: Mapping[str, str] = self._ask("open", _values_of(self.model.request), timeout_s=_OPEN_S).values[
            "settings"
        ]
        return settings

    @property
    def origin(self) -> Origin:
        """The file that it was opened from."""
        return self.model.origin

    @property
    def tokenizer(self) -> Tokens:
        """The tokenizer, which is that of the first side."""
        return self.model.tokenizer

    @property
    def begins_with(self) -> int:
        """Number of tokens before every prompt."""
        return len(self.model.begin)

    @property
    def context(self) -> int:
        """Tokens of prompt and answer."""
        return self.model.request.context

    def reopened(self) -> ApartWriter:
        """Return the same model in another process; the answers of both are kept together."""
        return ApartWriter(self.model, self.answers)

    def forget(self) -> None:
        """Do nothing: each answer begins with an empty cache."""

    def generate(self, prompt: Sequence[int], asked: AnswerOptions | None = None) -> ApartAnswer:
        """Return the whole answer to a prompt.

        Raises:
            EngineFailure: If the process dies, or gives another number of tokens than was asked for.
        """
        count = (asked or AnswerOptions()).most_tokens
        time.sleep(_SETTLE_S)
        reply = self._answer(prompt, count)
        tokens = tuple(reply.arrays["tokens"].tolist())
        self.answers[tuple(prompt)] = tokens
        return ApartAnswer(Account(token_at_ns=tuple(reply.arrays["at_ns"].tolist())), tokens)

    def _answer(self, prompt: Sequence[int], count: int) -> Message:
        # our own model puts its first tokens before a prompt by itself
        whole = [*([] if self.model.engine == OWN else self.model.begin), *prompt]
        arrays = {"prompt": np.array(whole, np.int64)}
        reply = self._ask("answer", {"count": count}, arrays, timeout_s=_ANSWER_S)
        if len(reply.arrays["tokens"]) != count:
            raise EngineFailure(self.model.label, f"{len(reply.arrays['tokens'])} tokens came in place of {count}")
        return reply

    def score(self, windows: Sequence[Sequence[int]]) -> TextScore:
        """Return how well the engine predicts windows of a text.

        Raises:
            EngineFailure: If it gives no logits, or dies.
        """
        arrays = {str(i): np.array(window, np.int64) for i, window in enumerate(windows)}
        reply = self._ask("score", {}, arrays, timeout_s=_SCORE_S).arrays
        nats = tuple(reply[f"nats{name}"] for name in arrays)
        return TextScore(tuple(reply["losses"].tolist()), tuple(reply[name] for name in arrays), nats)

    def first_run(self, prompt: Any, count: int) -> FreshRun:
        """Answer tokens once, right after the process began, and return what that took from its start on.

        Raises:
            EngineFailure: If the process dies.
        """
        reply = self._answer(prompt, count)
        first_ns = int(reply.values["begun_ns"]) + int(reply.arrays["at_ns"][0]) - self._begun_ns
        return FreshRun(first_ns, self._ask("peak", {}, timeout_s=_ANSWER_S).values["peak_bytes"])

    def close(self) -> None:
        """End the process."""
        if not self._is_closed:
            self._is_closed = True
            drop_program(self._worker.pid)
            self._worker.close()

    def _ask(
        self, word: str, values: Mapping[str, Any], arrays: Mapping[str, Any] | None = None, *, timeout_s: float
    ) -> Message:
        return _asked(self._worker, self.model.label, Message({"do": word, **values}, arrays or {}), timeout_s)


def prepared(model: ApartModel) -> ApartModel:
    """Return the model with the file that its engine makes of the one written for it.

    Raises:
        EngineFailure: If it makes none.
    """
    worker = Worker(module_command(_WORKER, model.engine), f"the process of {model.label}")
    try:
        message = Message({"do": "prepare", **_values_of(model.request)})
        file = type(model.request.file)(_asked(worker, model.label, message, _OPEN_S).values["file"])
    finally:
        worker.close()
    return replace(model, request=replace(model.request, file=file))


def _asked(worker: Worker, label: str, message: Message, timeout_s: float) -> Message:
    try:
        reply = worker.ask(message, timeout_s=timeout_s)
    except WorkerDeathError as error:
        said = f"; it last said: {error.last_line[:200]}" if error.last_line else ""
        raise EngineFailure(label, f"its process {error.how}{said}") from error
    if "error" in reply.values:
        raise EngineFailure(label, str(reply.values["error"]).splitlines()[0][:300])
    return reply


def _values_of(request: EngineRequest) -> dict[str, Any]:
    return {
        "file": str(request.file),
        "threads": request.threads,
        "context": request.context,
        "form": request.form,
        "work": str(request.work),
        "entries": dict(request.entries or {}),
    }
