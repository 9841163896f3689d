"""`optimize` of a language model: how it is opened, its forms, its bundle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors._guard import guarded
from edgeopt.export.export import names_decoder
from edgeopt.graph.model import Model, find_model, load_model, save_model
from edgeopt.measurement.generation.right_writer import open_right_decoder
from edgeopt.measurement.generation.sides.turns import PARTS
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.attention import AttentionTrials
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.deploy import deploy_language_model
from edgeopt.optimization.generation.forms import FORMS, FUSED, MatrixForm, with_chunks
from edgeopt.optimization.generation.guessing import choose_guesses
from edgeopt.optimization.generation.life import (
    Made,
    WriterRun,
    export_first,
    find_processor,
    judge_forms,
    prove_and_write,
)
from edgeopt.optimization.generation.material import DecoderMaterial
from edgeopt.optimization.generation.memory import require_memory
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, GuessChoice, LanguageReport
from edgeopt.optimization.generation.resume import MODEL, Left, take_folder
from edgeopt.optimization.generation.texts import TokenWindows, no_text, read_texts
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.optimize import device_name
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.bundle import Bundle, is_bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.steps._context import Listener
from edgeopt.steps.convert.cache_integers import make_integer_cache
from edgeopt.steps.convert.decoder_fusion import answers_last, fuse_decoder
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import require_time
from edgeopt.system.text import format_bytes, plural

_SHARE = 4
"""Share of the seconds of the contest; guesses get one."""


@guarded()
def optimize_language_model(
    model: str,
    *,
    target: str,
    out: Path | None,
    options: LanguageOptions,
    listener: Listener,
    began_s: float | None = None,
) -> LanguageReport:
    """Make the forms of a language model, judge and measure them, and write the one that is proven fastest.

    Args:
        model: Shipped name, ONNX file or folder, with recipe and tokenizer beside it; or `hf:FOLDER`, exported first.
        target: One that runs ONNX Runtime on the processor of this machine.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked.
        listener: Hears how far it is.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: If the model, the text or the lengths do not fit, or memory does not suffice.
    """
    began_s, device = monotonic() if began_s is None else began_s, find_processor(target)
    threads = engine_threads(options.threads)
    if (is_source := names_decoder(model)) and not options.eval:
        raise no_text()
    file = export_first(model, target, out, listener) if is_source else find_language_model(model)
    shares = TimeShares(options.time_limit_s, listener, began_s)
    if is_bundle(file):
        find_model(model)  # which says what takes one
    original, recipe = open_right_decoder(file, threads)
    with original:
        _require_lengths(options, original)
        texts = read_texts(recipe, original, options.eval, options.calib)
        folder = out or Path("out") / f"{recipe.name}-{device_name(target)}"
        loaded = load_model(file)
        left = take_folder(folder, recipe.name, [loaded], device, texts.calibration, resumes=options.resume)
        require_memory(loaded)
        shares.say()
        listener.say("look for what is written in many ops and can be one")
        fused = fuse_decoder(loaded, original.context, original.tokenizer.size)
        forms = (FUSED, *FORMS) if fused.changes else FORMS
        head, max_rise = recipe.generation.head, options.max_rise
        material = DecoderMaterial(fused.model, device, texts.calibration, threads, head, max_rise, listener)
        listener.say(
            f"{plural(len(texts.windows), 'window')} of {len(texts.windows[0])} tokens of {texts.judging} judge, "
            f"{len(texts.calibration)} of {texts.calibrating} calibrate"
        )
        contest = _contest(original, texts, options, threads, shares)
        is_last_enough = answers_last(fused.model, original.context, original.tokenizer.size)
        trials = AttentionTrials(options.prompt_tokens, threads)
        place = Workplace(file, left, with_chunks(recipe), is_last_enough, trials)
        run, made = WriterRun(options, device, folder, threads, shares, began_s), Made()
        language_forms = judge_forms(
            run,
            contest,
            made,
            file,
            names=lambda: [form.name for form in forms],
            enter=lambda ahead: _enter(forms, contest, material, place, made, ahead),
        )
    told = {
        "model": recipe.name,
        "prompt_tokens": options.prompt_tokens,
        "text": texts.judging,
        "window_tokens": len(texts.windows[0]),
        "calibration": f"{plural(len(texts.calibration), 'window')} of {texts.calibrating}",
    }
    opened_as = replace(device, options=original.origin.entries)

    def deploy(report: LanguageReport) -> Bundle:
        chosen = recipe if report.chosen == BASELINE else _deployed(recipe, report)
        return deploy_language_model(report, opened_as, chosen)

    return prove_and_write(
        run,
        contest,
        language_forms,
        told=told,
        guess=lambda report: None if shares.was_cut else _guessing(report, contest, shares),
        deploy=deploy,
        notes=lambda: (*original.origin.notes, *fused.notes, *made.notes, *trials.notes()),
    )


def _contest(
    original: LanguageModel, texts: TokenWindows, options: LanguageOptions, threads: int, shares: TimeShares
) -> FormContest:
    own_tokens = max(1, options.prompt_tokens - original.begins_with)
    contest = FormContest(
        original=original,
        windows=texts.windows,
        prompts=[texts.prompt(i, own_tokens) for i in range(len(texts.windows))],
        asked=AnswerOptions(most_tokens=options.output_tokens, guesses=0, ends=False),
        threads=threads,
        max_rise=options.max_rise,
        seconds=options.seconds,
        parts=PARTS if options.budget else ("answer",),
        listener=shares.listener,
        judged_s=shares.end_s(TimeShare.JUDGED),
    )
    if len(contest.windows) < len(texts.windows):
        shares.warn(f"{len(contest.windows)} of {plural(len(texts.windows), 'window')} of the text judge")
    return contest


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where forms are written, and what lies beside them."""

    source: Path
    """The original."""
    left: Left
    recipe: Recipe
    """Recipe of the forms."""
    is_last_enough: bool
    """Whether forms may leave out what only the logits of earlier tokens need."""
    attention: AttentionTrials

    def write(self, name: str, made: Model) -> Path:
        """Write a form into a folder of its own, with recipe and tokenizer; return its file."""
        place = self.left.place(name)
        save_model(keep_last_logits(made).model if self.is_last_enough else made, place / MODEL)
        _copy_beside(self.source.parent, place, self.attention.choose(made, self.recipe))
        self.left.finish(name)
        return place / MODEL

    def take_up(self, name: str) -> Path:
        """Return the file of a form that a run before made; its attention is chosen anew, for this one's lengths."""
        place = self.left.place(name)
        _copy_beside(self.source.parent, place, self.attention.choose(load_model(place / MODEL), self.recipe))
        return place / MODEL


def _enter(
    forms: Sequence[MatrixForm],
    contest: FormContest,
    material: DecoderMaterial,
    place: Workplace,
    made: Made,
    ahead: Ahead,
) -> None:
    """Make the forms, kind by kind, and let each into the contest.

    Raises:
        OutOfTime: At the end of a time limit; what was judged before it stays.
    """
    listener = contest.listener
    kinds = list(dict.fromkeys(form.kind or form.name for form in forms))
    for i, kind in enumerate(kinds):
        ahead.tell_making(i, len(kinds), made.entrants)
        group = list[Entrant]()
        for form in (other for other in forms if (other.kind or other.name) == kind):
            require_time()
            if place.left.is_finished(form.name):
                file = place.take_up(form.name)
            else:
                outcome = form.make(material)
                if not outcome.changes:
                    made.leave_out(form.name, form.left_out)
                    continue
                file = place.write(form.name, outcome.model)
            group.append(Entrant(form.name, form.told, form.precision, file))
            listener.say(f"{form.name:<10} {format_bytes(group[-1].file.stat().st_size):>10}  {form.told}")
        contest.enter(group)
        made.take(group)
    leader = contest.leader(made.entrants)
    if leader is not None:
        made.more += _enter_with_small_cache(leader, contest, material, place, made.entrants)
    ahead.tell_making(len(kinds), len(kinds), made.entrants)


def _enter_with_small_cache(
    leader: Entrant, contest: FormContest, material: DecoderMaterial, place: Workplace, entrants: list[Entrant]
) -> list[Note]:
    """Let the leader in again with its cache in 8 bits; return why not, where that is not possible."""
    name, text = f"{leader.name}+cache8", f"{leader.name}, keys and values of the cache in 8 bits"
    made = make_integer_cache(load_model(leader.file), material.cache_ranges)
    if not made.changes:
        return [Note(NoteKind.INFO, f"{name} is left out: only GroupQueryAttention reads a cache in integers")]
    entrant = Entrant(name, text, leader.precision, place.write(name, made.model))
    try:
        contest.enter([entrant])
    except EdgeoptError as error:
        return [Note(NoteKind.INFO, f"{name} is left out: {error.problem}", "ONNX Runtime 1.32 reads such a cache")]
    if entrant.score is None:
        return [Note(NoteKind.WARNING, f"{name} is left out: {entrant.out}", "the other forms go on")]
    entrants.append(entrant)
    return []


def _guessing(report: LanguageReport, contest: FormContest, shares: TimeShares) -> GuessChoice:
    """Return whether the chosen form guesses in its bundle."""
    shares.listener.say("see whether guesses pay")
    seconds = contest.seconds / _SHARE
    with shares.part(TimeShare.PROVEN), open_language_model(Path(report.best.file), contest.threads)[0] as opened:
        require_time(seconds)
        try:
            return choose_guesses(report.best, opened, contest.prompts, contest.asked, seconds)
        except EdgeoptError as error:  # the form is chosen and proven: it does without
            return GuessChoice(told=f"not used: {error.problem}")
    why = "interrupted" if shares.was_cut else "the time limit was over"
    return GuessChoice(told=f"not used: {why} before they were proven faster")


def _deployed(recipe: Recipe, report: LanguageReport) -> Recipe:
    """Return the recipe of the chosen form: how its prompts run stands beside it."""
    chunks = with_chunks(recipe)
    beside = recipe_beside(Path(report.best.file)).generation
    return replace(chunks, generation=replace(chunks.generation, flash_attention=beside.flash_attention))


def _copy_beside(source: Path, place: Path, recipe: Recipe) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name in (recipe.tokenizer.file, recipe.evaluation.calib, recipe.generation.draft):
        if name and (source / name).is_file() and (source / name).resolve() != (place / name).resolve():
            (place / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, place / name)
    write_beside(place / "recipe.toml", recipe_text(replace(recipe, folder=place), name=recipe.name, labels=""))


def _require_lengths(options: LanguageOptions, opened: LanguageModel) -> None:
    if options.prompt_tokens + options.output_tokens > opened.context:
        raise EdgeoptError(
            f"{options.prompt_tokens} tokens of a prompt and {options.output_tokens} of its answer are more than the "
            f"context of {opened.context}",
            remedy="ask for shorter prompts or answers",
        )
