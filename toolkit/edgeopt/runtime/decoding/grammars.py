"""Answers that keep to a form: JSON by a schema, a regular expression, or a grammar.

The package `llguidance` says which tokens may follow a text, in microseconds a token and without anything that it needs
besides. `xgrammar`, the other one that is kept, imports torch and writes strings that are no JSON
(`benchmarks/grammar_packages.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.system.declared.optional import require
from edgeopt.system.text import short

SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written in one way: a model that may write blanks between its parts can write blanks without an end."""
_REMEDY = "https://json-schema.org/understanding-json-schema says what a schema may hold; GBNF is llama.cpp's form"
_MOST_BYTES = 1 << 20


_JOINING = ("allOf", "$ref", "unevaluatedProperties", "if")
"""Words of a schema by which several schemas say what one object holds."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer."""

    kind: str
    """`schema`, `regex`, `grammar`."""
    text: str
    """A JSON schema, a regular expression, or a grammar in Lark's or llama.cpp's words (GBNF)."""


def form_of(schema: str | Mapping[str, Any] | bool | None, regex: str, grammar: str) -> AnswerForm | None:
    """Return the form that an answer is asked for; None: any.

    Args:
        schema: A JSON schema, as an object or as text; True: any JSON object.
        regex: A regular expression; empty: none.
        grammar: A grammar; empty: none.

    Raises:
        ValueError: If several are asked for, or one is too long or none at all.
    """
    forms = list[AnswerForm]()
    if schema is not None and schema is not False:
        forms.append(AnswerForm("schema", _schema_text(schema)))
    forms += [AnswerForm(kind, text) for kind, text in (("regex", regex), ("grammar", grammar)) if text]
    if len(forms) > 1:
        raise ValueError(f"an answer has one form: {' or '.join(form.kind for form in forms)}, not both")
    if forms and len(forms[0].text) > _MOST_BYTES:
        raise ValueError(f"the {forms[0].kind} is longer than 1 MiB")
    return forms[0] if forms else None


def _schema_text(schema: str | Mapping[str, Any] | bool) -> str:
    if schema is True:
        return '{"type": "object"}'
    try:
        read = json.loads(schema) if isinstance(schema, str) else dict(schema) if isinstance(schema, Mapping) else None
        text = json.dumps(closed_schema(read), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"schema is no JSON schema: {short(str(error))}") from error
    if not isinstance(read, dict):
        raise ValueError("schema is no JSON schema: it must be an object such as {'type': 'object'}")
    return text


def closed_schema(schema: Any) -> Any:
    """Return a schema whose objects have no names but those that it lists, unless it says so, or schemas are joined."""
    return schema if _joins(schema) else _closed(schema)


def _joins(schema: Any) -> bool:
    """Return whether several schemas say together what an object holds: none of them alone knows all of its names."""
    if isinstance(schema, list):
        return any(map(_joins, schema))
    return isinstance(schema, dict) and (any(word in schema for word in _JOINING) or any(map(_joins, schema.values())))


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no names but those that it lists, unless it says so.

    A model that may add names adds them without an end; who asks for an answer wants those that he named.
    """
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    is_object = isinstance(schema.get("properties"), dict) and "patternProperties" not in schema
    return {**closed, "additionalProperties": False} if is_object and "additionalProperties" not in schema else closed


class FormError(UnsupportedError):
    """A form that is none, or that no answer can be kept to."""


class Grammars:
    """Makes followers of texts for one tokenizer. Threads share it."""

    def __init__(self, tokens: Tokens, vocabulary: int, end: Sequence[int]) -> None:
        """Read all tokens.

        Args:
            tokens: The tokenizer.
            vocabulary: Numbers of the model's logits.
            end: Tokens that end an answer, one or more.

        Raises:
            MissingDependencyError: If llguidance is not installed.
        """
        self._package = require("llguidance", extra="grammar", purpose="an answer by a schema or a grammar")
        count = max(vocabulary, tokens.size, *(number + 1 for number in (*tokens.special.values(), *end)))
        if not end:  # a number that no logits have: the form itself ends the answer
            end, count = (count,), count + 1
        wrapped = self._package.TokenizerWrapper(_Vocabulary(tokens, count, end))
        self._tokenizer = self._package.LLTokenizer(wrapped, n_vocab=count, eos_token=[*end])
        self._vocabulary = vocabulary

    def follower(self, form: AnswerForm) -> Follower:
        """Return what follows one text.

        Raises:
            FormError: If it is none, or none that can be kept to.
        """
        matcher = self._package.LLMatcher(self._tokenizer, self._compiled(form), log_level=0)
        if matcher.is_error():
            raise _refused(form, matcher.get_error())
        may_begin = any(matcher.compute_bitmask())  # a rule of itself alone is compiled, and no text fits it
        if matcher.is_error() or not may_begin:
            raise FormError(f"the {form.kind} cannot be kept to: no text fits it", remedy=_REMEDY)
        return Follower(matcher, self._vocabulary)

    def _compiled(self, form: AnswerForm) -> str:
        matcher = self._package.LLMatcher
        try:
            if form.kind == "schema":
                text: str = matcher.grammar_from_json_schema(form.text, overrides=SEPARATORS)
            elif form.kind == "regex":
                text = matcher.grammar_from_regex(form.text)
            else:
                is_gbnf = "::=" in form.text
                text = matcher.grammar_from_lark(
                    self._package.gbnf_to_lark.any_to_lark(form.text) if is_gbnf else form.text
                )
        except Exception as error:  # the package raises what its parts do
            raise _refused(form, str(error)) from error
        return text


def _refused(form: AnswerForm, why: str) -> FormError:
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    return FormError(f"the {form.kind} cannot be kept to: {short(lines[0] if lines else 'no reason')}", remedy=_REMEDY)


class _Vocabulary:
    """A tokenizer in the words of llguidance."""

    def __init__(self, tokens: Tokens, count: int, end: Sequence[int]) -> None:
        special = {*tokens.special.values(), *end}
        names = {number: name for name, number in tokens.special.items()}
        self.tokens = [
            (names.get(number) or f"<{number}>").encode() if number in special else tokens.token_bytes(number)
            for number in range(count)
        ]
        self.special_token_ids, self.bos_token_id, self.eos_token_id = sorted(special), None, end[0]
        self._encode = tokens.encode

    def __call__(self, text: str) -> list[int]:
        """Return tokens that write this text and nothing else: the package takes them without comparing.

        A vocabulary may lack bytes, and a tokenizer may put a space before every text. Such texts are cut into the
        longest tokens; what no token writes is left out, and the follower says that it cannot go on there.
        """
        tokens, written = self._encode(text), text.encode()
        return tokens if b"".join(self.tokens[token] for token in tokens) == written else self._longest(written)

    def _longest(self, written: bytes) -> list[int]:
        tokens, place = list[int](), 0
        while place < len(written):
            ends = range(min(len(written), place + self._most_bytes), place, -1)
            end = next((end for end in ends if written[place:end] in self._by_bytes), None)
            if end is None:
                break
            tokens.append(self._by_bytes[written[place:end]])
            place = end
        return tokens

    @cached_property
    def _by_bytes(self) -> Mapping[bytes, int]:
        special = {*self.special_token_ids}
        return {token: number for number, token in enumerate(self.tokens) if token and number not in special}

    @cached_property
    def _most_bytes(self) -> int:
        return max(map(len, self._by_bytes), default=0)


class Follower:
    """Follows one answer token by token, and says what may come next."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        """Begin before the first token.

        Args:
            matcher: An `llguidance.LLMatcher`.
            vocabulary: Numbers of the logits.
        """
        self._matcher, self._vocabulary = matcher, vocabulary
        self._done = list[int]()
        self._bits: bytes | None = None
        """The mask behind `_done`; None: not computed."""

    def behind(self, answer: Sequence[int]) -> Follower:
        """Go behind the last token of an answer, and return the follower, which tells what may come next there."""
        self._go_to(answer)
        return self

    def accepts(self, token: int) -> bool:
        """Return whether a token may come next.

        One bit of the mask tells: all of them take as long to unpack and to lay over logits as the mask itself. Whether
        the package would consume the token is another question: where the form forces the next bytes, the mask has the
        usual token of them alone, and the package consumes any that they begin with.

        Raises:
            EdgeoptError: If none may, as the form became too complex.
        """
        return bool(self._mask()[token >> 3] >> (token & 7) & 1)

    def allowed(self) -> NDArray[np.bool_]:
        """Return (vocabulary,) which tokens may come next, one or more.

        Raises:
            EdgeoptError: If none may, as the form became too complex.
        """
        bits = np.frombuffer(self._mask(), np.uint8)
        may_follow = np.unpackbits(bits, bitorder="little")[: self._vocabulary].view(np.bool_)
        if not may_follow.any():
            raise self._stuck()
        return may_follow

    def _mask(self) -> bytes:
        """Return a bit for each token, which says whether it may come next; computed once at each place."""
        if self._bits is None:
            self._bits = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise self._stuck()
        return self._bits

    def _stuck(self) -> EdgeoptError:
        said = self._matcher.get_error().partition("\n")[0]
        why = "no token of this model continues the answer" if said in ("", "NoExtensionBias") else short(said)
        return EdgeoptError(f"the answer cannot go on in its form: {why}", remedy="ask for a simpler form")

    def forced(self, answer: Sequence[int]) -> list[int]:
        """Return the tokens that follow an answer whatever the model says.

        Raises:
            EdgeoptError: If the answer has left its form, or the form became too complex.
        """
        self._go_to(answer)
        forced: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            raise self._stuck()
        return forced

    def is_whole(self, answer: Sequence[int]) -> bool:
        """Return whether nothing may follow an answer but its end.

        Raises:
            EdgeoptError: If the answer has left its form, or the form became too complex.
        """
        self._go_to(answer)
        is_over = bool(self._matcher.is_stopped())
        if is_over and self._matcher.is_error():  # which the package counts as an end
            raise self._stuck()
        return is_over

    def _go_to(self, answer: Sequence[int]) -> None:
        """Consume what is new in an answer, after taking back what is not in it: guesses that were wrong.

        Raises:
            EdgeoptError: If a token may not follow; the follower is of no more use.
        """
        done = self._done
        if answer[: len(done)] != done:
            pairs = enumerate(zip(done, answer, strict=False))
            shared = next((i for i, (a, b) in pairs if a != b), min(len(done), len(answer)))
            self._matcher.rollback(len(done) - shared)
            self._bits = None
            del done[shared:]
        for token in answer[len(done) :]:
            if not self._matcher.consume_token(token):
                raise self._stuck()
            self._bits = None
            done.append(token)
