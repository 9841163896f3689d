"""Language models side by side: the same text judges them, and answers of the same lengths in turns time them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from string import printable
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.generation.held_out import (
    hash_held,
    hold_out,
    kind_of,
    made_up,
    read_sources,
    require_alike,
    require_answers,
    score_answers,
)
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.perplexity import TextScore, score_text, windows_of
from edgeopt.measurement.generation.right_writer import open_right_decoder, open_right_pair
from edgeopt.measurement.generation.sides.apart import ApartWriter
from edgeopt.measurement.generation.sides.turns import LEAST_ROUNDS, FormTurns, Prompt, measure_in_turns
from edgeopt.measurement.sides import Tell
from edgeopt.measurement.turns.interleaved import AGAIN
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.encoder_decoder import recipe_of
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import holds_pair, open_writer
from edgeopt.system.amounts import Tenths
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import plural

MOST_TEXT_BYTES = 16 << 20
LEAST_WINDOWS = 6
_LEGS, _OPENINGS = 4, 4.0
"""Legs of a run in turns at most; how many times as long as opening all models one lasts at least."""
_MOST_OPEN_BYTES = 1 << 30
"""Size of models that may be open twice."""
_MOST_ROUNDS = 1000
"""More say nothing more; of a model that answers in milliseconds they fill the seconds asked for."""
_PROBE = printable
"""Models whose tokens of it are the same are taken to have the same tokens."""


@dataclass(frozen=True, slots=True)
class WriterSide:
    """One language model, open."""

    label: str
    model: LanguageModel | EncoderDecoder
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class ApartSide:
    """One language model that is open in a process of its own."""

    label: str
    model: ApartWriter


TimedSide = WriterSide | ApartSide
OpenModel = LanguageModel | EncoderDecoder | ApartWriter


def open_again(side: TimedSide) -> OpenModel:
    """Return the same model, open a second time."""
    if isinstance(side, ApartSide):
        return side.model.reopened()
    origin = side.model.origin
    return open_writer(origin.file, origin.threads, origin.entries)


def labels_for(names: Sequence[str]) -> list[str]:
    """Return short labels of models: the last part of each path, numbered where two are alike."""
    short = [Path(name).name or name for name in names]
    counts = {word: short.count(word) for word in short}
    return [word if counts[word] == 1 else f"{word} ({i + 1})" for i, word in enumerate(short)]


def open_writers(models: Mapping[str, Path], threads: int, stack: ExitStack) -> list[WriterSide]:
    """Open language models, which `stack` closes.

    Args:
        models: By label.
        threads: Of each engine; 0: as each was measured.
        stack: That closes them.

    Raises:
        EdgeoptError: If one does not open.
    """
    sides = list[WriterSide]()
    for label, path in models.items():
        if holds_pair(path):
            pair = open_right_pair(path, threads)
            stack.callback(pair.close)
            sides.append(WriterSide(label, pair, recipe_of(pair.files)))
            continue
        model, recipe = open_right_decoder(path, threads)
        sides.append(WriterSide(label, stack.enter_context(model), recipe))
    require_alike({side.label: side.model for side in sides})
    return sides


def require_room(sides: Sequence[WriterSide], options: SideOptions) -> None:
    """Raise where a prompt and its answer are longer than the shortest context.

    Raises:
        EdgeoptError: If so.
    """
    shortest, asked = min(sides, key=lambda side: side.model.context), options.prompt_tokens + options.output_tokens
    if isinstance(shortest.model, EncoderDecoder):
        require_answers(shortest.model, options.output_tokens)
        return
    if asked > shortest.model.context:
        raise EdgeoptError(
            f"{plural(options.prompt_tokens, 'prompt token')} and {options.output_tokens} of the answer are {asked}, "
            f"the context of {shortest.label} has {shortest.model.context}",
            remedy="ask for shorter prompts or answers",
        )


@dataclass(frozen=True, slots=True)
class JudgingText:
    """The text that judges, and that prompts are cut from."""

    name: str
    """Name of its file; empty: random tokens, which judge nothing."""
    content: str
    windows: tuple[Any, ...]
    """Windows of its tokens; or what an encoder hears or reads, as `HeldOut`. None where nothing judges, or tokens
    differ."""
    why_not_judged: str = ""
    sources: tuple[Prompt, ...] = ()
    """Prompts of an encoder (sounds or texts) while it is timed."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the text that judges; empty: none does."""
        if not self.windows:
            return ""
        return hash_held(self.windows) if self.sources else hashlib.sha256(repr(self.windows).encode()).hexdigest()


def read_judging_text(sides: Sequence[WriterSide], options: SideOptions) -> JudgingText:
    """Return the text that judges.

    Args:
        sides: That read it.
        options: Whose text is read; empty: that of the first recipe that names one, or random tokens.

    Raises:
        EdgeoptError: If the one asked for cannot be read, or is too short.
    """
    file = options.eval
    pairs = [side.model for side in sides if isinstance(side.model, EncoderDecoder)]
    if pairs:
        return _read_sources(pairs, sides[0].label, options)
    named = (side.recipe.path_of(side.recipe.evaluation.calib) for side in sides)
    path = Path(file) if file else next((other for other in named if other and other.is_file()), None)
    if path is None:
        return JudgingText("", "", (), "no text: pass --eval TEXT")
    content = read_text(path, remedy="pass a text in UTF-8", most_bytes=MOST_TEXT_BYTES)
    tokens = sides[0].model.tokenizer.encode(content)
    shortest = min(side.model.context for side in sides)
    windows = windows_of(tokens, shortest) if tokens else []
    if len(windows) < LEAST_WINDOWS:
        raise EdgeoptError(
            f"{path} has {plural(len(tokens), 'token')}: {plural(len(windows), 'window')}",
            remedy=f"pass a text of {LEAST_WINDOWS} windows of 256 tokens or more",
        )
    if any(side.model.tokenizer.encode(content) != tokens for side in sides[1:]):
        return JudgingText(
            path.name, content, (), "their tokens differ, so that a perplexity by token compares nothing"
        )
    return JudgingText(path.name, content, tuple(tuple(window) for window in windows))


def _read_sources(pairs: Sequence[EncoderDecoder], label: str, options: SideOptions) -> JudgingText:
    """Return what the first of them answers, and its answers, which judge the others."""
    first = pairs[0]
    if not options.eval:
        sources = made_up(first, [min(options.prompt_tokens, *(pair.reads for pair in pairs))], 0)
        return JudgingText("", "", (), f"pass --eval: {kind_of(first)}", tuple(sources))
    result = read_sources(options.eval, first)
    name = f"answers of {label} to {Path(options.eval).name}"
    if any(pair.tokenizer.encode(_PROBE) != first.tokenizer.encode(_PROBE) for pair in pairs[1:]):
        return JudgingText(name, "", (), "their tokens differ", tuple(result))
    return JudgingText(name, "", tuple(hold_out(first, result, options.output_tokens)), "", tuple(result))


def score_sides(sides: Sequence[WriterSide], text: JudgingText, tell: Tell | None) -> dict[str, TextScore]:
    """Return how well each predicts the text; empty where it judges nothing."""
    text_scores = dict[str, TextScore]()
    for i, side in enumerate(sides if text.windows else ()):
        if tell:
            tell("judge by the text", i, len(sides))
        if isinstance(side.model, EncoderDecoder):
            text_scores[side.label] = score_answers(side.model, text.windows)
        else:
            text_scores[side.label] = score_text(side.model, text.windows)
    return text_scores


Models = Mapping[str, OpenModel]
"""Open models by label."""


def time_alone(side: WriterSide, text: JudgingText, options: SideOptions, tell: Tell | None) -> FormTurns:
    """Return the times of answers of one model.

    Args:
        side: Gets prompts of its own tokens.
        text: Of which prompts are cut.
        options: Lengths and time.
        tell: Hears how far it is.
    """
    return _time({side.label: side.model}, text, options, tell)[side.label]


def time_in_legs(
    sides: Sequence[TimedSide], text: JudgingText, options: SideOptions, tell: Tell | None
) -> dict[str, FormTurns]:
    """Return the times of answers in turns, and of a second copy of the first: its label and `AGAIN`.

    The time is cut into legs. Each but the first opens everything anew, in another order: two sessions of one model may
    differ by some percent for as long as they live, because their weights and buffers lie elsewhere in memory. Models
    that are too large to be open twice, or too slow, have one leg.

    Args:
        sides: Each gets prompts of its own tokens.
        text: Of which prompts are cut.
        options: Lengths and time.
        tell: Hears how far it is.
    """
    named = {side.label: side for side in (*sides, replace(sides[0], label=sides[0].label + AGAIN))}
    size_bytes = sum(side.model.origin.size_bytes for side in named.values())
    legs = 1 if size_bytes > _MOST_OPEN_BYTES else _LEGS
    with ExitStack() as stack:
        began_s = monotonic()
        twin = open_again(sides[0])
        opening_s = len(named) * (monotonic() - began_s)
        stack.callback(twin.close)
        models: Models = {label: side.model for label, side in named.items()} | {sides[0].label + AGAIN: twin}
        least = -(-LEAST_ROUNDS // legs)
        turns = _time(models, text, replace(options, seconds=options.seconds / legs), tell, least=least)
        rounds, took_s = len(turns[sides[0].label].times_ns), monotonic() - began_s
        least_s = max(_OPENINGS * opening_s, took_s / (rounds + 1) * (least + 1))
        more = max(0, min(legs - 1, int((options.seconds - took_s) / least_s)))
        if not more and rounds < LEAST_ROUNDS:
            missing = LEAST_ROUNDS - rounds
            turns = _joined(
                turns, _time(models, text, replace(options, seconds=0.0), tell, least=missing, first=rounds)
            )
    leg_s = max(options.seconds - took_s, 0.0) / max(more, 1)
    for leg in range(more):
        with ExitStack() as stack:
            labels = list(named)
            fresh: dict[str, OpenModel] = {}
            for label in [*labels[leg + 1 :], *labels[: leg + 1]]:
                fresh[label] = open_again(named[label])
                stack.callback(fresh[label].close)
            models, rounds = {label: fresh[label] for label in labels}, len(turns[sides[0].label].times_ns)
            least = max(2, -(-(LEAST_ROUNDS - rounds) // (more - leg)))
            leg_options = replace(options, seconds=leg_s)
            turns = _joined(turns, _time(models, text, leg_options, tell, least=least, first=rounds))
    return turns


def _joined(turns: Mapping[str, FormTurns], more: Mapping[str, FormTurns]) -> dict[str, FormTurns]:
    return {label: form.joined(more[label]) for label, form in turns.items()}


def _time(
    models: Models,
    text: JudgingText,
    options: SideOptions,
    tell: Tell | None,
    *,
    least: int = LEAST_ROUNDS,
    first: int = 0,
) -> dict[str, FormTurns]:
    prompts = {label: prompts_of(model, text, options) for label, model in models.items()}
    asked = AnswerOptions(most_tokens=options.output_tokens, ends=False)

    def say(done: int, of: int) -> None:
        if tell:
            tell("measure answers in turns", done, Tenths(of))

    return measure_in_turns(models, prompts, asked, options.seconds, say, least=least, most=_MOST_ROUNDS, first=first)


def prompts_of(model: OpenModel, text: JudgingText, options: SideOptions) -> list[Prompt]:
    """Return eight prompts of the length asked for, with what stands before every prompt; or what is heard or read."""
    if text.sources:
        return list(text.sources)
    count = max(1, options.prompt_tokens - model.begins_with)
    tokens = model.tokenizer.encode(text.content)
    if not tokens:
        special = set(model.tokenizer.special.values())
        tokens = [other for other in range(model.tokenizer.size) if other not in special]
    tokens = tokens * (1 + 9 * count // len(tokens))
    return [tokens[i * count : (i + 1) * count] for i in range(8)]
