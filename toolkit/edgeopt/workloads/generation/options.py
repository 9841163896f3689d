"""Options of models that write tokens, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.measurement.check.options import MEASURED, Gate
from edgeopt.measurement.common_options import (
    optimize_out_option,
    out_option,
    output_tokens_option,
    prompt_tokens_option,
    target_option,
    threads_option,
)
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.options import LANGUAGE, GenerationOptions, SideOptions
from edgeopt.measurement.resources.prices import Prices
from edgeopt.optimization import options as optimize
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.recipes.texts.beams import MOST_BEAMS
from edgeopt.system.declared.options import FileUse, Syntax, option
from edgeopt.workloads._serving import ServeFlags
from edgeopt.workloads.frames.options import FrameInspect

DRAWN, GUESSING, SPEECH = "How tokens are drawn", "Guessing ahead", "Speech"
"""Headings of the help."""


@dataclass(frozen=True)
class GenerationBench(GenerationOptions, Prices):
    """Options of `bench` for a model that writes tokens."""

    out: Path | None = out_option("Model and device", "bench.json, .md, .html and the raw samples")


@dataclass(frozen=True)
class GenerationCheck(Gate):
    """Options of `check` for a model that writes tokens."""

    eval: str = option(
        "",
        "Of a language model: a text that judges, by its perplexity.",
        group=MEASURED,
        metavar="LABELS",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    budget: AnswerBudget | None = option(
        None,
        "Of a language model: limits beside the baseline, ttft:200ms,tpot:20ms.",
        group=LANGUAGE,
        syntax=Syntax.ANSWER_BUDGET,
    )
    prompt_tokens: int = prompt_tokens_option(0, "the baseline's")
    output_tokens: int = output_tokens_option(0, "the baseline's")


@dataclass(frozen=True)
class GenerationOptimize(LanguageOptions):
    """Options of `optimize` for a model that writes tokens."""

    target: str = target_option(optimize.MODEL, required=True)
    out: Path | None = optimize_out_option(optimize.MODEL)
    task: str = option(
        "",
        "Of hf: what it is opened for, by optimum's name, such as feature-extraction.",
        group="Models that are exported first",
        metavar="NAME",
        shown="that of its own class",
    )


def _guesses_option() -> Any:
    return option(
        None,
        "Tokens guessed, by the draft or from the text so far, and verified in one run.",
        group=GUESSING,
        syntax=Syntax.WHOLE,
        least=0,
        most=64,
        shown="the recipe's; 4 with --draft",
    )


def _draft_option() -> Any:
    return option(
        None,
        "A smaller model with the same tokens that makes the guesses; none: the text so far does.",
        group=GUESSING,
        metavar="MODEL",
        shown="the recipe's",
    )


def _system_option() -> Any:
    return option(
        None,
        "A text before each prompt; it is computed once, and read from a cache later.",
        group=LANGUAGE,
        syntax=Syntax.FILE,
        metavar="FILE",
    )


def _prefixes_option() -> Any:
    return option(
        None,
        "Where the cache of --system lies.",
        group=LANGUAGE,
        syntax=Syntax.FILE,
        metavar="FOLDER",
        shown="below the user's caches",
    )


@dataclass(frozen=True)
class GenerationRun:
    """Options of `run` for a model that writes tokens."""

    prompt: str | None = option(
        None,
        "Let a language model answer this text, in place of SOURCE; beside a sound: what was said before.",
        group=LANGUAGE,
        metavar="TEXT",
    )
    image: tuple[Path, ...] = option(
        (),
        "A picture that --prompt is about, for a model that sees; repeatable.",
        group=LANGUAGE,
        syntax=Syntax.FILE,
        metavar="PICTURE",
        repeatable=True,
    )
    chat: bool = option(
        False, "Talk with it: each line is a turn, an empty one ends.", group=LANGUAGE, syntax=Syntax.FLAG
    )
    output_tokens: int | None = option(
        None,
        "Tokens that the answer to --prompt may have.",
        group=LANGUAGE,
        syntax=Syntax.WHOLE,
        least=1,
        shown="256",
    )
    system: Path | None = _system_option()
    prefixes: Path | None = _prefixes_option()
    long: str | None = option(
        None,
        "Of a prompt beyond the context, or a sound beyond a window: refuse it, cut this part of it, let the model "
        "summarise the text in parts, or hear the sound in windows, one after the other.",
        group=LANGUAGE,
        syntax=Syntax.CHOICE,
        choices=("refuse", "head", "middle", "tail", "summarise", "windows"),
        shown="refuse",
    )
    context: int = option(
        0,
        "Tokens of prompt and answer, for which memory is reserved.",
        group=LANGUAGE,
        syntax=Syntax.WHOLE,
        least=2,
        shown="the model's",
    )
    context_shift: bool = option(
        False,
        "Go on where text and answer fill the context: its older half is dropped, the rest computed anew.",
        group=LANGUAGE,
        syntax=Syntax.FLAG,
    )
    stop: tuple[str, ...] = option(
        (), "End the answer before this text; repeatable.", group=LANGUAGE, metavar="TEXT", repeatable=True
    )
    schema: Path | None = option(
        None,
        "A JSON schema that the answer keeps to.",
        group=LANGUAGE,
        syntax=Syntax.FILE,
        metavar="FILE",
        shown="any text",
    )
    grammar: Path | None = option(
        None,
        "A grammar that the answer keeps to, in llama.cpp's words (GBNF) or Lark's.",
        group=LANGUAGE,
        syntax=Syntax.FILE,
        metavar="FILE",
        shown="any text",
    )
    temperature: float | None = option(
        None,
        "Draw the tokens of the answer.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=0,
        most=100,
        shown="0, the likeliest",
    )
    top_k: int | None = option(
        None,
        "Draw from so many of the likeliest.",
        group=DRAWN,
        syntax=Syntax.WHOLE,
        least=1,
        most=1 << 20,
        shown="all",
    )
    top_p: float | None = option(
        None, "Draw from the likeliest that reach this share.", group=DRAWN, syntax=Syntax.SHARE, shown="100%"
    )
    min_p: float | None = option(
        None,
        "Draw from tokens at least so likely, as a share of the likeliest.",
        group=DRAWN,
        syntax=Syntax.SHARE,
        shown="0%",
    )
    frequency_penalty: float | None = option(
        None,
        "Subtract this from the logit of a token for each time that the answer has it; drawn or not.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=-2,
        most=2,
        shown="0, none",
    )
    presence_penalty: float | None = option(
        None,
        "Subtract this from the logit of each token that the answer has; drawn or not.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=-2,
        most=2,
        shown="0, none",
    )
    seed: int | None = option(None, "Of what is drawn.", group=DRAWN, syntax=Syntax.WHOLE, least=0, shown="0")
    repetition_penalty: float | None = option(
        None,
        "Divide the logits of tokens that were there already by this; drawn or not.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=0.01,
        most=100,
        shown="1, none",
    )
    beams: int = option(
        0,
        "Answers that an encoder with a decoder keeps beside each other while it searches for the likeliest.",
        group=DRAWN,
        syntax=Syntax.WHOLE,
        least=0,
        most=MOST_BEAMS,
        shown="the model's",
    )
    times: bool = option(
        False,
        "Write segments with their times, as sounds longer than a window have them anyway.",
        group=SPEECH,
        syntax=Syntax.FLAG,
    )
    language: str = option(
        "", "Language that is spoken: de, German.", group=SPEECH, metavar="NAME", shown="the model chooses"
    )
    translate: bool = option(
        False, "Write in English what is said in another language.", group=SPEECH, syntax=Syntax.FLAG
    )
    voice_activity: str | None = option(
        None,
        "A model of voice activity: what it takes for silence is not heard.",
        group=SPEECH,
        metavar="MODEL",
        file_use=FileUse.READ,
        shown="all is heard",
    )
    guesses: int | None = _guesses_option()
    draft: str | None = _draft_option()
    exact: bool = option(
        False,
        "Run single tokens as several: the same answer with guesses or without; slower.",
        group=GUESSING,
        syntax=Syntax.FLAG,
    )
    budget: AnswerBudget | None = option(
        None,
        "Of a language model ttft:200ms,tpot:20ms.",
        group="The stream",
        syntax=Syntax.ANSWER_BUDGET,
        shown="no gate",
    )
    threads: int = threads_option("The stream", "as measured")


@dataclass(frozen=True)
class GenerationServe(ServeFlags):
    """Options of `serve` for a model that writes tokens."""

    context: int = option(
        0,
        "Most tokens of a prompt and its answer.",
        group=LANGUAGE,
        syntax=Syntax.WHOLE,
        least=2,
        shown="the model's",
    )
    system: Path | None = _system_option()
    prefixes: Path | None = _prefixes_option()
    no_ahead: bool = option(
        False,
        "Do not compute what a conversation's next prompt begins with while nobody asks.",
        group=LANGUAGE,
        syntax=Syntax.FLAG,
    )
    guesses: int | None = _guesses_option()
    draft: str | None = _draft_option()
    exact: bool = option(
        False,
        "All answers as run --exact gives them: guesses then change no token.",
        group=GUESSING,
        syntax=Syntax.FLAG,
    )


CHECKS = ("latency", "accuracy", "size", "memory")
"""What `check` can leave out; `accuracy` is the perplexity, `memory` the cache."""
OPTIONS: Mapping[str, type] = {
    "inspect": FrameInspect,
    "bench": GenerationBench,
    "compare": SideOptions,
    "check": GenerationCheck,
    "optimize": GenerationOptimize,
    "run": GenerationRun,
    "serve": GenerationServe,
}
