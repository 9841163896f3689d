"""A language model that is open: its engine, its tokenizer, and the caches of the texts that it wrote last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import perf_counter_ns
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, UnavailableError, UnsupportedError
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts, shares_cache
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.executors.onnxruntime.sums import Sums, rounds_rows, try_sums
from edgeopt.graph.files.outside import sha256_of
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.recipes.texts.vocabulary import require_vocabulary
from edgeopt.runtime.decoding.generation import AnswerOptions, AnswerWishes, Generation, Writing, parts_of
from edgeopt.runtime.decoding.grammars import Grammars
from edgeopt.runtime.decoding.guessing import Guesser
from edgeopt.runtime.decoding.guessing.draft import DraftGuesser
from edgeopt.runtime.decoding.guessing.lookup import LookUp
from edgeopt.runtime.decoding.long import fitted
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.runtime.decoding.prefixes import Prefix, StoredPrefix
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.processes.closing import Closing
from edgeopt.system.text import short

_KEPT_PREFIXES = 4
"""In memory."""
_KEPT_CACHES = 2
"""Number of kept caches of answers that are over: the next prompt that begins alike goes on where they stand."""


@dataclass(frozen=True, slots=True)
class Origin:
    """From what a language model was opened."""

    file: Path
    """File of the model itself."""
    size_bytes: int
    """With weights in other files."""
    threads: int
    """Threads of the engine."""
    precision: str = ""
    """As a bundle tells it; empty: not known."""
    sha256: str = ""
    """SHA-256 of the file, where a bundle tells it."""
    notes: tuple[Note, ...] = ()
    """Why other models of the bundle do not run here, and what may not fit."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Entries of the session, where no bundle tells them: with these another process opens the same."""


class LanguageModel(Closing):
    """One decoder for any number of threads; each answer has a cache of its own, the weights are there once."""

    def __init__(
        self,
        session: OnnxRuntimeSession,
        tokenizer: Tokens,
        context: int,
        end: Sequence[int],
        begin: Sequence[int] = (),
        free_head: int = 0,
        origin: Origin | None = None,
        open_draft: Callable[[], LanguageModel] | None = None,
        guesses: int = 0,
        chunk: int = 0,
    ) -> None:
        """Bind a session to its tokenizer.

        Args:
            session: Of a decoder with a cache.
            tokenizer: Of the same model.
            context: Tokens that prompt and answer may have together.
            end: Tokens that end an answer.
            begin: Tokens before every prompt.
            free_head: Numbers of a head in the cache where the model leaves them free.
            origin: From what it was opened; None: from memory.
            open_draft: Opens the recipe's draft, once, when its first guess is wanted; None: there is none.
            guesses: Of an answer that does not say otherwise.
            chunk: Tokens of a prompt that are run at once, where an answer does not say otherwise; 0: all.

        Raises:
            UnsupportedError: If the model is no decoder with a cache, the tokenizer is another's, or a token that ends
                an answer or stands before prompts is none of the model's.
        """
        self.session, self.tokenizer, self.context = session, tokenizer, context
        self._is_closed = False
        self.origin = origin or Origin(Path(), 0, 0)
        self._end, self._begin = tuple(end), list(begin)
        self.parts = cache_parts(session.inputs, session.outputs, free_head)
        """Parts of the cache."""
        self.shares = shares_cache(session, self.parts)
        """Whether a run writes behind the past in the same memory."""
        self.pairs = self.shares and rounds_rows(session)
        """Whether parts of prompts run in pairs, so that they have the numbers of the whole."""
        vocabulary = next(output.shape[-1] for output in session.outputs if output.name == "logits")
        if not isinstance(vocabulary, int):  # the model leaves it free: one run tells
            vocabulary = self.logits([0]).shape[-1]
        named = {"ends an answer": self._end, "stands before each prompt": self._begin}
        special = tokenizer.special.values()
        notes = require_vocabulary("the tokenizer", tokenizer.size, vocabulary, special, named)
        self.origin = replace(self.origin, notes=(*self.origin.notes, *notes))
        self._vocabulary = vocabulary
        self.guesses, self.chunk = guesses, chunk
        """Guesses and chunk of an answer that does not say otherwise."""
        self.is_exact = guesses > 0
        """Whether answers are exact that do not say otherwise; see `AnswerOptions.exact`."""
        self._open_draft = open_draft
        self._draft: LanguageModel | None = None
        self._lock, self._draft_lock = Lock(), Lock()
        self._idle = list[tuple[Decoder, list[int]]]()
        self._prefixes = list[tuple[list[int], list[NDArray[Any]]]]()

    @cached_property
    def sums(self) -> Sums:
        """The order of sums that a token's numbers depend on; the first call may run some tokens."""
        return try_sums(self.session, self.parts, shares=self.shares)

    @property
    def token_bytes(self) -> int:
        """Memory that one token takes in the cache."""
        return sum(part.token_bytes for part in self.parts)

    @property
    def begins_with(self) -> int:
        """Tokens that stand before every prompt."""
        return len(self._begin)

    def close(self) -> None:
        """Free the caches and the model, its draft too."""
        self._is_closed = True
        self.forget()
        self.session.close()
        with self._draft_lock:
            draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()

    @property
    def has_draft(self) -> bool:
        """Whether a smaller model guesses, open or not yet."""
        return self._draft is not None or self._open_draft is not None

    def use_draft(self, draft: LanguageModel) -> None:
        """Let a smaller model guess, in place of the one before; it is closed with this one.

        Raises:
            UnsupportedError: If its tokens are others.
        """
        if unlike := _unlike(self.tokenizer, draft.tokenizer):
            raise UnsupportedError(
                f"the draft {draft.origin.file} has another vocabulary: {unlike}",
                remedy="take a draft that was trained with this model's tokenizer",
            )
        with self._draft_lock:
            before, self._draft = self._draft, draft
        if before is not None and before is not draft:
            before.close()

    def warm_up(self) -> None:
        """Run the model once."""
        self.logits([0])

    @with_options_of(AnswerOptions, Sampling)
    def generate(
        self, prompt: str | Sequence[int], asked: AnswerOptions | None = None, **wishes: Unpack[AnswerWishes]
    ) -> Generation:
        """Return the answer to a prompt, which is written as it is iterated over.

        Args:
            prompt: A text, or its tokens.
            asked: What the answer may be.
            wishes: Fields that differ, as `AnswerOptions.but` takes them.

        Raises:
            ValueError: If the prompt is empty, has a token that the model has not, or leaves no room for one token in
                the context; or if a wish has no such value.
            UnsupportedError: If it is to be exact, and the model cannot.
            UnavailableError: If the model is closed.
            EdgeoptError: If its draft does not open.
        """
        asked = (asked or AnswerOptions()).but(**wishes)
        asked = replace(asked, guesses=self.guesses) if asked.guesses is None else asked
        asked = replace(asked, chunk_tokens=asked.chunk_tokens or self.chunk)
        is_exact = self.is_exact if asked.exact is None else asked.exact
        if asked.exact:
            self.require_exact()
        if asked.guesses and asked.exact is None:
            self._require_same()
        in_pairs = is_exact and self.sums is Sums.PAIRED
        guesser = self.guesser(uses_draft=asked.uses_draft) if asked.guesses else None
        writing = self.begin(prompt, asked)
        return Generation(
            self._taken(writing.tokens, is_exact=in_pairs),
            writing,
            asked,
            self._give_back,
            guesser,
            joins_forced=asked.form is None or is_exact or self.sums is Sums.ALIKE,
        )

    def require_exact(self) -> None:
        """Raise where no answer can be exact, as `AnswerOptions.exact` has it.

        Raises:
            UnsupportedError: If so.
        """
        if self.sums is Sums.APART:
            raise UnsupportedError(
                "no answer of this model is exact: the numbers of a token depend on those that run with it",
                remedy="leave --exact out, or take a form with weights in blocks: w8 or w4",
            )

    def _require_same(self) -> None:
        """Raise where guesses would change the tokens that an answer has without them, and an exact one would not."""
        if not self.is_exact and self.sums is Sums.PAIRED:
            raise UnsupportedError(
                "guesses change no token of exact answers alone: this model sums single tokens otherwise than several",
                remedy="add --exact (AnswerOptions(exact=True)), with guesses and without them",
            )

    def guesser(self, *, uses_draft: bool = True) -> Guesser:
        """Return what guesses for one text: the draft where there is one and it may, else the text itself.

        Raises:
            EdgeoptError: If the draft does not open.
        """
        if not uses_draft or not self.has_draft:
            return LookUp()
        with self._draft_lock:
            if self._draft is None:
                assert self._open_draft is not None
                self._draft = self._open_draft()
            draft = self._draft
        return DraftGuesser(draft._taken, draft._give_back, self.tokenizer.size)

    def begin(self, prompt: str | Sequence[int], asked: AnswerOptions) -> Writing:
        """Return the text that an answer continues; the clock starts.

        Args:
            prompt: A text, or its tokens.
            asked: What the answer may be.

        Raises:
            ValueError: If the prompt is empty, has a token that the model has not, or leaves no room for one token in
                the context.
            UnavailableError: If the model is closed.
            UnsupportedError: If the answer cannot be kept to its form.
            MissingDependencyError: If that needs a package that is not installed.
        """
        begun_ns = perf_counter_ns()
        if self._is_closed:
            raise UnavailableError("the language model is closed", remedy="open it again")
        if asked.beams > 1:
            raise UnsupportedError("a language model searches with no beams", remedy="leave beams out")
        if not isinstance(prompt, str):
            _require_tokens(prompt, self._vocabulary)
        tokens = [*self._begin, *(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)]
        tokenize_ns = perf_counter_ns() - begun_ns
        if not tokens:
            raise ValueError("the prompt is empty")
        kept = fitted(tokens, self.context, asked, len(self._begin))
        return Writing(
            kept,
            Pieces(self.tokenizer, asked.stop, asked.shows),
            asked,
            end=self._end,
            capacity=self.context,
            begun_ns=begun_ns,
            tokenize_ns=tokenize_ns,
            cut_tokens=len(tokens) - len(kept),
            follower=self._grammars.follower(form) if (form := asked.form) else None,
        )

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self._vocabulary, self._end)

    def keep_prefix(self, prefix: str | Sequence[int], folder: str | Path | None = None) -> Prefix:
        """Keep the cache of a prefix, a system prompt for example: prompts that begin with its tokens go on behind it.

        Args:
            prefix: A text, or its tokens; prompts are its tokens and then their own, as `Prefix.before` joins them.
            folder: Where it is stored, and found by another process; None: nowhere.

        Raises:
            ValueError: If it is empty, or fills the context.
        """
        given = self.tokenizer.encode(prefix) if isinstance(prefix, str) else list(prefix)
        tokens = [*self._begin, *given]
        if not given or len(tokens) >= self.context:
            raise ValueError(
                f"a prefix of {len(tokens)} tokens in a context of {self.context}: one or more must be left"
            )
        is_stored = folder is not None and bool(self.origin.file.name)  # a model of no file has nothing to be known by
        stored = StoredPrefix(Path(folder), self._fingerprint(), tokens, self.parts) if folder and is_stored else None
        arrays, note = stored.read() if stored else (None, "")
        computed = 0
        if arrays is None:
            decoder = self._taken(tokens, is_exact=True)
            computed = len(tokens) - decoder.past
            for part in parts_of(tokens[decoder.past :], self.chunk):
                decoder.run(part, last=1)
            arrays = decoder.stored()
            self._give_back(decoder, tokens)
            note = "; ".join(filter(None, (note, stored.write(arrays) if stored else "")))
        with self._lock:
            self._prefixes = [*self._prefixes[1 - _KEPT_PREFIXES :], (tokens, arrays)]
        return Prefix(tuple(given), len(tokens), computed, note)

    def _fingerprint(self) -> str:
        """Return what tells this model from others: the hash of its file, and the state of those beside it.

        Weights may lie in files of any name, which only the graph tells: one that changes makes another model.
        """
        file = self.origin.file
        if self.origin.sha256:
            return self.origin.sha256
        facts = {path.name: path.stat() for path in sorted(file.parent.iterdir()) if path.is_file() and path != file}
        beside = [f"{name}:{fact.st_size}:{fact.st_mtime_ns}" for name, fact in facts.items()]
        return " ".join([sha256_of(file), *beside])

    def stored_start(self, tokens: Sequence[int]) -> tuple[int, list[NDArray[Any]]]:
        """Return how many first tokens of a prompt a kept prefix holds, at most all but one, and its cache."""
        most = len(tokens) - 1
        with self._lock:
            kept = [(min(common_start(held, tokens), most), arrays) for held, arrays in self._prefixes]
        return max(kept, key=lambda pair: pair[0], default=(0, []))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token of a text that begins with the first of them."""
        return self.decoder(len(tokens)).run(tokens)

    def decoder(self, capacity: int) -> Decoder:
        """Return a cache of its own for one text of up to `capacity` tokens."""
        return Decoder(self.session.engine, self.parts, capacity, shares=self.shares, pairs=self.pairs)

    def forget(self) -> None:
        """Free the caches of answers that are over, and of prefixes: the next prompt is computed whole."""
        with self._lock:
            self._idle.clear()
            self._prefixes.clear()
        if self._draft is not None:
            self._draft.forget()

    def _taken(self, tokens: Sequence[int], *, is_exact: bool = False) -> Decoder:
        """Return the cache that holds most of the prompt's first tokens; at least one is left to compute.

        Args:
            tokens: Of the prompt.
            is_exact: Whether the cache goes on with the numbers of the text run at once. What it keeps has them always:
                tokens of an answer that was not exact are computed anew, as a part of this prompt.
        """
        most = len(tokens) - 1
        with self._lock:
            shared = [min(common_start(held, tokens), most) for _, held in self._idle]
            exact = [min(count, other.exact_past) for count, (other, _) in zip(shared, self._idle, strict=True)]
            if is_exact or (shared != exact and self.sums is Sums.PAIRED):
                shared = exact
            best = max(range(len(shared)), key=shared.__getitem__, default=-1)
            decoder = self._idle.pop(best)[0] if shared else None
        past = shared[best] if shared else 0
        if decoder is None:
            decoder = self.decoder(self.context)
        decoder.is_exact = is_exact
        longest, arrays = self.stored_start(tokens)
        if longest > past:
            decoder.restore(arrays, longest)
        else:
            decoder.rewind(past)
        return decoder

    def _give_back(self, decoder: Decoder, held: list[int]) -> None:
        with self._lock:
            self._idle.append((decoder, held))
            del self._idle[:-_KEPT_CACHES]


def _require_tokens(prompt: Sequence[int], vocabulary: int) -> None:
    """Raise where a prompt has what is no token of the model.

    Raises:
        ValueError: If so.
    """
    try:
        numbers = np.asarray(prompt)
    except ValueError:  # lists of several lengths
        numbers = np.empty((1, 1))
    if not numbers.size:
        return  # told as empty
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ValueError(f"a prompt is a text, or a list of its tokens as whole numbers, not {short(prompt)}")
    wrong = numbers[(numbers < 0) | (numbers >= vocabulary)]
    if wrong.size:
        raise ValueError(f"the token {wrong[0]} of the prompt is none of the model's, 0 to {vocabulary - 1}")


def common_start(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many first tokens are the same."""
    pairs = enumerate(zip(held, tokens, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(held), len(tokens)))


def _unlike(mine: Tokens, other: Tokens) -> str:
    """Return in what two tokenizers differ; empty: the same numbers stand for the same texts."""
    if mine.size != other.size:
        return f"{other.size} tokens, the model has {mine.size}"
    for token in range(mine.size):
        ours, theirs = mine.token_bytes(token), other.token_bytes(token)
        if ours != theirs:
            return f"its token {token} is {theirs!r}, not {ours!r}"
    return ""
