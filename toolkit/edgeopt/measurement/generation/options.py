"""Options of `bench`, `compare` and `check` for models that write tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.measurement.common_options import (
    ARRIVALS,
    BESIDES,
    BUDGET,
    COLD_STARTS,
    LANGUAGE,
    LENGTH,
    MEASURED,
    MODEL,
    SECONDS,
    WITHOUT_DRAFT,
    answer_tokens_option,
    output_tokens_option,
    prompt_lengths_option,
    prompt_tokens_option,
    seed_option,
    threads_option,
)
from edgeopt.measurement.compare.options import Contest
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.recipes.texts.answer_defaults import SLOTS
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option
from edgeopt.system.machine.threads import DEFAULT_THREADS

MAX_MISS = 0.05
"""Share of the answers that may be over a limit, where nobody says: an answer takes longer than a frame, so that one in
a hundred would take minutes to prove."""
PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
"""Lengths of prompts and answers where nobody says."""


def context_option(
    words: str = "Most tokens of prompt and answer together; memory is reserved for them.",
    group: OptionGroup = LANGUAGE,
) -> Any:
    """Return `context`; 0: all that the model has."""
    return option(0, words, group=group, syntax=Syntax.WHOLE, least=2, shown="the model's")


@dataclass(frozen=True)
class GenerationOptions:
    """Lengths, loads and limits of a measurement of a language model."""

    prompt_tokens: tuple[int, ...] = prompt_lengths_option(PROMPT_TOKENS)
    output_tokens: int = answer_tokens_option(OUTPUT_TOKENS)
    seconds: float = option(
        SECONDS, "Measure at least this long.", group=LENGTH, syntax=Syntax.SECONDS, shown=f"{SECONDS:g}s"
    )
    """Least seconds of answers; each length gets at least six answers."""
    threads: int = threads_option(MODEL, f"{DEFAULT_THREADS}, shared by the sessions")
    seed: int = seed_option(ARRIVALS, "arrivals, phases and orders")
    budget: AnswerBudget | None = option(
        None,
        "For a language model: ttft:200ms,tpot:20ms (first token, each next token).",
        group=BUDGET,
        syntax=Syntax.ANSWER_BUDGET,
        shown="none for a language model",
    )
    """Limits to judge: answers go on until each limit is decided, up to 12 times as long. With a load, the answers
    under that load are judged."""
    max_miss_ratio: float = option(
        MAX_MISS,
        "For a language model: share of the answers.",
        "--max-miss",
        group=BUDGET,
        syntax=Syntax.SHARE,
        shown=f"for a language model {MAX_MISS:.0%}",
    )
    price_per_s: float | None = None
    """Price a second of this machine."""
    load: str = option(
        "",
        "For a language model: also measure answers under this load.",
        group=ARRIVALS,
        shown="for a language model none",
        file_use=FileUse.READ_WITHIN,
    )
    """Such as `closed:4` or `poisson:2`: also answers under this load, prompts of all lengths by turns; empty: none."""
    slots: tuple[int, ...] = option(
        (),
        "With --load: number of answers that are written at once; 1,2,4,8 compares several.",
        group=LANGUAGE,
        syntax=Syntax.COUNTS,
        shown=f"{SLOTS}",
    )
    """Texts that are written at once under the load; several numbers are measured in turn. Empty: `SLOTS`."""

    cold: bool = option(
        False,
        "Also time the start of fresh processes, with a warm and with a cold page cache.",
        group=BESIDES,
        syntax=Syntax.FLAG,
    )
    """Also time starts of fresh processes, with a warm and a cold page cache."""
    repeats: int = option(
        COLD_STARTS,
        "With --cold: number of starts with each state of the cache.",
        group=BESIDES,
        syntax=Syntax.WHOLE,
        least=1,
    )
    """Repeats of each kind."""
    guesses: int | None = option(
        None,
        "Tokens that are guessed ahead in each run (speculative decoding); auto: as many as are predicted to pay.",
        group=LANGUAGE,
        syntax=Syntax.GUESSES,
        shown="the recipe's",
    )
    """A round; `AUTO`: as many as are predicted to pay. None: as the recipe says, and nothing is predicted."""
    draft: str | Path | None = option(
        None,
        f"A smaller model that makes the guesses{WITHOUT_DRAFT}.",
        group=LANGUAGE,
        metavar="MODEL",
        file_use=FileUse.READ,
        shown="the recipe's",
    )
    """A smaller model that guesses; None: the recipe's."""
    uses_draft: bool = True
    context: int = context_option()
    """Tokens of prompt and answer for which memory is reserved; 0: all that the model has."""

    image: tuple[Path, ...] = option(
        (),
        "A picture before each prompt, for a model that sees; repeatable.",
        group=LANGUAGE,
        syntax=Syntax.FILE,
        metavar="PICTURE",
        repeatable=True,
    )
    """Pictures before each prompt, which are cut and encoded anew each time."""

    @property
    def whole_load(self) -> str:
        """The load; where only slots are named as many users as the most of them, empty without either."""
        return self.load or (f"closed:{max(self.slots)}" if self.slots else "")


@dataclass(frozen=True)
class SideOptions(Contest):
    """Options of `compare` for models that write tokens."""

    prompt_tokens: int = prompt_tokens_option(PROMPT_TOKENS)
    output_tokens: int = output_tokens_option(OUTPUT_TOKENS)
    eval: str = option(
        "",
        "For a language model: a text, whose perplexity is compared; for an encoder with a decoder: a folder of .wav "
        "files, or a file with a text in each line.",
        group=MEASURED,
        metavar="LABELS",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    """File that judges; empty: that of the first recipe that names one."""
    rivals: tuple[str, ...] = option(
        (),
        "Also compare a language model with other engines: {}. Each runs in a process of its own. NAME:FORM chooses "
        "the form of its weights, such as llama.cpp:q4_k_m.",
        group=LANGUAGE,
        common=True,
        syntax=Syntax.NAMES,
        metavar="NAME,NAME",
        shown="none",
        help_from="edgeopt.measurement.generation.rivals:listed",
    )
    """Names, each with a form where it is not to be that of the first model: `llama.cpp:q4_k_m`."""
    rival_models: tuple[str, ...] = option(
        (),
        "File or folder that such an engine runs, or the model in float from which it is made; repeatable.",
        "--rival-model",
        group=LANGUAGE,
        metavar="NAME=FILE",
        repeatable=True,
        shown="made of the model's own weights",
    )
    """`NAME=FILE`, with the name as in `rivals`."""

    @property
    def more_sides(self) -> int:
        """Sides that stand beside the models that are named."""
        return len(self.rivals)
