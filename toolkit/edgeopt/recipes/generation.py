"""The table `[generation]` of a recipe: what a model that writes token after token needs beside its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgeopt.system.toml import Within

GENERATION = "generation"
"""The task of such models; it has no file in `tasks/`, whose tasks answer a sample in one run."""
_Token = Annotated[int, Within(0, 1 << 24)]


@dataclass(frozen=True, slots=True)
class Generation:
    """How texts begin and end."""

    context: Annotated[int, Within(0, 1 << 24)] = 0
    """Tokens of prompt and answer together."""
    end: tuple[_Token, ...] = ()
    """Tokens that end an answer."""
    begin: tuple[_Token, ...] = ()
    """Tokens before every prompt."""
    head: Annotated[int, Within(0, 1 << 16)] = 0
    """Numbers of one head in the cache, where the model leaves them free; 0: as the model says."""
