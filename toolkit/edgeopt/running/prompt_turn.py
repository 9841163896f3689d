"""One prompt as tokens: a turn of a conversation where the model came with a chat template, else the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgeopt.errors import EdgeoptError, InvalidFileError, MissingDependencyError
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.chat_template import ChatMessage, ChatTemplate, read_chat_template
from edgeopt.recipes.texts.conversation import UNLIKE_WORDS, ConversationError, ConversationReader
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.runtime.decoding.prompt_plan import common_start

_RAW = "add --raw (raw=True), and the model continues the text as it is"


class PromptTurn:
    """The tokens around a prompt, and the reader of what stands between them."""

    def __init__(
        self,
        tokenizer: Tokens,
        begin: Sequence[int],
        template: ChatTemplate | None,
        system: str = "",
        *,
        mark: str = "",
    ) -> None:
        """Find the tokens around a prompt.

        Args:
            tokenizer: Of the model.
            begin: Tokens that the model puts before every prompt.
            template: Writes the turns; None: the prompt is text, which the model continues.
            system: A text before the prompt; with a template, the turn of the system.
            mark: As `ConversationReader` has it: a model that sees takes its turns in parts.

        Raises:
            EdgeoptError: If the template does not take it, or leaves the prompt or the system's text out.
        """
        self._tokenizer = tokenizer
        self._reader = ConversationReader(tokenizer, begin, template, system, mark=mark) if template else None
        self.before: list[int] = tokenizer.encode(system) if system else []
        """Tokens before every prompt, without those that the model puts there."""
        self.after: list[int] = []
        """Tokens behind every prompt: the end of its turn, and the beginning of the answer's."""
        if self._reader:
            first, second = (self.tokens_of(prompt) for prompt in UNLIKE_WORDS)
            if first == second:
                raise EdgeoptError("the model's chat template leaves the prompt out", remedy=_RAW)
            self._reader.require_system(f"write it into the prompt, or {_RAW}")
            self.before = first[: common_start(first, second)]
            self.after = first[len(first) - common_start(first[::-1], second[::-1]) :]

    def tokens_of(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt inside its turn.

        Raises:
            EdgeoptError: If the template does not take it, or it holds what ends a turn.
        """
        if self._reader is None:
            return [*self.before, *self._tokenizer.encode(prompt)]
        try:
            return self._reader.tokens_of((ChatMessage("user", prompt),))
        except ConversationError as error:
            raise EdgeoptError(str(error).replace("messages[0]", "the prompt"), remedy=_RAW) from error


def template_of(recipe: Recipe, file: Path) -> ChatTemplate | None:
    """Return the template that lies beside a model's tokenizer; None: there is none.

    Args:
        recipe: Of the model.
        file: Of the model, beside which a tokenizer lies that the recipe does not name.

    Raises:
        InvalidFileError: If the template is damaged.
        MissingDependencyError: If jinja2 is not installed, and the model has a template.
    """
    return read_chat_template((recipe.path_of(recipe.tokenizer.file) or file).parent)


def has_chat_template(recipe: Recipe, file: Path) -> bool:
    """Return whether a template that can be read lies beside a model's tokenizer, as `template_of`."""
    with suppress(EdgeoptError):
        return template_of(recipe, file) is not None
    return False


def template_of_prompt(recipe: Recipe, file: Path) -> ChatTemplate | None:
    """Return the template by which a single prompt is written, as `template_of`."""
    try:
        return template_of(recipe, file)
    except (MissingDependencyError, InvalidFileError) as error:
        raise type(error)(error.problem, remedy=f"{error.remedy}; or {_RAW}") from error
