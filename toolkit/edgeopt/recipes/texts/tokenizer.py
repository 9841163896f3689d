"""The table `[tokenizer]` of a recipe: how a text becomes a model's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgeopt.system.toml import Within


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A file of the package `tokenizers`, and what its tokens are cut and filled to."""

    file: str = ""
    """`tokenizer.json`, relative to the recipe; empty: the model takes no texts."""
    length: Annotated[int, Within(0, 65_536)] = 0
    """Tokens that every text is filled or cut to; 0: as many as the model's inputs have."""
    pairs: bool = False
    """Whether a text is two, with a tab between them."""
    ids: str = "input_ids"
    """Input of the tokens' numbers."""
    mask: str = "attention_mask"
    """Input with 1 where a token is and 0 where it is filled; it need not exist."""
    types: str = "token_type_ids"
    """Input with 0 for the first text of a pair and 1 for the second; it need not exist."""
    pad: str = ""
    """The token that fills; empty: the one the file names, or the usual ones."""
