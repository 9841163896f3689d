"""`optimize` of a language model: how it is opened, its forms, its bundle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.executors._guard import guarded
from edgeopt.export.export import names_decoder
from edgeopt.graph.model import load_model
from edgeopt.optimization.folder.handover import MadeHere, hand_over
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.deploy import deploy_language_model
from edgeopt.optimization.generation.forms.attention import AttentionTrials
from edgeopt.optimization.generation.forms.image_encoder import (
    IN_FLOAT,
    NOT_JUDGED,
    encoder_in_int8,
    file_of_encoder,
    require_seeing,
)
from edgeopt.optimization.generation.forms.kinds import FORMS, precision_of, with_chunks
from edgeopt.optimization.generation.forms.prompts_elsewhere import enter_prompts_elsewhere, scheme_of
from edgeopt.optimization.generation.forms.split import enter_split, enter_split_with_small_cache
from edgeopt.optimization.generation.guessing import choose_guesses
from edgeopt.optimization.generation.life import (
    FormMaker,
    Made,
    WriterRun,
    export_first,
    judge_forms,
    line_of_form,
    make_forms_here,
    prove_and_write,
)
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import ORIGINALS, GuessChoice, LanguageReport
from edgeopt.optimization.generation.texts import TokenWindows, no_text
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.generation.workplace import Workplace, prepared, started, taken_over, write_ranges
from edgeopt.recipes.recipe import Recipe
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.memory import bytes_of_graphs
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps._context import Listener
from edgeopt.steps.convert.cache_integers import make_integer_cache
from edgeopt.system.declared.target import TargetElsewhere
from edgeopt.system.processes.time_limit import OutOfTime, limited, require_time
from edgeopt.system.text import plural

_NO_SMALL_CACHE = "no cache in 8 bits is tried: no text that calibrates or judges it holds the rows of a picture"
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
    run = WriterRun.begin(find_device(target), options, listener, began_s)
    file = _file_of(model, target, out, options, listener)
    device, threads, shares = run.device, run.threads, run.shares
    with started(file, device, named=target, out=out, options=options, threads=threads) as start:
        require_seeing(start.original, options)
        shares.say()
        if start.left.handover is None:
            of = prepared(start, FORMS, device, options.max_rise, listener)
        else:
            of = taken_over(start, FORMS, listener)
        original, recipe, texts = start.original, start.recipe, start.texts
        encoder, seen = None, [IN_FLOAT] if original.images is not None else []
        if options.pictures:
            seen = [NOT_JUDGED]
            with shares.part(TimeShare.FORMS):
                encoder, note = encoder_in_int8(
                    original,
                    recipe,
                    options,
                    target=target,
                    device=device,
                    folder=start.left.folder,
                    threads=threads,
                    listener=listener,
                )
                seen = [note]
        image_bytes = bytes_of_graphs([file_of_encoder(recipe, encoder)]) if recipe.image.sees else 0
        contest = _contest(run, original, texts, image_bytes)
        trials = AttentionTrials(options.prompt_tokens, threads)
        place, made = Workplace(start, of, trials), Made()
        language_forms = judge_forms(
            run,
            contest,
            made,
            file,
            names=lambda: [form.name for form in of.forms],
            enter=lambda ahead: _enter(contest, place, made, ahead),
            precision=precision_of(start.loaded),
        )
    told = {
        "model": recipe.name,
        "prompt_tokens": options.prompt_tokens,
        "text": texts.judging,
        "window_tokens": len(texts.windows[0]),
        "asks": "--prompt TEXT" if original.images is None else "--prompt TEXT --image PICTURE",
        "image_encoder": encoder.speed if encoder else "",
        "calibration": f"{plural(len(texts.calibration), 'window')} of {texts.calibrating}",
    }
    opened_as = replace(device, options=original.origin.entries)

    def deploy(report: LanguageReport) -> Bundle:
        chosen = recipe if report.chosen in ORIGINALS else _deployed(recipe, report)
        return deploy_language_model(report, opened_as, chosen, encoder)

    return prove_and_write(
        run,
        contest,
        language_forms,
        start.left.folder,
        told=told,
        guess=lambda report: None if shares.was_cut else _guessing(report, contest, shares),
        deploy=deploy,
        notes=lambda: (*original.origin.notes, *of.notes, *seen, *made.notes, *trials.notes()),
    )


@guarded()
def make_language_forms_for(
    model: str,
    target: TargetElsewhere,
    *,
    named: str,
    out: Path | None,
    options: LanguageOptions,
    listener: Listener,
    began_s: float | None = None,
) -> MadeHere:
    """Make the forms of a language model for a device elsewhere, which takes them up, judges and measures them.

    Only the form with the cache in 8 bits is made there, of the form that is fastest there; here the cache is measured.

    Args:
        model: As `optimize_language_model`, like all that follow.
        target: See `find_device_elsewhere`.
        named: The target as it was named.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked.
        listener: Hears how far it is.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: As `optimize_language_model`, for everything that can be known before forms are judged.
        KeyboardInterrupt: What is finished stays on disk, and a run that resumes takes it up.
    """
    run = WriterRun.begin(target, options, listener, began_s, is_here=False)
    is_exported, file, shares = names_decoder(model), _file_of(model, named, out, options, listener), run.shares
    with started(file, target, named=named, out=out, options=options, threads=run.threads) as start:
        require_seeing(start.original, options)
        if not start.left.is_complete:
            shares.say_here(target.address)
            start.ranges_file.unlink(missing_ok=True)
            of = prepared(start, FORMS, target, options.max_rise, listener)
            place = Workplace(start, of, None)
            makers = [
                FormMaker(form.name, form.told, partial(place.make, form), place.file_of, place.known)
                for form in of.forms
            ]
            names = make_forms_here(makers, shares)
            with limited(shares.end_s(TimeShare.MADE)), suppress(OutOfTime):
                write_ranges(start.ranges_file, place.cache_ranges())
            hand_over(start.left.folder, start.left.described, names, of.notes)
    return MadeHere(str(file) if is_exported else model, start.left.folder)


def _file_of(model: str, target: str, out: Path | None, options: LanguageOptions, listener: Listener) -> Path:
    """Return the file of a model; of a source the one that it is exported to first."""
    if not names_decoder(model):
        return find_language_model(model)
    return export_first(model, target, out, listener, None if options.eval else no_text())


def _contest(run: WriterRun, original: LanguageModel, texts: TokenWindows, image_bytes: int) -> FormContest:
    options, shares = run.options, run.shares
    own_tokens = max(1, options.prompt_tokens - original.begins_with)
    contest = run.contest(
        original,
        texts.windows,
        [texts.prompt(i, own_tokens) for i in range(len(texts.windows))],
        AnswerOptions(most_tokens=options.output_tokens, guesses=0, ends=False),
        judged_s=shares.end_s(TimeShare.JUDGED),
        answer_tokens=options.prompt_tokens + options.output_tokens,
        image_bytes=image_bytes,
        most_bytes=math.inf if options.memory_bytes is None else options.memory_bytes,
    )
    if len(contest.windows) < len(texts.windows):
        shares.warn(f"{len(contest.windows)} of {plural(len(texts.windows), 'window')} of the text judge")
    return contest


def _enter(contest: FormContest, place: Workplace, made: Made, ahead: Ahead) -> None:
    """Make the forms, one by one, and let each into the contest.

    Raises:
        OutOfTime: At the end of a time limit; what was judged before it stays.
    """
    listener, forms = contest.listener, place.of.forms
    for i, form in enumerate(forms):
        ahead.tell_making(i, len(forms), made.entrants)
        require_time()
        if why := place.make(form):
            made.leave_out(form.name, why)
            continue
        entrant = Entrant(form.name, form.told, form.precision, place.file_of(form.name))
        listener.say(line_of_form(form.name, entrant.file, form.told, is_known=form.name in place.known))
        contest.enter(entrant)
        made.take(entrant)
    made.more += enter_split(contest, place, made.entrants)
    made.more += enter_prompts_elsewhere(contest, place, made.entrants)
    leaders = _leaders_with_small_cache(contest, made.entrants)
    if contest.image_bytes:
        made.more.append(Note(NoteKind.INFO, _NO_SMALL_CACHE))
    contest.drop_large(made.entrants)
    for leader in leaders:
        enter = enter_split_with_small_cache if leader.prompts_by else _enter_with_small_cache
        made.more += enter(leader, contest, place, made.entrants)
        contest.drop_large(made.entrants)
    ahead.tell_making(len(forms), len(forms), made.entrants)


def _leaders_with_small_cache(contest: FormContest, entrants: Sequence[Entrant]) -> list[Entrant]:
    """Return who is let in again with a small cache: the fastest, and of two graphs the fastest single one beside it.

    Two graphs may go out later for a single one, which then has a small cache to choose. Prompts by another engine are
    never written into a cache in integers.
    """
    here = [entrant for entrant in entrants if not scheme_of(entrant.prompts_by)]
    leaders = [contest.leader_with_small_cache(here)]
    if leaders[0] is not None and leaders[0].prompts_by:
        leaders.append(contest.leader_with_small_cache([entrant for entrant in here if not entrant.prompts_by]))
    return [leader for leader in leaders if leader is not None]


def _enter_with_small_cache(
    leader: Entrant, contest: FormContest, place: Workplace, entrants: list[Entrant]
) -> list[Note]:
    """Let the leader in again with its cache in 8 bits; return why not, where that is not possible."""
    name, text = f"{leader.name}+cache8", f"{leader.name}, keys and values of the cache in 8 bits"
    try:
        made = make_integer_cache(load_model(leader.file, in_place=True), place.cache_ranges())
    except InvalidFileError as error:
        return [Note(NoteKind.INFO, f"{name} is left out: {error.problem}", error.remedy)]
    if not made.changes:
        return [Note(NoteKind.INFO, f"{name} is left out: only GroupQueryAttention reads a cache in integers")]
    entrant = Entrant(name, text, leader.precision, place.write(name, made.model), cache_of=leader.name)
    try:
        contest.enter(entrant)
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
    own = replace(
        chunks.generation,
        flash_attention=beside.flash_attention,
        chunk=beside.chunk,
        prefill=beside.prefill,
        prefill_engine=beside.prefill_engine,
    )
    return replace(chunks, generation=own)
