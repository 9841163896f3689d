"""`optimize` of a language model: how it is opened, its forms, its bundle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.export.export import names_decoder
from edgeopt.measurement.generation.budget import BUDGET_SECONDS
from edgeopt.measurement.generation.long_windows import score_long_text
from edgeopt.measurement.generation.perplexity import WINDOW_TOKENS, score_text
from edgeopt.optimization.folder.handover import MadeHere, hand_over
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.contest import FEW_WINDOWS, LEAST_WINDOWS, Entrant, FormContest, no_time
from edgeopt.optimization.generation.deploy import deploy_language_model
from edgeopt.optimization.generation.forms.attention import AttentionTrials
from edgeopt.optimization.generation.forms.image_encoder import (
    IN_FLOAT,
    NOT_JUDGED,
    encoder_in_int8,
    file_of_encoder,
    require_seeing,
)
from edgeopt.optimization.generation.forms.kinds import FITTED, FORMS, LATE, precision_of, with_chunks
from edgeopt.optimization.generation.forms.kv_cache import enter_with_small_cache
from edgeopt.optimization.generation.forms.prompts_elsewhere import enter_elsewhere
from edgeopt.optimization.generation.forms.split import NO_SECOND, enter_split
from edgeopt.optimization.generation.guessing import choose_guesses
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.proof import FEWEST, process_of_s
from edgeopt.optimization.generation.result import ORIGINALS, GuessChoice, LanguageReport
from edgeopt.optimization.generation.texts import TokenWindows, no_text
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.generation.workplace import Workplace, prepared, started, taken_over, write_ranges
from edgeopt.optimization.generation.writer_run import (
    Made,
    WriterRun,
    enter_forms,
    judge_forms,
    make_forms_here,
    make_writer_forms_for,
    optimize_writer,
    prove_and_write,
)
from edgeopt.recipes.recipe import Recipe
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.memory import bytes_of_graphs
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.system.declared.target import TargetElsewhere
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited, longer, require_time, time_left_s
from edgeopt.system.text import plural, typed_duration

_NOT_TOGETHER = "time limit reached: not all two graphs and forms by OpenVINO were tried"
_SHARE = 4
"""Share of the seconds of the contest; guesses get one."""
_JUDGED_WHOLE = 3
"""Forms that the whole text judges: the fastest, and about two that are not proven slower."""
_READ_ALONE = 128
"""Tokens of a window that a pair of graphs reads one by one, at most."""
_OPENED_BYTES = 300_000_000
"""Bytes of weights that an engine reads and packs in a second, at the least."""


def _search(run: WriterRun, model: str) -> LanguageReport:
    """Make the forms of a language model, judge and measure them, and write the one that is proven fastest."""
    file = _file_of(run, model)
    shares, options = run.shares, run.options
    with started(run, file) as start:
        require_seeing(start.original, options)
        shares.say()
        of = prepared(start, FORMS) if start.left.handover is None else taken_over(start, FORMS)
        original, recipe, texts = start.original, start.recipe, start.texts
        encoder, seen = None, [IN_FLOAT] if original.images is not None else []
        if options.pictures:
            seen = [NOT_JUDGED]
            with shares.part(TimeShare.FEWER):  # behind FORMS no time would be left to judge
                encoder, note = encoder_in_int8(start)
                seen = [note]
        image_bytes = bytes_of_graphs([file_of_encoder(recipe, encoder)]) if recipe.image.sees else 0
        contest = _contest(run, original, texts, image_bytes, start.loaded.size_bytes)
        trials = AttentionTrials(options.prompt_tokens, run.threads)
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
        "calibrated_on": f"{plural(len(texts.calibration), 'window')} of {texts.calibrating}",
    }
    opened_as = replace(run.device, options=original.origin.entries)

    def deploy(report: LanguageReport) -> Bundle:
        chosen = recipe if report.chosen in ORIGINALS else _deployed(recipe, report)
        return deploy_language_model(report, opened_as, chosen, encoder)

    return prove_and_write(
        run,
        contest,
        language_forms,
        start.left.folder,
        told=told,
        guess=lambda report: None if shares.was_cut or options.clients > 1 else _guessing(report, contest, shares),
        deploy=deploy,
        notes=lambda: (*original.origin.notes, *_of_texts(texts), *of.notes, *seen, *made.notes, *trials.notes()),
    )


optimize_language_model = partial(optimize_writer, _search)
"""`optimize` of a language model."""


def _make_here(run: WriterRun, model: str, target: TargetElsewhere) -> MadeHere:
    """Make the forms of a language model for a device elsewhere, which takes them up, judges and measures them.

    Only the form with the cache in 8 bits is made there, of the form that is fastest there; here the cache is measured.
    """
    file, shares = _file_of(run, model), run.shares
    with started(run, file) as start:
        require_seeing(start.original, run.options)
        if not start.left.is_complete:
            shares.say_here(target.address)
            start.ranges_file.unlink(missing_ok=True)
            of = prepared(start, FORMS)
            place = Workplace(start, of, None)
            names = make_forms_here(place.makers(), shares)
            with limited(shares.end_s(TimeShare.MADE)), suppress(OutOfTime):
                write_ranges(start.ranges_file, place.cache_ranges())
            hand_over(start.left.folder, start.left.described, names, of.notes)
    return MadeHere(str(file) if names_decoder(model) else model, start.left.folder)


make_language_forms_for = partial(make_writer_forms_for, _make_here)
"""The forms of a language model for a device elsewhere."""


def _file_of(run: WriterRun, model: str) -> Path:
    """Return the file of a model; of a source the one that it is exported to first."""
    return run.exported(model, no_text) if names_decoder(model) else find_language_model(model)


def _contest(
    run: WriterRun, original: LanguageModel, texts: TokenWindows, image_bytes: int, weights_bytes: int
) -> FormContest:
    options, shares = run.options, run.shares
    own_tokens = max(1, options.prompt_tokens - original.begins_with)
    run.require_time()
    opened_s = shares.spent_s
    try:
        with limited(shares.end_s(TimeShare.FORMS)):
            contest = run.contest(
                original,
                texts.windows,
                [texts.prompt(i, own_tokens) for i in range(len(texts.windows))],
                AnswerOptions(most_tokens=options.output_tokens, guesses=0, ends=False),
                score=score_long_text if len(texts.windows[0]) > WINDOW_TOKENS else score_text,
                judged_s=shares.end_s(TimeShare.JUDGED),
                fewer_s=shares.end_s(TimeShare.FEWER),
                clients=options.clients,
                answer_tokens=options.prompt_tokens + options.output_tokens,
                image_bytes=image_bytes,
                most_bytes=math.inf if options.memory_bytes is None else options.memory_bytes,
            )
    except OutOfTime as over:
        raise _too_little_time(options, len(texts.windows[0]), opened_s, over.whole_s) from over
    if contest.left_windows:
        text = f"{len(contest.windows)} of {plural(len(texts.windows), 'window')}"
        shares.warn(f"{text} of {len(texts.windows[0]):,} tokens judge")
    if shares.limit_s is not None:
        _keep_time(contest, options, shares, weights_bytes)
    return contest


def _keep_time(contest: FormContest, options: LanguageOptions, shares: TimeShares, weights_bytes: int) -> None:
    """Keep as much of a time limit as judging, timing and proving take; forms have the rest, if it is more than theirs.

    An answer of the original tells how long proofs take. It is not asked for where even the quickest one, which takes
    as long as reading so many tokens, leaves forms no more time than they have.
    """
    limit_s = shares.limit_s or 0.0
    opening_s = 2 * weights_bytes / _OPENED_BYTES
    guesses_s = contest.seconds / _SHARE
    if options.budget:
        behind_s = (TimeShare.BUDGET.value - TimeShare.PROVEN.value) * limit_s
        guesses_s += max(BUDGET_SECONDS * contest.seconds - behind_s, 0.0)

    def proofs_s(answer_s: float) -> float:
        processes = options.processes + FEWEST  # where the first choice is not proven, so many decide the second
        return processes * (opening_s + process_of_s(2 * answer_s)) + guesses_s

    least_s = contest.token_s * (options.prompt_tokens + options.output_tokens)
    if contest.seconds + proofs_s(least_s) >= (TimeShare.PROVEN.value - TimeShare.FORMS.value) * limit_s:
        return
    with limited(shares.end_s(TimeShare.FORMS)), suppress(OutOfTime):
        require_time(4 * least_s)
        times = contest.times_of_original((), is_hurried=True)
        alone = min(len(contest.windows[0]) // 2, _READ_ALONE) if contest.windows else 0
        window_s = contest.window_s + alone * times.median_ms("TPOT") / 1000
        judged_s = _JUDGED_WHOLE * max(len(contest.windows) - FEW_WINDOWS, 0) * window_s
        shares.keep(contest.seconds + judged_s, proofs_s(times.median_ms("answer") / 1000))


def _too_little_time(options: LanguageOptions, tokens: int, opened_s: float, windows_s: float) -> EdgeoptError:
    """Return that a time limit leaves none to judge the original, and how long one would be enough.

    Args:
        options: What was asked.
        tokens: Of a window.
        opened_s: Seconds from the beginning until the text was read.
        windows_s: Seconds of six windows, about.
    """
    limit = typed_duration(1000 * (options.time_limit_s or 0.0))
    text = f"reading a window of {tokens:,} tokens takes the original about {windows_s / LEAST_WINDOWS:.0f} s"
    problem = f"{text}: too long for the time limit of {limit}, as two windows judge forms at least"
    shorter = ", or ask for shorter prompts with --prompt-tokens" if tokens > WINDOW_TOKENS else ""
    return EdgeoptError(problem, remedy=longer((opened_s + windows_s) / TimeShare.FEWER.value) + shorter)


def _of_texts(texts: TokenWindows) -> tuple[Note, ...]:
    return () if texts.short is None else (texts.short,)


def _enter(contest: FormContest, place: Workplace, made: Made, ahead: Ahead) -> None:
    """Make the forms, one by one, and let each into the contest; then those that are put together of them.

    A time limit may end before the last forms, which gain least for what they take. Those that are put together gain
    more (prompts of 1,900 tokens: 1.4x by OpenVINO), so that under a limit they come after the first forms already,
    before any is fitted where prompts take the most time, and again behind later ones where another form leads by then.

    Raises:
        OutOfTime: At the end of a time limit; what was judged before it stays.
    """
    makers = place.makers()
    late = (FITTED, LATE) if time_left_s() < math.inf else ()
    parts = [[maker for maker in makers if not any(maker.name in names for names in late)]]
    parts += [[maker for maker in makers if maker.name in names] for names in late]
    done, is_whole = 0, True
    for part in filter(None, parts):
        try:
            enter_forms(part, contest, made, ahead, done=done, of=len(makers))
        except OutOfTime:  # what is put together needs no fitting: there may be time for it
            is_whole = False
        done += len(part)
        if not is_whole or done == len(makers) or part is not parts[0] or _is_mostly_prompt(made.entrants):
            _enter_together(contest, place, made)
        if not is_whole:
            break
    for note in enter_with_small_cache(contest, place, made.entrants):
        made.more.append(note)  # one by one: those before the end of a time limit stay
    ahead.tell_making(len(place.of.forms), len(place.of.forms), made.entrants)
    if not is_whole:
        raise OutOfTime


def _is_mostly_prompt(entrants: Sequence[Entrant]) -> bool:
    """Whether the fastest answer so far is spent before its first token for the most part."""
    timed = [entrant.turns[-1] for entrant in entrants if entrant.turns]
    fastest = min(timed, key=lambda turns: turns.median_ms("answer"), default=None)
    return fastest is not None and 2 * fastest.median_ms("TTFT") > fastest.median_ms("answer")


def _enter_together(contest: FormContest, place: Workplace, made: Made) -> None:
    """Let in what is put together of the forms so far; what was said of fewer forms is taken back.

    Raises:
        OutOfTime: At the end of a time limit; a note says that some were not tried.
    """
    notes = list[Note]()
    try:
        for enter in (enter_split, enter_elsewhere):
            notes += enter(contest, place, made.entrants)
    except OutOfTime:
        made.more.append(Note(NoteKind.WARNING, _NOT_TOGETHER, LONGER))
        raise
    stale = {no_time(name).detail for name in contest.tried}
    kept = [note for note in made.more if note.detail not in stale and not note.detail.endswith(NO_SECOND)]
    made.more[:] = kept + [note for note in notes if note not in kept]


def _guessing(report: LanguageReport, contest: FormContest, shares: TimeShares) -> GuessChoice:
    """Return whether the chosen form guesses in its bundle."""
    shares.listener.say("checking whether guesses pay")
    seconds = contest.seconds / _SHARE
    with shares.part(TimeShare.PROVEN), open_language_model(Path(report.best.file), contest.threads)[0] as opened:
        require_time(seconds)
        try:
            left_bytes = contest.most_bytes - report.best.needs_bytes
            return choose_guesses(report.best, opened, contest.prompts, contest.asked, seconds, left_bytes)
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
        engine=beside.engine,
    )
    return replace(chunks, generation=own)
