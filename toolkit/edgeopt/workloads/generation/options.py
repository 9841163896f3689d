"""Options of models that write tokens, by verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.measurement.check.options import Gate
from edgeopt.measurement.common_options import (
    EXPORTED,
    LANGUAGE,
    MEASURED,
    MODEL,
    TASK,
    WITHOUT_DRAFT,
    optimize_out_option,
    out_option,
    output_tokens_option,
    prompt_tokens_option,
    target_option,
    threads_option,
)
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.options import GenerationOptions, SideOptions, context_option
from edgeopt.measurement.resources.prices import Prices
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.recipes.texts.answer_defaults import ANSWER_TOKENS, GUESSES
from edgeopt.recipes.texts.beams import MOST_BEAMS
from edgeopt.running.live_options import STREAM
from edgeopt.runtime.decoding.sampling import DRAWN, SamplingFlags
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option
from edgeopt.workloads._serving import ServeFlags
from edgeopt.workloads.frames.options import FrameInspect

FORM = OptionGroup("form", "The answer's form", "length, end, schema")
GUESSING = OptionGroup("guess", "Guessing ahead", "speculative decoding")
SPEECH = OptionGroup("speech", "Speech", "times, languages, silence")
SERVED_LANGUAGE = OptionGroup("language", "Language models", "context, cached text, pace of tokens")
SERVED_SPEECH = OptionGroup("speech", "Speech", "silence, which is skipped")


@dataclass(frozen=True)
class GenerationBench(GenerationOptions, Prices):
    """Options of `bench` for a model that writes tokens."""

    out: Path | None = out_option(MODEL, "bench.json, .md, .html and the raw samples")


@dataclass(frozen=True)
class GenerationCheck(Gate):
    """Options of `check` for a model that writes tokens."""

    eval: str = option(
        "",
        "For a language model: a text, whose perplexity judges.",
        group=MEASURED,
        metavar="LABELS",
        file_use=FileUse.READ,
        shown="the recipe's own",
    )
    budget: AnswerBudget | None = option(
        None,
        "Limits beside the baseline, such as ttft:200ms,tpot:20ms (first token, each next token).",
        group=LANGUAGE,
        syntax=Syntax.ANSWER_BUDGET,
    )
    prompt_tokens: int = prompt_tokens_option(0, "the baseline's")
    output_tokens: int = output_tokens_option(0, "the baseline's")


@dataclass(frozen=True)
class GenerationOptimize(LanguageOptions):
    """Options of `optimize` for a model that writes tokens."""

    target: str = target_option(MODEL, required=True)
    out: Path | None = optimize_out_option(MODEL)
    task: str = option(
        "",
        TASK,
        group=EXPORTED,
        metavar="NAME",
        shown="the task of the model's class",
    )


def _guesses_option() -> Any:
    return option(
        None,
        "Tokens that are guessed ahead and verified in one run (speculative decoding).",
        group=GUESSING,
        syntax=Syntax.WHOLE,
        least=0,
        most=64,
        shown=f"the recipe's; {GUESSES} with --draft",
    )


def _draft_option() -> Any:
    return option(
        None,
        f"A smaller model with the same tokens that makes the guesses{WITHOUT_DRAFT}.",
        group=GUESSING,
        metavar="MODEL",
        shown="the recipe's",
    )


def _system_option(group: OptionGroup) -> Any:
    return option(
        None,
        "A text before each prompt. It is computed once, and later read from a cache.",
        group=group,
        syntax=Syntax.FILE,
        metavar="FILE",
    )


def _prefixes_option(group: OptionGroup) -> Any:
    return option(
        None,
        "Folder of the cache for --system.",
        group=group,
        syntax=Syntax.FILE,
        metavar="FOLDER",
        shown="below the user's caches",
    )


def _voice_option(group: OptionGroup) -> Any:
    return option(
        None,
        "A model of voice activity; what it takes for silence is skipped.",
        group=group,
        metavar="MODEL",
        file_use=FileUse.READ,
        shown="nothing is skipped",
    )


@dataclass(frozen=True)
class GenerationRun(SamplingFlags):
    """Options of `run` for a model that writes tokens."""

    prompt: str | None = option(
        None,
        "Text that a language model answers; it stands in place of SOURCE. Beside a sound: what was said before it.",
        group=LANGUAGE,
        common=True,
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
    raw: bool = option(
        False,
        "Let the model continue --prompt as it is. Without --raw, a model that came with a chat template gets it as a "
        "turn of a conversation, and --system as the system's.",
        group=LANGUAGE,
        syntax=Syntax.FLAG,
    )
    chat: bool = option(
        False,
        "Hold a conversation with the language model: each line is a turn, an empty line ends it.",
        group=LANGUAGE,
        common=True,
        syntax=Syntax.FLAG,
    )
    output_tokens: int | None = option(
        None,
        "Most tokens of the answer.",
        group=FORM,
        syntax=Syntax.WHOLE,
        least=1,
        shown=f"{ANSWER_TOKENS}",
    )
    system: Path | None = _system_option(LANGUAGE)
    prefixes: Path | None = _prefixes_option(LANGUAGE)
    long: str | None = option(
        None,
        "What to do with a prompt longer than the context, or a sound longer than a window: refuse it, cut off its "
        "head, middle or tail, let the model summarise the text, or hear the sound window by window.",
        group=LANGUAGE,
        syntax=Syntax.CHOICE,
        choices=("refuse", "head", "middle", "tail", "summarise", "windows"),
        shown="refuse",
    )
    context: int = context_option()
    context_shift: bool = option(
        False,
        "Go on when text and answer fill the context: drop its older half, and compute the rest anew.",
        group=LANGUAGE,
        syntax=Syntax.FLAG,
    )
    stop: tuple[str, ...] = option(
        (), "End the answer before this text; repeatable.", group=FORM, metavar="TEXT", repeatable=True
    )
    schema: Path | None = option(
        None,
        "JSON schema that the answer follows.",
        group=FORM,
        syntax=Syntax.FILE,
        metavar="FILE",
        shown="any text",
    )
    grammar: Path | None = option(
        None,
        "Grammar that the answer follows, in llama.cpp's notation (GBNF) or Lark's.",
        group=FORM,
        syntax=Syntax.FILE,
        metavar="FILE",
        shown="any text",
    )
    beams: int = option(
        0,
        "Width of the beam search of an encoder with a decoder.",
        group=DRAWN,
        syntax=Syntax.WHOLE,
        least=0,
        most=MOST_BEAMS,
        shown="the model's",
    )
    times: bool = option(
        False,
        "Write segments with their times; sounds longer than a window always get them.",
        group=SPEECH,
        syntax=Syntax.FLAG,
    )
    word_times: bool = option(
        False,
        "Write each word with its times, of a model that was exported with --word-times.",
        group=SPEECH,
        syntax=Syntax.FLAG,
    )
    language: str = option(
        "", "Language that is spoken, such as de or German.", group=SPEECH, metavar="NAME", shown="the model chooses"
    )
    translate: bool = option(
        False, "Translate speech of another language into English.", group=SPEECH, syntax=Syntax.FLAG
    )
    voice_activity: str | None = _voice_option(SPEECH)
    guesses: int | None = _guesses_option()
    draft: str | None = _draft_option()
    exact: bool = option(
        False,
        "Compute a single token in the same way as several, so that guesses change no answer; slower.",
        group=GUESSING,
        syntax=Syntax.FLAG,
    )
    budget: AnswerBudget | None = option(
        None,
        "For a language model: ttft:200ms,tpot:20ms (first token, each next token).",
        group=STREAM,
        syntax=Syntax.ANSWER_BUDGET,
        shown="none for a language model",
    )
    threads: int = threads_option(STREAM, "as measured")


@dataclass(frozen=True)
class GenerationServe(ServeFlags):
    """Options of `serve` for a model that writes tokens."""

    context: int = context_option("Most tokens of prompt and answer together.", SERVED_LANGUAGE)
    system: Path | None = _system_option(SERVED_LANGUAGE)
    prefixes: Path | None = _prefixes_option(SERVED_LANGUAGE)
    tpot_ms: float | None = option(
        None,
        "Time of a next token, such as 40ms: while tokens come more slowly, prompts of others wait.",
        "--tpot",
        group=SERVED_LANGUAGE,
        syntax=Syntax.MILLISECONDS,
        shown="prompts do not wait",
    )
    no_ahead: bool = option(
        False,
        "Do not compute the beginning of a conversation's next prompt in idle time.",
        group=SERVED_LANGUAGE,
        syntax=Syntax.FLAG,
    )
    guesses: int | None = _guesses_option()
    draft: str | None = _draft_option()
    exact: bool = option(
        False,
        "Give all answers as run --exact does, so that guesses change no token; slower.",
        group=GUESSING,
        syntax=Syntax.FLAG,
    )
    voice_activity: str | None = _voice_option(SERVED_SPEECH)


CHECKS = ("accuracy", "memory")
"""Checks besides those of every kind; `accuracy` is the perplexity, `memory` the cache."""
OPTIONS: Mapping[str, type] = {
    "inspect": FrameInspect,
    "bench": GenerationBench,
    "compare": SideOptions,
    "check": GenerationCheck,
    "optimize": GenerationOptimize,
    "run": GenerationRun,
    "serve": GenerationServe,
}
