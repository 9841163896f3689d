"""Models that read texts as a server holds them: text by text, or several of about one length in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from time import perf_counter_ns
from typing import Any, Final, Protocol, cast

from edgeopt.executors import Session
from edgeopt.graph.tensors import Tensors
from edgeopt.recipes.inputs.text_input import Encoded, TextInput, TextLength, fill_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.processes.closing import Closing
from edgeopt.tasks import make_task

_MOST_ROWS: Final = 32
_MOST_TOKENS: Final = 512
"""Tokens of one run, filled ones too, unless a single text has more: its numbers stay near the processor. Of an encoder
384 wide, 1,024 tokens of long texts take a tenth more each than a text of 256 alone."""
_RUN_TOKENS: Final = 12
"""Cost of a run beside its tokens, in tokens, since it reads all weights: 1.3 ms, and 0.11 ms a token, on a core of Zen
5. More filling than that costs more than it saves."""


@dataclass(frozen=True, slots=True)
class TextAnswers:
    """The answers to several texts, in their order, and what each stage took."""

    answers: list[Any]
    times_ns: Mapping[str, int]


class TextModel(Protocol):
    """A model that reads texts, from any number of threads."""

    @property
    def stages(self) -> Sequence[str]:
        """The parts of an answer."""
        ...

    def length_of(self, text: str) -> TextLength:
        """Return how much of a text the model reads."""
        ...

    def read(self, texts: Sequence[str], is_over: Callable[[], bool]) -> TextAnswers:
        """Return the answers; where it is over, because nobody waits any more, only some."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class _ReadsTexts(Protocol):
    def length_of(self, text: str) -> TextLength: ...


class BundledTexts:
    """A bundle, whose model takes one text: of a fixed length, or at its own."""

    def __init__(self, runtime: Runtime) -> None:
        """Take an open bundle, which is closed with it."""
        self._runtime, self._task, self.stages = runtime, cast("_ReadsTexts", runtime.task), runtime.stages

    def length_of(self, text: str) -> TextLength:
        """Return how much of a text the model reads."""
        return self._task.length_of(text)

    def read(self, texts: Sequence[str], is_over: Callable[[], bool]) -> TextAnswers:
        """Return the answers, one after the other."""
        answers, times_ns = list[Any](), Counter[str]()
        for text in texts:
            if is_over():
                break
            with self._runtime.begin() as work:
                work.preprocess(text)
                work.execute()
                answers.append(work.postprocess())
                taken = zip(self.stages, work.times_ns, strict=True)
                times_ns.update({name: max(took_ns, 0) for name, took_ns in taken})
        return TextAnswers(answers, times_ns)

    def close(self) -> None:
        """Free it."""
        self._runtime.close()


class TextsByLength:
    """A model that takes any number of texts of any length: those of about one length are one run."""

    def __init__(self, session: Session, recipe: Recipe, owner: Closing | None = None) -> None:
        """Take an open model.

        Args:
            session: Closed with it, where nobody else does.
            recipe: Bound to the model; it says whether texts may be filled and read together.
            owner: Closes the session: the runtime of a bundle.
        """
        self._session, self._turn, self._close = session, Lock(), (owner or session).close
        self._reads_together = fill_of(recipe.tokenizer, session.inputs) is Fill.TOGETHER
        self._input = TextInput(recipe, session.inputs)
        self._task: Any = make_task(recipe, session.inputs, session.outputs, evaluating=False)
        first, last = self._task.stages
        self.stages = (first, "execute", last)

    def length_of(self, text: str) -> TextLength:
        """Return how much of a text the model reads."""
        return self._input.length_of(text)

    def read(self, texts: Sequence[str], is_over: Callable[[], bool]) -> TextAnswers:
        """Return the answers; each run has texts of about one length, filled to the longest of them."""
        answers, times_ns = dict[int, Any](), Counter[str](dict.fromkeys(self.stages, 0))
        lengths = [self.length_of(text).tokens for text in texts]
        for places in runs_of(lengths) if self._reads_together else [[place] for place in range(len(texts))]:
            if is_over():
                break
            begun_ns = perf_counter_ns()
            tensors, encoded = self._inputs_of([texts[place] for place in places])
            fed_ns = perf_counter_ns()
            with self._turn:
                outputs = {name: value.copy() for name, value in self._session.run(tensors).items()}
            run_ns = perf_counter_ns()
            for row, place in enumerate(places):
                own = {name: value[row : row + 1] for name, value in outputs.items()}
                answers[place] = self._task.postprocess(own, encoded[row].mask)
            stamps = (begun_ns, fed_ns, run_ns, perf_counter_ns())
            times_ns.update(dict(zip(self.stages, (b - a for a, b in pairwise(stamps)), strict=True)))
        return TextAnswers([answers[place] for place in sorted(answers)], times_ns)

    def close(self) -> None:
        """Free it."""
        with self._turn:
            self._close()

    def _inputs_of(self, texts: Sequence[str]) -> tuple[Tensors, list[Encoded]]:
        """Return the inputs of a run; a text that is read by itself is filled as its recipe says."""
        if len(texts) > 1:
            return self._input.together(texts)
        tensors, encoded = self._input(texts[0])
        return tensors, [encoded]


def runs_of(lengths: Sequence[int]) -> list[list[int]]:
    """Return the places of texts that go together, neighbours in length: what runs and filled tokens cost is least."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    costs, begins = [0.0], list[int]()
    for after, place in enumerate(order, 1):  # the cheapest way to read the `after` shortest ones, by its last run
        most = max(min(_MOST_ROWS, after, _MOST_TOKENS // max(lengths[place], 1)), 1)
        begun = range(after - most, after)
        cost, begin = min((costs[i] + _RUN_TOKENS + (after - i) * lengths[place], i) for i in begun)
        costs.append(cost)
        begins.append(begin)
    runs, after = list[list[int]](), len(order)
    while after:
        runs.append(order[begins[after - 1] : after])
        after = begins[after - 1]
    return runs[::-1]
