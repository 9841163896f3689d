"""A language model that is open: its engine, its tokenizer, and the caches of the texts that it wrote last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, UnavailableError, UnsupportedError
from edgeopt.executors._prompt_graph import PromptGraph, bind_prompt_graph
from edgeopt.executors.onnxruntime.decoder import ROOM, CachePart, cache_parts, shares_cache
from edgeopt.executors.onnxruntime.image_rows import numbers_of
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.executors.onnxruntime.state_parts import StatePart, state_parts
from edgeopt.executors.onnxruntime.stateful import decoder_of
from edgeopt.executors.onnxruntime.sums import Sums, has_experts, rounds_rows, try_sums
from edgeopt.executors.openvino.decoder import OpenVinoDecoder, TextCache
from edgeopt.graph.files.outside import sha256_of
from edgeopt.recipes.texts.seen_prompt import SeenPrompt
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.recipes.texts.vocabulary import require_vocabulary
from edgeopt.runtime.decoding.generation import AnswerOptions, AnswerWishes, Generation, Writing
from edgeopt.runtime.decoding.grammars import Grammars
from edgeopt.runtime.decoding.guessing import Guesser
from edgeopt.runtime.decoding.guessing.draft import DraftGuesser, unlike_tokens
from edgeopt.runtime.decoding.guessing.lookup import LookUp
from edgeopt.runtime.decoding.long import fitted
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.runtime.decoding.prefixes import Prefix, StoredPrefix
from edgeopt.runtime.decoding.prompt_plan import PromptPlan, common_start, require_tokens
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.processes.closing import Closing

if TYPE_CHECKING:
    from edgeopt.runtime.decoding.image_reader import Image, ImageReader, ReadPictures

_KEPT_PREFIXES = 4
"""Prefixes whose caches are kept in memory."""
_KEPT_CACHES = 2
"""Number of kept caches of answers that are over: the next prompt that begins alike goes on where they stand."""
_AHEAD_TOKENS = 32
"""Tokens that run at once of a prompt that may come: who asks meanwhile waits for no more."""


@dataclass(frozen=True, slots=True)
class Origin:
    """From what a language model was opened."""

    file: Path
    """File of the model itself."""
    size_bytes: int
    """Bytes of the model, with weights in other files."""
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
        session: OnnxRuntimeSession | OpenVinoDecoder,
        tokenizer: Tokens,
        context: int,
        end: Sequence[int],
        begin: Sequence[int] = (),
        free_head: int = 0,
        origin: Origin | None = None,
        open_draft: Callable[[], LanguageModel] | None = None,
        guesses: int = 0,
        chunk: int = 0,
        prefill: PromptGraph | None = None,
        images: ImageReader | None = None,
    ) -> None:
        """Bind a session to its tokenizer.

        Args:
            session: Of a decoder with a cache, or the decoder itself where OpenVINO holds it.
            tokenizer: Of the same model.
            context: Tokens that prompt and answer may have together.
            end: Tokens that end an answer.
            begin: Tokens before every prompt.
            free_head: Numbers of a head in the cache where the model leaves them free.
            origin: From what it was opened; None: from memory.
            open_draft: Opens the recipe's draft, once, when its first guess is wanted; None: there is none.
            guesses: Of an answer that does not say otherwise.
            chunk: Tokens of a prompt that are run at once, where an answer does not say otherwise; 0: all.
            prefill: Of the graph that computes prompts into the same cache; None: `session` does.
            images: Encodes pictures of prompts, and is closed with this; None: the model sees none.

        Raises:
            UnsupportedError: If the model is no decoder with a cache, the tokenizer is another's, or a token that ends
                an answer or stands before prompts is none of the model's.
        """
        self.session, self.tokenizer, self.context = session, tokenizer, context
        self.images = images
        """Encodes pictures of prompts; None: the model sees none."""
        self._is_closed = False
        self.origin = origin or Origin(Path(), 0, 0)
        self._end, self._begin = tuple(end), list(begin)
        self.elsewhere = elsewhere = session if isinstance(session, OpenVinoDecoder) else None
        """The decoder, where another engine than ONNX Runtime holds it."""
        self.parts = (
            elsewhere.fitted(free_head) if elsewhere else cache_parts(session.inputs, session.outputs, free_head)
        )
        """Parts of the cache."""
        self.shares = elsewhere is not None or shares_cache(session, self.parts)
        """Whether a run writes behind the past in the same memory."""
        self.states = state_parts(session.inputs, session.outputs)
        """States beside the cache, which cannot be taken back: only a whole text, or none of it, can go on."""
        self.pairs = elsewhere is not None or (self.shares and not self.states and rounds_rows(session))
        """Whether parts of prompts run in pairs, so that they have the numbers of the whole."""
        self.prefill = bind_prompt_graph(prefill, self.parts, free_head) if prefill else None
        """The graph of prompts, where it is another than that of tokens."""
        is_free = self.prefill is None or self.prefill.pairs
        self.plan = PromptPlan(self.prefill is not None, 0 if is_free else chunk or context)
        """How prompts are cut into runs."""
        self.guesses, self.chunk = guesses, chunk
        """Guesses and chunk of an answer that does not say otherwise."""
        vocabulary = next(output.shape[-1] for output in session.outputs if output.name == "logits")
        if not isinstance(vocabulary, int):  # the model leaves it free: one run tells
            vocabulary = self.logits([0]).shape[-1]
        named = {"ends an answer": self._end, "stands before each prompt": self._begin}
        special = tokenizer.special.values()
        notes = require_vocabulary("the tokenizer", tokenizer.size, vocabulary, special, named)
        self.origin = replace(self.origin, notes=(*self.origin.notes, *notes))
        self.vocabulary = vocabulary
        """Tokens that the model has logits of."""
        self.is_exact = guesses > 0
        """Whether answers are exact that do not say otherwise; see `AnswerOptions.exact`."""
        self._open_draft = open_draft
        self._draft: LanguageModel | None = None
        self._lock, self._draft_lock = Lock(), Lock()
        self._idle = list[tuple[TextCache, list[int]]]()
        self._prefixes = list[tuple[list[int], list[NDArray[Any]]]]()

    @cached_property
    def sums(self) -> Sums:
        """The order of sums that a token's numbers depend on; the first call may run some tokens."""
        return self.elsewhere.sums if self.elsewhere else try_sums(self.session, self.parts, shares=self.shares)

    @property
    def token_bytes(self) -> int:
        """Memory that one token takes in the cache."""
        return self.elsewhere.token_bytes if self.elsewhere else sum(part.token_bytes for part in self.parts)

    @property
    def engine_bytes(self) -> int:
        """Memory that other engines take for their weights beside that of the files, about."""
        graph = self.elsewhere or self.prefill  # one holds prompts and tokens, or prompts alone
        return graph.held_bytes if graph else 0

    @property
    def engine(self) -> Any:
        """ONNX Runtime's session of the decoder, where no other engine holds it."""
        assert isinstance(self.session, OnnxRuntimeSession)
        return self.session.engine

    @property
    def state_bytes(self) -> int:
        """Memory that the states of one text take, however long it is; 0: there are none."""
        return sum(part.text_bytes for part in self.states)

    @property
    def begin_tokens(self) -> list[int]:
        """Tokens that stand before every prompt."""
        return list(self._begin)

    @property
    def begins_with(self) -> int:
        """The number of tokens that stand before every prompt."""
        return len(self._begin)

    def close(self) -> None:
        """Free the caches and the model, its draft too."""
        self._is_closed = True
        self.forget()
        self.session.close()
        if self.prefill is not None:
            self.prefill.close()
        if self.images is not None:
            self.images.close()
        with self._draft_lock:
            draft, self._draft = self._draft, None
        if draft is not None:
            draft.close()

    @property
    def has_draft(self) -> bool:
        """Whether a smaller model guesses, open or not yet."""
        return self._draft is not None or self._open_draft is not None

    def opened_draft(self) -> LanguageModel | None:
        """Return the smaller model that guesses, opened by the first call; None: there is none."""
        with self._draft_lock:
            if self._draft is None and self._open_draft is not None:
                self._draft = self._open_draft()
            return self._draft

    def use_draft(self, draft: LanguageModel) -> None:
        """Let a smaller model guess, in place of the one before; it is closed with this one.

        Raises:
            UnsupportedError: If its tokens are others.
        """
        if unlike := unlike_tokens(self.tokenizer, draft.tokenizer):
            raise UnsupportedError(
                f"the draft {draft.origin.file} has another vocabulary: {unlike}",
                remedy="take a draft that was trained with this model's tokenizer",
            )
        if draft.states:
            raise UnsupportedError(
                f"the draft {draft.origin.file} has states, which cannot take a wrong guess back",
                remedy="take a draft with keys and values alone",
            )
        with self._draft_lock:
            before, self._draft = self._draft, draft
        if before is not None and before is not draft:
            before.close()

    def warm_up(self) -> None:
        """Run the model once, both of its graphs where it has two."""
        self.logits([0] * 4 if self.plan.is_split else [0])

    @with_options_of(AnswerOptions, Sampling)
    def generate(
        self,
        prompt: str | Sequence[int],
        asked: AnswerOptions | None = None,
        images: Sequence[Image] = (),
        **wishes: Unpack[AnswerWishes],
    ) -> Generation:
        """Return the answer to a prompt, which is written as it is iterated over.

        Args:
            prompt: A text, or its tokens.
            asked: What the answer may be.
            images: Pictures that the text is about, as `ImageReader.prompt` places them: paths, or arrays (height,
                width, 3) BGR of uint8.
            wishes: Fields that differ, as `AnswerOptions.but` takes them.

        Raises:
            ValueError: If the prompt is empty, has a token that the model has not, or leaves no room for one token in
                the context; or if a wish has no such value.
            UnsupportedError: If it is to be exact, and the model cannot.
            UnavailableError: If the model is closed.
            EdgeoptError: If its draft does not open, or a picture cannot be read.
        """
        asked = (asked or AnswerOptions()).but(**wishes)
        if len(images):
            prompt = self.seen(prompt, images)
        asked = replace(asked, guesses=self.guesses) if asked.guesses is None else asked
        asked = replace(asked, chunk_tokens=asked.chunk_tokens or self.chunk)
        is_exact = self.is_exact if asked.exact is None else asked.exact
        if asked.exact:
            self.require_exact()
        if asked.guesses:
            self.require_takes_back()
        if asked.guesses and asked.exact is None:
            self._require_same()
        in_pairs = is_exact and self.sums is Sums.PAIRED
        uses_draft = asked.uses_draft and not isinstance(prompt, SeenPrompt)  # which sees no pictures
        guesser = self.guesser(uses_draft=uses_draft) if asked.guesses else None
        writing = self.begin(prompt, asked)
        return Generation(
            self._taken(writing.tokens, asked.most_tokens + (asked.guesses or 0), is_exact=in_pairs),
            writing,
            asked,
            self._give_back,
            guesser,
            joins_forced=asked.form is None or is_exact or self.sums is Sums.ALIKE,
            plan=self.plan,
        )

    def seen(self, prompt: str | Sequence[int], images: Sequence[Image]) -> SeenPrompt:
        """Return a prompt with pictures, as `ImageReader.prompt` writes it.

        Raises:
            UnsupportedError: If the model sees no pictures.
            ValueError: If the prompt is no text, or the pictures do not fit it.
            EdgeoptError: If a picture, or the template of the model, cannot be read.
        """
        reader = self.require_images()
        if not isinstance(prompt, str):
            raise ValueError("pictures stand in a text; of tokens nobody knows where")
        return reader.prompt(prompt, images)

    def require_images(self) -> ImageReader:
        """Return the encoder of pictures.

        Raises:
            UnsupportedError: If the model sees none.
        """
        if self.images is None:
            raise UnsupportedError(
                "this language model sees no pictures: it was exported without an encoder for them",
                remedy="leave the pictures out, or export one that sees (SmolVLM, Qwen-VL): edgeopt export hf:FOLDER",
            )
        return self.images

    def require_takes_back(self) -> None:
        """Raise where tokens cannot be taken out of the cache again.

        Raises:
            UnsupportedError: If so.
        """
        if self.states:
            raise UnsupportedError(
                "a wrong guess cannot be taken back: this model has states beside keys and values",
                remedy="leave guesses out (--guesses 0)",
            )

    def require_exact(self) -> None:
        """Raise where no answer can be exact, as `AnswerOptions.exact` has it.

        Raises:
            UnsupportedError: If so.
        """
        if self.sums is Sums.APART:
            has_no_other = self.elsewhere or has_experts(self.session)
            more = "" if has_no_other else ", or take a form with weights in blocks: w8 or w4"
            raise UnsupportedError(
                "no answer of this model is exact: the numbers of a token depend on those that run with it",
                remedy=f"leave --exact out{more}",
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
        draft = self.opened_draft() if uses_draft else None
        return DraftGuesser(draft._taken, draft._give_back, self.tokenizer.size) if draft else LookUp()

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
            require_tokens(prompt, self.vocabulary)
        tokens = [*self._begin, *(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)]
        tokenize_ns = perf_counter_ns() - begun_ns
        if not tokens:
            raise ValueError("the prompt is empty")
        count, read = len(tokens), self._read_pictures(prompt) if isinstance(prompt, SeenPrompt) else None
        kept = [*self._begin, *read.tokens] if read else fitted(tokens, self.context, asked, len(self._begin))
        writing = Writing(
            kept,
            Pieces(self.tokenizer, asked.stop, asked.shows),
            asked,
            end=self._end,
            capacity=self.context,
            begun_ns=begun_ns,
            tokenize_ns=tokenize_ns,
            cut_tokens=count - len(kept),
            begins=len(self._begin),
            follower=self._grammars.follower(form) if (form := asked.form) else None,
        )
        if read is not None:
            writing.count(
                encode_ns=read.encode_ns,
                image_rows=read.rows,
                images=len(prompt.pictures) if isinstance(prompt, SeenPrompt) else 0,
                encoded_images=read.encoded,
            )
        return writing

    def _read_pictures(self, prompt: SeenPrompt) -> ReadPictures:
        """Return the tokens of a prompt with the rows of its pictures; one that does not fit is not encoded first."""
        reader = self.require_images()
        length = len(self._begin) + len(prompt)
        if length >= self.context:
            raise ValueError(
                f"the prompt has {length} tokens with its pictures, the context {self.context}: nothing could follow; "
                "pictures are never cut"
            )
        return reader.read(prompt)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.vocabulary, self._end)

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
        held = tokens[: self.plan.reusable(len(tokens))]
        if not held:
            note = f"nothing of {len(tokens)} tokens is kept: prompts run in parts of {self.plan.grain}"
            return Prefix(tuple(given), 0, 0, note)
        tokens = held
        is_stored = folder is not None and bool(self.origin.file.name)  # a model of no file has nothing to be known by
        memory: list[CachePart | StatePart] = [*self.parts, *self.states]
        stored = StoredPrefix(Path(folder), self._fingerprint(), tokens, memory) if folder and is_stored else None
        arrays, note = stored.read() if stored else (None, "")
        computed = 0
        if arrays is None:
            decoder = self._taken(tokens, is_exact=True)
            computed = len(tokens) - decoder.past
            for part in self.plan.filling(tokens, decoder.past, self.chunk):
                decoder.run_prompt(part, is_end=False)
            arrays = decoder.stored()
            self._give_back(decoder, tokens)
            note = "; ".join(filter(None, (note, stored.write(arrays) if stored else "")))
        with self._lock:
            self._prefixes = [*self._prefixes[1 - _KEPT_PREFIXES :], (tokens, arrays)]
        return Prefix(tuple(given), len(tokens), computed, note)

    def expect(self, tokens: Sequence[int], is_wanted: Callable[[], bool] = lambda: True) -> int:
        """Compute the beginning of a prompt that may come, so that its first token need not wait for it.

        Args:
            tokens: With which the next prompt begins: of a conversation all that was said, the last answer too, whose
                own tokens may have other numbers in the cache than those of a prompt (`AnswerOptions.exact`).
            is_wanted: Asked before each part; what is computed by then is kept.

        Returns:
            How many tokens were computed.

        Raises:
            ValueError: If it has a token that the model has not, or fills the context.
            UnavailableError: If the model is closed.
        """
        if self._is_closed:
            raise UnavailableError("the language model is closed", remedy="open it again")
        require_tokens(tokens, self.vocabulary)
        whole = [*self._begin, *tokens]
        if not tokens or len(whole) >= self.context:
            raise ValueError(f"{len(whole)} tokens in a context of {self.context}: one or more must be left")
        held = whole[: self.plan.reusable(len(whole))]
        if not held or not is_wanted():
            return 0
        decoder = self._taken(held, is_exact=not self.states)
        begun = decoder.past
        try:
            for part in self.plan.filling(held, begun, _AHEAD_TOKENS):
                if not is_wanted():
                    break
                decoder.run_prompt(part, is_end=False)
        finally:
            self._give_back(decoder, held[: decoder.past])
        return decoder.past - begun

    def _fingerprint(self) -> str:
        """Return what tells this model from others: the hash of its file, the state of those beside it, and the engine.

        Weights may lie in files of any name, and engines round differently: a change makes another model.
        """
        file, engine = self.origin.file, type(self.elsewhere or self.prefill).__name__
        if self.origin.sha256:
            return f"{self.origin.sha256} {engine}"
        facts = {path.name: path.stat() for path in sorted(file.parent.iterdir()) if path.is_file() and path != file}
        beside = [f"{name}:{fact.st_size}:{fact.st_mtime_ns}" for name, fact in facts.items()]
        return " ".join([sha256_of(file), *beside, engine])

    def stored_start(self, tokens: Sequence[int]) -> tuple[int, list[NDArray[Any]]]:
        """Return how many first tokens of a prompt a kept prefix holds, at most all but one, and its cache."""
        most = len(tokens) - 1
        with self._lock:
            shared = [(min(common_start(held, tokens), most), held, arrays) for held, arrays in self._prefixes]
        if self.states:
            shared = [entry for entry in shared if entry[0] == len(entry[1])]
        kept = [(self.plan.reusable(count), arrays) for count, _, arrays in shared]
        return max(kept, key=lambda pair: pair[0], default=(0, []))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token of a text that begins with the first of them.

        Of two graphs that of prompts has none: the first half is the prompt, and the other tokens come one by one, as
        those of an answer. The rows are those behind the prompt and behind each of them.
        """
        decoder = self.decoder(len(tokens))
        if not self.plan.is_split:
            return decoder.run(tokens)
        count = max(len(tokens) // 2, 1)
        rows = [self.run_prompt(decoder, tokens[:count]), *(decoder.run([token]) for token in tokens[count:])]
        return np.concatenate(rows)

    def run_prompt(self, decoder: TextCache, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Run a prompt on an empty cache as an answer does; return (1, vocabulary) logits behind it."""
        *before, end = self.plan.parts(tokens, 0, self.chunk)
        for part in before:
            decoder.run_prompt(part, is_end=False)
        return decoder.run_prompt(end, is_end=True)

    def decoder(self, capacity: int, room: int = 0) -> TextCache:
        """Return a cache of its own for one text of up to `capacity` tokens.

        Args:
            capacity: At most.
            room: Tokens for which memory is reserved at first; 0: all.
        """
        if self.elsewhere is not None:
            return self.elsewhere.text(capacity, room)
        return decoder_of(
            self.engine, self.parts, capacity, self.prefill, shares=self.shares, pairs=self.pairs, room=room
        )

    def forget(self) -> None:
        """Free the caches of answers that are over, and of prefixes: the next prompt is computed whole."""
        with self._lock:
            self._idle.clear()
            self._prefixes.clear()
        if self.images is not None:
            self.images.forget()
        if self._draft is not None:
            self._draft.forget()

    def _taken(self, tokens: Sequence[int], more: int = 0, *, is_exact: bool = False) -> TextCache:
        """Return the cache that holds most of the prompt's first tokens; at least one is left to compute.

        Args:
            tokens: Of the prompt.
            more: Tokens that may follow, for which memory is reserved now, and not while they are waited for.
            is_exact: Whether the cache goes on with the numbers of the text run at once. What it keeps has them always:
                tokens of an answer that was not exact, or that another graph than that of prompts computed, are
                computed anew, as a part of this prompt.
        """
        most, needed = len(tokens) - 1, len(tokens) + more + 1  # the copy behind an odd number of tokens
        with self._lock:
            shared = [min(common_start(held, tokens), most) for _, held in self._idle]
            exact = [min(count, other.exact_past) for count, (other, _) in zip(shared, self._idle, strict=True)]
            if is_exact or self.plan.is_split or (shared != exact and self.sums is Sums.PAIRED):
                shared = [self.plan.reusable(count) for count in exact]
            shared = [other.reusable(count) for count, (other, _) in zip(shared, self._idle, strict=True)]
            best = max(range(len(shared)), key=shared.__getitem__, default=-1)
            decoder = self._idle.pop(best)[0] if shared else None
        past = shared[best] if shared else 0
        if decoder is None:
            decoder = self.decoder(self.context, -(-needed // ROOM) * ROOM)
        decoder.is_exact = is_exact
        longest, arrays = self.stored_start(tokens)
        if longest > past:
            decoder.restore(arrays, longest)
        else:
            decoder.rewind(past)
        decoder.make_room(needed)
        return decoder

    def _give_back(self, decoder: TextCache, held: list[int]) -> None:
        if self._is_closed:
            return
        with self._lock:
            self._idle.append((decoder, numbers_of(held) if self.images is not None else held))
            del self._idle[:-_KEPT_CACHES]
