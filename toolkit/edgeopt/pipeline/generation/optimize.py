"""The life of one call of `optimize` for a language model: forms, their perplexity, answers in turns, one choice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.executors.onnxruntime.providers import CPU
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.measurement.generation.perplexity import (
    TextScore,
    agreement_between,
    rise_between,
    score_text,
    windows_of,
)
from edgeopt.measurement.generation.turns import PARTS, Turns, measure_in_turns, ratio_between
from edgeopt.measurement.resources.memory import read_memory
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.pipeline.generation.forms import FORMS
from edgeopt.pipeline.generation.result import BASELINE, LanguageForm, LanguageReport
from edgeopt.pipeline.generation.summary import summarize_language
from edgeopt.pipeline.writing import find_language_model
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.report.formats import write_pages
from edgeopt.runtime.availability import find_device
from edgeopt.runtime.decoding.generation import Asked
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps._context import Listener
from edgeopt.system.environment import read_environment
from edgeopt.system.files import read_text, require_writable, write_beside
from edgeopt.system.target import Target
from edgeopt.system.text import format_bytes, plural
from edgeopt.system.threads import engine_threads

MARK = "language-run.json"
MAX_RISE = 0.02
_MOST_TEXT_BYTES = 16 << 20
_LEAST_WINDOWS = 6
_TWIN = "fp32 again"


@dataclass(frozen=True, slots=True)
class LanguageOptions:
    """What is asked of a language model."""

    prompt_tokens: int = 128
    output_tokens: int = 64
    """Of the answers for which it is made fast."""
    max_rise: float = MAX_RISE
    """Of the perplexity, as a share."""
    text: str = ""
    """File of text that judges; empty: the recipe's own."""
    threads: int = 0
    seconds: float = 20.0
    """For answers in turns, at least."""


def optimize_language_model(
    model: str, *, target: str, out: Path | None, options: LanguageOptions, listener: Listener
) -> LanguageReport:
    """Make the forms of a language model, judge and measure them, and write the one that is proven fastest.

    Args:
        model: Shipped name, ONNX file or folder, with recipe and tokenizer beside it.
        target: One that runs ONNX Runtime on the processor of this machine.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked.
        listener: Hears how far it is.

    Raises:
        EdgeoptError: If the model, the text or the lengths do not fit, or memory does not suffice.
    """
    began_s, device, file = monotonic(), find_device(target), find_language_model(model)
    if device.executor != "onnxruntime" or device.providers[0] != CPU:
        raise UnsupportedError(
            f"language models are made for ONNX Runtime on a processor so far, not for {device.name}",
            remedy="--target cpu",
        )
    threads = engine_threads(options.threads)
    with ExitStack() as stack:
        original, recipe = open_language_model(file, threads)
        stack.enter_context(original)
        text, windows = _windows(recipe, options, original)
        folder = out or Path("out") / f"{recipe.name}-{device.name}"
        _take(folder, recipe.name)
        loaded = load_model(file)
        files, notes = _make(loaded, device, file, recipe, folder, listener)
        _require_memory(files)
        opened = {BASELINE: original}
        for name, one in list(files.items())[1:]:
            opened[name] = stack.enter_context(open_language_model(one, threads)[0])
        listener.say(f"{plural(len(windows), 'window')} of {len(windows[0])} tokens of {text} judge")
        scores = _scores(opened, windows, listener)
        fit = {name: one for name, one in opened.items() if _why_unfit(name, scores, options.max_rise) == ""}
        twin = stack.enter_context(open_language_model(files[BASELINE], threads)[0])
        prompts = [_prompt(windows, i, options.prompt_tokens) for i in range(len(windows))]
        asked = Asked(most_tokens=options.output_tokens, ends=False)
        turns = measure_in_turns(
            {**fit, _TWIN: twin},
            prompts,
            asked,
            options.seconds,
            lambda done, of: listener.progress("measure answers in turns, tenths of a second", done, of),
        )
    report = _report(loaded, device, folder, recipe, options, files, scores, turns, text, windows, threads)
    report = replace(report, notes=(*report.notes, *notes), seconds=monotonic() - began_s)
    _write(report, files[report.chosen], file.parent, recipe)
    return report


def _take(folder: Path, name: str) -> None:
    """Take an output folder that is new, or of such a run."""
    require_writable(folder / MARK)
    if folder.is_dir() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise InvalidFileError(f"{folder} holds something else", remedy="choose an empty folder with -o")
    write_beside(folder / MARK, json.dumps({"tool": "edgeopt optimize", "language model": name}) + "\n")


def _make(
    loaded: Model, device: Target, file: Path, recipe: Recipe, folder: Path, listener: Listener
) -> tuple[dict[str, Path], list[Note]]:
    """Write each form into a folder of its own, with recipe and tokenizer; return their files, the original first."""
    files, notes = {BASELINE: file}, list[Note]()
    for i, form in enumerate(FORMS):
        listener.progress("make forms", i, len(FORMS))
        made = form.make(loaded, device)
        if not made.changes:
            notes.append(Note(NoteKind.INFO, f"{form.name} is left out: no matrix of constant weights is large enough"))
            continue
        place = folder / "candidates" / form.name
        save_model(made.model, place / "model.onnx")
        _copy_beside(file.parent, place, recipe)
        files[form.name] = place / "model.onnx"
        listener.say(f"{form.name:<10} {format_bytes(files[form.name].stat().st_size):>10}  {form.told}")
    listener.progress("make forms", len(FORMS), len(FORMS))
    return files, notes


def _copy_beside(source: Path, place: Path, recipe: Recipe) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.toml", recipe.tokenizer.file, recipe.evaluation.calib):
        if name and (source / name).is_file() and (source / name).resolve() != (place / name).resolve():
            shutil.copyfile(source / name, place / name)
    if not (source / "recipe.toml").is_file():
        write_beside(place / "recipe.toml", recipe_text(recipe, name=recipe.name, labels=""))


def _require_memory(files: Mapping[str, Path]) -> None:
    """Raise where the forms, which are open side by side, are larger than what is free."""
    needed, free = 2 * sum(one.stat().st_size for one in files.values()), read_memory()[1]
    if needed > free:
        raise EdgeoptError(
            f"all forms side by side need about {format_bytes(needed)}, {format_bytes(free)} are free",
            remedy="close other programs, or use a machine with more memory",
        )


def _windows(recipe: Recipe, options: LanguageOptions, opened: LanguageModel) -> tuple[str, list[list[int]]]:
    """Return the name of the text that judges, and windows of its tokens."""
    file = Path(options.text) if options.text else recipe.path_of(recipe.evaluation.calib)
    if file is None:
        raise EdgeoptError(
            "no text judges what a form loses", remedy="pass --eval TEXT: a file of text that the model did not learn"
        )
    tokens = opened.tokenizer.encode(read_text(file, remedy="pass a text in UTF-8", most_bytes=_MOST_TEXT_BYTES))
    windows = windows_of(tokens, opened.context)
    if len(windows) < _LEAST_WINDOWS:
        raise EdgeoptError(
            f"{file} has {plural(len(tokens), 'token')}: {plural(len(windows), 'window')} of {len(windows[0])} tokens",
            remedy=f"pass a text of {_LEAST_WINDOWS} windows or more",
        )
    if options.prompt_tokens + options.output_tokens > opened.context:
        raise EdgeoptError(
            f"{options.prompt_tokens} tokens of a prompt and {options.output_tokens} of its answer are more than the "
            f"context of {opened.context}",
            remedy="ask for shorter prompts or answers",
        )
    return file.name, windows


def _prompt(windows: Sequence[Sequence[int]], first: int, count: int) -> list[int]:
    """Return so many tokens, from one window on; after the last one the text begins again."""
    tokens = list[int]()
    while len(tokens) < count:
        tokens += windows[first % len(windows)]
        first += 1
    return tokens[:count]


def _scores(
    opened: Mapping[str, LanguageModel], windows: Sequence[Sequence[int]], listener: Listener
) -> dict[str, TextScore]:
    found = dict[str, TextScore]()
    for i, (name, model) in enumerate(opened.items()):
        listener.progress("judge forms", i, len(opened))
        found[name] = score_text(model, windows)
    listener.progress("judge forms", len(opened), len(opened))
    return found


def _why_unfit(name: str, scores: Mapping[str, TextScore], max_rise: float) -> str:
    if name == BASELINE:
        return ""
    rise = rise_between(scores[BASELINE], scores[name])
    return f"its perplexity is {rise.value:+.1%}, {max_rise:.1%} are allowed" if not rise.value <= max_rise else ""


def _report(
    loaded: Model,
    device: Target,
    folder: Path,
    recipe: Recipe,
    options: LanguageOptions,
    files: Mapping[str, Path],
    scores: Mapping[str, TextScore],
    turns: Mapping[str, Turns],
    text: str,
    windows: Sequence[Sequence[int]],
    threads: int,
) -> LanguageReport:
    first = turns[BASELINE]
    null = ratio_between(first, turns[_TWIN], "answer")
    told = {form.name: form.told for form in FORMS}
    forms = list[LanguageForm]()
    for name, file in files.items():
        one, score = turns.get(name), scores[name]
        forms.append(
            LanguageForm(
                name=name,
                told=told.get(name, "as given"),
                file=str(file),
                size_bytes=file.stat().st_size,
                perplexity=score.perplexity,
                rise=None if name == BASELINE else rise_between(scores[BASELINE], score),
                agreement=agreement_between(scores[BASELINE], score),
                times_ms={part: one.median_ms(part) for part in PARTS} if one else {},
                speed={part: ratio_between(first, one, part, null) for part in PARTS}
                if one and name != BASELINE
                else {},
                unfit=_why_unfit(name, scores, options.max_rise),
            )
        )
    return LanguageReport(
        model=recipe.name,
        target=device.name,
        folder=folder,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        max_rise=options.max_rise,
        text=text,
        windows=len(windows),
        window_tokens=len(windows[0]),
        cpu=read_environment().cpu,
        threads=threads,
        forms=tuple(forms),
        chosen=_choose(forms),
        null=null,
        seconds=0.0,
    )


def _choose(forms: Sequence[LanguageForm]) -> str:
    """Return the form whose whole answers are proven fastest; the original where none is."""
    proven = [one for one in forms if one.speed and not one.unfit and one.speed["answer"].verdict is Change.FASTER]
    return max(proven, key=lambda one: one.speed["answer"].speedup).name if proven else BASELINE


def _write(report: LanguageReport, chosen: Path, source: Path, recipe: Recipe) -> None:
    """Write the chosen form with its recipe and tokenizer into the output folder, and the report."""
    shutil.copyfile(chosen, report.folder / "model.onnx")
    _copy_beside(source, report.folder, recipe)
    write_pages(summarize_language(report), report.folder, "report")
