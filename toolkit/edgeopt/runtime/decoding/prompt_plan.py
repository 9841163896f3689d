"""How the tokens of a prompt are cut into runs, so that the same prompt has the same numbers however it came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edgeopt.system.text import short


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The runs of prompts on one graph, or on two."""

    is_split: bool = False
    """Whether a graph of its own computes prompts, all but their last token."""
    grain: int = 0
    """Tokens of each run of that graph, counted from the first of the prompt, where a token's numbers depend on those
    that run with it; 0: any number."""

    def reusable(self, count: int) -> int:
        """Return how many of so many first tokens, computed for another prompt, have the numbers of this one's."""
        return count - count % self.grain if self.grain else count

    def kept(self, fixed: int, prompt_tokens: int) -> int:
        """Return how many of the tokens that a shift leaves in place keep their numbers.

        Args:
            fixed: Tokens that stay where they are.
            prompt_tokens: Of the prompt, whose last one ran as one of the answer where there are two graphs.
        """
        return self.reusable(min(fixed, prompt_tokens - self.is_split))

    def parts(self, tokens: Sequence[int], past: int, most: int) -> list[Sequence[int]]:
        """Return the parts of a prompt that are left to run; the last one ends it.

        Args:
            tokens: The whole prompt.
            past: Tokens that the cache holds, fewer than all; `reusable` where it is another prompt's.
            most: Tokens of a part, as far as they are free to choose; 0: all.
        """
        if not self.is_split:
            return parts_of(tokens[past:], most)
        return [*self.filling(tokens[:-1], past, most), tokens[-1:]]

    def filling(self, tokens: Sequence[int], past: int, most: int) -> list[Sequence[int]]:
        """Return the parts of tokens behind which more of a prompt follow."""
        if not self.grain:
            return parts_of(tokens[past:], most)
        limits = [past, *range(past - past % self.grain + self.grain, len(tokens), self.grain), len(tokens)]
        return [tokens[start:after] for start, after in pairwise(limits) if start < after]


def parts_of(tokens: Sequence[int], most: int) -> list[Sequence[int]]:
    """Return tokens in parts of nearly the same length, none longer than `most`; 0: in one."""
    if not tokens:
        return []
    count = -(-len(tokens) // most) if most else 1
    limits = [i * len(tokens) // count for i in range(count + 1)]
    return [tokens[start:after] for start, after in pairwise(limits)]


def require_tokens(prompt: Sequence[int], vocabulary: int) -> None:
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
