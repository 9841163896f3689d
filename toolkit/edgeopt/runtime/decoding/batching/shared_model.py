"""A language model that several threads ask at once: their answers are written side by side."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Thread

from edgeopt.errors import EdgeoptError, UnavailableError, UnsupportedError
from edgeopt.executors.onnxruntime.rows import Rows, RowsApart, SharedRows, takes_rows
from edgeopt.executors.onnxruntime.sums import Sums, has_experts, rounds_rows, texts_are_alike
from edgeopt.executors.openvino.decoder import PagedRows
from edgeopt.recipes.texts.answer_defaults import MOST_SLOTS, SLOTS
from edgeopt.runtime.decoding.batching.batch import Batch, BatchWork
from edgeopt.runtime.decoding.batching.request import Request, SharedAnswer
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.prompt_plan import common_start
from edgeopt.system.machine.memory import free_bytes
from edgeopt.system.processes.closing import Closing
from edgeopt.system.text import format_bytes, plural

CHUNK_TOKENS, MIXED_CHUNK_TOKENS = 32, 64
"""Tokens of a prompt that run at once while others write; the latter where their next tokens are a part of the same
run, which then takes about as long as 32 tokens and theirs apart."""
_ALONE_TOKENS = 256
"""Tokens of a prompt that run at once where nobody writes and the model says nothing: whoever comes meanwhile waits for
no more."""
_MOST_OF_FREE = 0.5
"""Share of the free memory that the cache takes where nothing is said."""


_NO_ROWS = (
    "the graph cannot tell rows of different lengths apart; edgeopt export hf:FOLDER writes one that can "
    "(GroupQueryAttention)"
)
_OTHERWISE = (
    "this processor sums a text's weights in blocks otherwise beside others, which could change its tokens; blocks of "
    "32 (w4, w4+head) or of 64 in 8 bits (w8) may run together"
)
_MIXED = (
    "experts add up otherwise what several texts take of them, which could change their tokens; two experts a token in "
    "blocks of 32 (w4, w4+head) or of 64 in 8 bits (w8) may run together"
)
_EXACT = "exact answers run in pairs, which attention takes of one text at a time"


class SharedModel(Closing):
    """Slots on a language model: continuous batching. One thread writes all answers."""

    turns_told = ""
    """Why the texts take turns; empty: their next tokens are one run."""

    def __init__(
        self,
        model: LanguageModel,
        slots: int = SLOTS,
        *,
        memory_bytes: int = 0,
        chunk_tokens: int | None = None,
        exact: bool | None = None,
        token_s: float = 0.0,
    ) -> None:
        """Reserve the cache of all slots and begin to wait for requests.

        Args:
            model: It stays the caller's, and open.
            slots: Texts that are written at once, at most.
            memory_bytes: Of the cache. A request waits until there is room for its prompt and its longest answer;
                0: as much as whole contexts in all slots take, but not more than half of the free memory.
            chunk_tokens: Of a prompt that are run at once while others write, whose next token waits as long; 0: all,
                None: `CHUNK_TOKENS`, or `MIXED_CHUNK_TOKENS`.
            exact: Whether answers are exact, see `AnswerOptions.exact`; None: as the model's are alone. Where a text
                of weights in blocks would have other numbers beside others than alone, texts take turns; False: they
                share runs, which is faster, and two tokens of nearly the same likelihood may change places.
            token_s: Time between two tokens of a text that is asked for while other prompts come, which wait for it as
                long as texts can keep it; 0: prompts do not wait.

        Raises:
            ValueError: If there is no slot or more than 256, or a number is negative.
            UnavailableError: If memory does not suffice for one short answer.
            UnsupportedError: If answers are to be exact, and no answer of the model is.
        """
        if not 1 <= slots <= MOST_SLOTS or memory_bytes < 0 or (chunk_tokens or 0) < 0:
            raise ValueError(f"{slots} slots, {memory_bytes} bytes and parts of {chunk_tokens} tokens serve nobody")
        if exact:
            model.require_exact()
        self._model, self._slots = model, slots
        self._is_exact, self._is_any = model.is_exact if exact is None else exact, exact is False
        wanted = slots * model.context
        self._beside_bytes = 2 * slots * model.state_bytes  # what a run reads, and what it writes
        if model.elsewhere:
            self._beside_bytes += slots * model.elsewhere.page_bytes
        free = (memory_bytes or int(_MOST_OF_FREE * free_bytes())) - self._beside_bytes
        self._tokens = min(wanted, free // max(model.token_bytes, 1))  # a decoder without attention has no cache
        if self._tokens < 2:
            raise UnavailableError(
                f"{format_bytes(free)} hold no text: a token takes {format_bytes(model.token_bytes)} of the cache",
                remedy="give the cache more memory",
            )
        rows = self._reserved()
        self.is_together = rows.is_together
        """Whether the next tokens of several texts are one run; else they are one run each, in turns."""
        answers_stay = self._is_exact or self._is_any or not model.pairs or model.sums is not Sums.PAIRED
        alone, run_mixed = parts_alone(model), rows.run_mixed if isinstance(rows, PagedRows) else None
        if chunk_tokens is None:
            chunk_tokens = CHUNK_TOKENS if run_mixed is None else MIXED_CHUNK_TOKENS
        self._batch = Batch(
            rows,
            self._tokens,
            chunk_tokens,
            alone,
            model.stored_start,
            reuses_answers=answers_stay,
            plan=model.plan,
            token_s=token_s,
            run_mixed=run_mixed,
        )
        self._change, self._arrived = Condition(), list[Request]()
        self._expected = list[tuple[list[int], int]]()
        self._order, self._is_closed, self._forgets, self._rests = 0, False, False, False
        self._thread = Thread(target=self._write, name="edgeopt-batching", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        """Texts that are written at once, at most."""
        return self._slots

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache of all slots takes at most."""
        return self._tokens * self._model.token_bytes + self._beside_bytes

    @property
    def work(self) -> BatchWork:
        """The runs so far."""
        return self._batch.work

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do: no answer is written or waits, and nothing is computed ahead."""
        with self._change:
            return self._rests and not self._has_work()

    def generate(
        self, prompt: str | Sequence[int], asked: AnswerOptions | None = None, priority: int = 0
    ) -> SharedAnswer:
        """Return the answer to a prompt, which is being written; from any thread.

        Args:
            prompt: A text, or its tokens.
            asked: What the answer may be. Its guesses are left out: with several texts in a run they do not pay.
            priority: The higher, the sooner it gets a slot; nobody waits for ever.

        Raises:
            ValueError: If the prompt is empty, leaves no room for one token in the context, or takes more memory with
                its longest answer than the cache has.
            UnsupportedError: If it is to be exact, and runs that are shared are not.
            EdgeoptError: If it is closed.
        """
        asked = asked or AnswerOptions()
        if asked.exact:
            _require_exact(self._model, in_pairs=self._is_exact)
        writing = self._model.begin(prompt, asked)
        needs = min(self._model.context, writing.prompt_tokens + asked.most_tokens)
        if needs > self._tokens:
            raise ValueError(
                f"{plural(writing.prompt_tokens, 'prompt token')} and an answer of up to {asked.most_tokens} need "
                f"{format_bytes(needs * self._model.token_bytes)}, the cache has {format_bytes(self.cache_bytes)}"
            )
        with self._change:
            if self._is_closed:
                raise EdgeoptError("the language model is closed", remedy="open it again")
            request = Request(writing, asked, priority, self._order, needs)
            self._order += 1
            self._arrived.append(request)
            self._change.notify()
        return SharedAnswer(request)

    def expect(self, tokens: Sequence[int], behind: Sequence[int]) -> None:
        """Compute the beginning of a prompt that may come, while nobody asks; from any thread.

        Args:
            tokens: With which the next prompt of a conversation begins.
            behind: The prompt that was answered: nothing is computed where no slot holds what both begin with.
        """
        begin = self._model.begin_tokens
        held = len(begin) + common_start(tokens, behind)
        with self._change:
            self._expected.append(([*begin, *tokens], held))
            self._change.notify()

    def forget(self) -> None:
        """Drop the caches of answers that are over, before the next request: its prompt is computed whole."""
        with self._change:
            self._forgets = True
            self._change.notify()

    def close(self) -> None:
        """End all answers and free the cache; the model stays open."""
        with self._change:
            self._is_closed = True
            self._change.notify()
        self._thread.join()

    def _reserved(self) -> Rows:
        model, context = self._model, self._model.context
        count = min(self._slots, self._tokens)
        capacity = min(context, self._tokens // count)
        in_pairs = self._is_exact and model.sums is Sums.PAIRED  # which attention takes of one text at a time
        if model.elsewhere is not None:
            return model.elsewhere.rows(count, capacity, self._tokens, is_exact=in_pairs)
        engine = model.engine
        if model.shares and not in_pairs and takes_rows(engine, model.parts):
            is_alike = not rounds_rows(model.session) or self._is_any or count == 1
            is_mixed = has_experts(model.session) and model.sums is Sums.APART  # few texts show no order of experts
            if is_alike or (not is_mixed and texts_are_alike(engine, model.parts, count)):
                return SharedRows(
                    engine, model.parts, count, capacity, self._tokens, pairs=model.pairs, prefill=model.prefill
                )
            self.turns_told = _MIXED if is_mixed else _OTHERWISE
        else:
            self.turns_told = _EXACT if in_pairs else _NO_ROWS
        return RowsApart(
            engine,
            model.parts,
            count,
            capacity,
            shares=model.shares,
            pairs=model.pairs,
            is_exact=in_pairs,
            prefill=model.prefill,
        )

    def _has_work(self) -> bool:
        batch = self._batch
        return bool(
            self._arrived
            or self._expected
            or self._forgets
            or self._is_closed
            or batch.looks_ahead
            or not batch.is_idle
        )

    def _write(self) -> None:
        """Write answers until the model is closed."""
        batch, error = self._batch, None
        while True:
            with self._change:
                self._rests = True
                self._change.wait_for(self._has_work)
                self._rests = False
                if self._is_closed:
                    break
                arrived, self._arrived = self._arrived, []
                forgets, self._forgets = self._forgets, False
                expected, self._expected = self._expected, []
            for tokens, held in expected:
                batch.expect(tokens, held)
            if forgets:
                batch.forget()
            batch.waiting += arrived
            try:
                if batch.is_idle and batch.looks_ahead:
                    batch.step_ahead()
                else:
                    batch.step()
            except Exception as found:  # not of one request: nothing is known of the cache any longer
                error = found
                break
        with self._change:
            self._is_closed = True
            batch.waiting += self._arrived
            self._arrived.clear()
        batch.end_all(error)


def parts_alone(model: LanguageModel) -> int:
    """Return how many tokens of a prompt a server runs at once while nobody writes: as the model was made for."""
    return model.chunk or _ALONE_TOKENS


def _require_exact(model: LanguageModel, *, in_pairs: bool) -> None:
    """Raise unless answers in slots are exact; `in_pairs`: whether texts take turns and run in pairs where needed."""
    model.require_exact()
    if model.sums is Sums.PAIRED and not in_pairs:
        raise UnsupportedError(
            "answers in slots are not exact with this model",
            remedy="generate it on the model itself, or SharedModel(..., exact=True): texts then take turns",
        )
