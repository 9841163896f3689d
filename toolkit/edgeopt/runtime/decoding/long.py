"""Prompts that are longer than the context: cut where that is asked for, summarised where that is, else refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.runtime.decoding.generation import AnswerOptions, Generation, Long

REMEDY = "shorten it; or cut its head, middle or tail, or summarise it, with --long (AnswerOptions.long in an app)"
_BEFORE, _AFTER = "Summarise this text:\n\n", "\n\nSummary:\n"
_SHORTER = 4
"""Times shorter than its part a summary is at most."""
_MOST_ROUNDS = 8
_CUTS = (Long.HEAD, Long.MIDDLE, Long.TAIL)


def fitted(tokens: Sequence[int], context: int, asked: AnswerOptions, begins: int) -> list[int]:
    """Return the tokens of a prompt, cut as asked where they fill the context; room for the answer stays.

    Args:
        tokens: Of the prompt, with those before every prompt.
        context: Tokens of prompt and answer together.
        asked: What is cut, and what never is.
        begins: Tokens before every prompt, which are never cut.

    Raises:
        ValueError: If they fill the context and nothing may be cut, or what may not be cut fills it.
    """
    if len(tokens) < context:
        return list(tokens)
    kept, end = begins + asked.keep, len(tokens) - asked.keep_last
    space = context - min(asked.most_tokens, context // 2) - kept - asked.keep_last
    if asked.long not in _CUTS or space < 1:
        raise ValueError(f"the prompt has {len(tokens)} tokens, the context {context}: nothing could follow")
    return [*tokens[:kept], *_cut(tokens[kept:end], space, asked.long), *tokens[end:]]


def fitted_text(tokens: Sequence[int], room: int, long: Long) -> list[int]:
    """Return the tokens of a text that an encoder reads, cut as asked where they do not fit.

    Args:
        tokens: Of the text.
        room: Tokens that are read.
        long: What is cut.

    Raises:
        EdgeoptError: If they do not fit, and nothing may be cut.
    """
    if len(tokens) <= room:
        return list(tokens)
    if long not in _CUTS:
        raise EdgeoptError(
            f"the text has {len(tokens)} tokens, the model reads {room}",
            remedy="pass a shorter text; or cut its head, middle or tail with --long (AnswerOptions.long in an app)",
        )
    return _cut(tokens, room, long)


def _cut(tokens: Sequence[int], room: int, long: Long) -> list[int]:
    first = {Long.HEAD: 0, Long.MIDDLE: room // 2, Long.TAIL: room}[long]
    return [*tokens[:first], *tokens[len(tokens) - (room - first) :]]


class PromptWriter(Protocol):
    """A model that answers prompts."""

    tokenizer: Tokens
    context: int

    @property
    def begins_with(self) -> int:
        """Tokens before every prompt."""
        ...

    def generate(self, prompt: Sequence[int], asked: AnswerOptions) -> Generation:
        """Return the answer to a prompt."""
        ...


def summarised(
    model: PromptWriter,
    text: str,
    room: int,
    tell: Callable[[int, int], None] = lambda *_: None,
    around: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> tuple[str, int]:
    """Return a text that fits, summarised in parts by the model itself, again and again where it has to be.

    Args:
        model: Its summaries are as good as it is.
        text: Any; one that fits comes back as it is.
        room: Tokens that it may have.
        tell: Hears which part of how many is summarised.
        around: Tokens before and behind each prompt that asks for a summary: those of a turn, for a model that was
            trained on conversations.

    Returns:
        The text, and how many tokens were summarised.

    Raises:
        EdgeoptError: If it does not fit after 8 rounds, or the context has no room for a part of it.
    """
    taken, encode = 0, model.tokenizer.encode
    before, after = [*around[0], *encode(_BEFORE)], [*encode(_AFTER), *around[1]]
    size = (model.context - model.begins_with - len(before) - len(after)) * _SHORTER // (_SHORTER + 1)
    for _ in range(_MOST_ROUNDS):
        tokens = encode(text)
        if len(tokens) <= room:
            return text, taken
        if size < _SHORTER:
            raise EdgeoptError(
                f"a context of {model.context} tokens has no room for a part of the text and the words that ask for "
                "its summary",
                remedy="a larger --context, or a shorter text",
            )
        taken += len(tokens)
        parts = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        found = list[str]()
        for i, part in enumerate(parts):
            tell(i, len(parts))
            asked = AnswerOptions(most_tokens=max(1, len(part) // _SHORTER))
            with model.generate([*before, *part, *after], asked) as answer:
                found.append(answer.text().strip())
        tell(len(parts), len(parts))
        text = "\n".join(found)
    raise EdgeoptError(f"the text does not fit into {room} tokens, summarised again and again", remedy="shorten it")
