"""A language model that answers a prompt, for a person: its text as it comes, and what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import find_model
from edgeopt.recipes.generation import GENERATION
from edgeopt.runtime.decoding.generation import Account, Asked, Piece
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.system.text import plural
from edgeopt.system.threads import engine_threads


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """What an answer took."""

    model: str
    account: Account

    def __str__(self) -> str:
        account = self.account
        count = len(account.token_at_ns)
        told = [plural(count, "token"), f"{account.prompt_tokens} of the prompt"]
        if account.ttft_ms is not None:
            told.append(f"TTFT {account.ttft_ms:.1f} ms")
        if account.tpot_ms:
            told.append(f"TPOT {account.tpot_ms:.2f} ms ({1e3 / account.tpot_ms:.0f} tokens/s)")
        if account.runs and account.runs + 1 < count:
            told.append(f"{plural(account.runs, 'run')} after the prompt, thanks to guesses")
        return f"{', '.join(told)}; ended by {account.reason}"


def find_language_model(name: str) -> Path:
    """Return the ONNX file of a shipped model, of a folder that `export` wrote, or the file itself.

    Raises:
        NotFoundError: If there is none.
    """
    folder = Path(name)
    if not folder.is_dir():
        return find_model(name)
    for inside in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
        if inside.is_file():
            return inside
    return find_model(name)


def is_language_model(name: str) -> bool:
    """Return whether a name is of a model whose recipe, beside it, says that it writes token after token."""
    try:
        return recipe_beside(find_language_model(name)).task == GENERATION
    except (EdgeoptError, OSError):
        return False  # the command itself says what is wrong


def write_answer(model: str, prompt: str, asked: Asked, hear: Callable[[Piece], None], threads: int) -> WrittenResult:
    """Answer one prompt.

    Args:
        model: Shipped name, ONNX file or folder.
        prompt: A text.
        asked: What the answer may be.
        hear: Called with each token.
        threads: Of the engine; 0: the default.

    Raises:
        EdgeoptError: If it is no language model, or the prompt is empty or too long for its context.
    """
    opened, recipe = open_language_model(find_language_model(model), engine_threads(threads))
    with opened:
        try:
            answer = opened.generate(prompt, asked)
        except ValueError as error:
            raise EdgeoptError(str(error), remedy="give a prompt that leaves room for an answer") from error
        with answer:
            try:
                for piece in answer:
                    hear(piece)
            except KeyboardInterrupt:
                answer.cancel()
    return WrittenResult(recipe.name, answer.account)
