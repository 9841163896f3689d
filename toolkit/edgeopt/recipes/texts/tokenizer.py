"""The table `[tokenizer]` of a recipe: how a text becomes a model's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from edgeopt.system.toml import Within


class Fill(StrEnum):
    """The length to which short texts are filled."""

    USUAL = "usual"
    """`together` where the model takes any number of texts of any length, and a mask; else `length`."""
    LENGTH = "length"
    """Every text is filled to the length of the recipe."""
    ALONE = "alone"
    """Nothing is filled: each text is read by itself, at its own length."""
    TOGETHER = "together"
    """A text that is read by itself is not filled; several of one run are filled to the longest of them."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A file of the package `tokenizers`, and what its tokens are cut and filled to."""

    file: str = ""
    """`tokenizer.json`, relative to the recipe; empty: the model takes no texts."""
    length: Annotated[int, Within(0, 65_536)] = 0
    """Tokens that every text is cut to, and filled to as `fill` says; 0: as many as the model's inputs have."""
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
    fill: Fill = Fill.USUAL
    """The length to which short texts are filled; of a model that takes texts of one length always that."""
