"""The table `[generation]` of a recipe: what a model that writes token after token needs beside its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgeopt.system.toml import Within

GENERATION = "generation"
"""The task of such models; it has no file in `tasks/`, whose tasks answer a sample in one run."""
_Token = Annotated[int, Within(0, 1 << 24)]


@dataclass(frozen=True, slots=True)
class GenerationTable:
    """How texts begin and end."""

    context: Annotated[int, Within(0, 1 << 24)] = 0
    """Tokens of prompt and answer together."""
    end: tuple[_Token, ...] = ()
    """Tokens that end an answer."""
    begin: tuple[_Token, ...] = ()
    """Tokens before every prompt."""
    head: Annotated[int, Within(0, 1 << 16)] = 0
    """Numbers of one head in the cache, where the model leaves them free; 0: as the model says."""
    encoder: str = ""
    """File of the encoder whose sounds or texts are answered, in a bundle; empty: the model answers prompts."""
    engine: str = ""
    """Engine of the model: `openvino`; empty, or where it is not installed: ONNX Runtime."""
    prefill: str = ""
    """File of the graph that computes prompts into the cache, which the model goes on with token by token; empty: the
    model does both."""
    prefill_engine: str = ""
    """Engine of that graph: `openvino`; empty, or where it is not installed: ONNX Runtime, as for the model."""
    draft: str = ""
    """File of a smaller decoder with the same tokens that guesses, relative to the recipe; empty: none."""
    draft_context: Annotated[int, Within(0, 1 << 24)] = 0
    """Tokens that the draft may see; 0: as many as the model."""
    guesses: Annotated[int, Within(0, 64)] = 0
    """Tokens that are guessed and verified in one run where an answer does not say otherwise; 0: none."""
    chunk: Annotated[int, Within(0, 1 << 24)] = 0
    """Tokens of a prompt that are run at once, where an answer does not say otherwise; 0: all."""
    flash_attention: bool = True
    """Whether ONNX Runtime may compute the attention of a prompt in tiles, as it does unasked; false: in one piece."""
