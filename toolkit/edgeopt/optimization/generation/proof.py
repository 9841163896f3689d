"""Whether the chosen form of a language model is faster: fresh processes prove it, or another one is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.fresh_process.answers import answer_fresh, ratios_over
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import Entrant, FormContest, speeds_of, told_large
from edgeopt.optimization.generation.result import BASELINE, ORIGINALS, STORED, LanguageForm
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.recipes.texts.encoder_decoder import graphs_in
from edgeopt.runtime.decoding.memory import bytes_of_graphs
from edgeopt.runtime.decoding.opening import recipe_beside
from edgeopt.system.processes.time_limit import LONGER, longer, require_time

_MOST_PROVEN = 2
"""Forms that are proven one after the other, where the first is not."""
FEWEST = 2
"""Fresh processes that give an interval, where the run ends early: it is wide, and says itself what it proves."""
_ROUNDS = 3
"""Rounds of a fresh process: short, because processes differ by more than rounds."""
_START_S = 2.0
"""About what one takes until its first answer."""


def as_forms(
    contest: FormContest,
    original: Path,
    entrants: Sequence[Entrant],
    *,
    is_hurried: bool = False,
    precision: str = BASELINE,
) -> list[LanguageForm]:
    """Return the original, with its times beside all that were timed, and the entrants as they are reported.

    Args:
        contest: That judged and timed them.
        original: Its file or folder.
        entrants: All that were judged.
        is_hurried: Whether it was interrupted, or is late: one answer times the original, where no form was timed.
        precision: Scheme of the original, in the words of targets.
    """
    times = _medians(contest.times_of_original(entrants, is_hurried=is_hurried))
    size, perplexity = bytes_of_form(original), contest.base.perplexity
    name = BASELINE if precision == BASELINE else STORED
    needs = contest.base_bytes
    out = told_large(needs) if needs > contest.most_bytes else ""
    first = LanguageForm(
        name,
        "as given",
        str(original),
        size,
        perplexity,
        times_ms=times,
        out=out,
        needs_bytes=needs,
        precision=precision,
    )
    return [first, *(_as_form(contest, entrant, entrants) for entrant in entrants)]


def _as_form(contest: FormContest, entrant: Entrant, entrants: Sequence[Entrant]) -> LanguageForm:
    assert entrant.score is not None
    return LanguageForm(
        name=entrant.name,
        told=entrant.told,
        file=str(entrant.file),
        size_bytes=bytes_of_form(entrant.file),
        perplexity=contest.perplexity(entrant),
        rise=contest.rise(entrant),
        words=entrant.words,
        word=contest.word(entrant),
        agreement=contest.agreement(entrant),
        times_ms=_medians(entrant.turns[1]) if entrant.turns else {},
        speed=speeds_of(entrant),
        windows=entrant.windows,
        unfit=entrant.out if entrant.is_unfit else "",
        out=entrant.out,
        precision=entrant.precision,
        prompts_by=entrant.prompts_by,
        tokens_by=entrant.tokens_by,
        engine=entrant.engine,
        replaces=contest.replaced_by(entrant, entrants),
        needs_bytes=entrant.needs_bytes,
    )


def bytes_of_form(form: Path) -> int:
    """Return the size of a model with the weights and the graph of prompts beside it, or of a folder's graphs."""
    if not form.is_dir():
        prefill = recipe_beside(form).generation.prefill
        return bytes_of_graphs([form, *([form.with_name(prefill)] if prefill else [])])
    graphs = {*(graphs_in(form) or ())}
    return sum(part.stat().st_size for graph in graphs for part in graph.parent.glob(f"{graph.name}*"))


def prove(
    forms: Sequence[LanguageForm],
    contest: FormContest,
    processes: int,
    budget: AnswerBudget | None,
    shares: TimeShares,
) -> list[LanguageForm]:
    """Return the forms with the speeds over fresh processes of the one that is chosen; speeds of others prove nothing.

    Ctrl-C and a time limit end it: what the processes before that prove is kept.

    Args:
        forms: The original first.
        contest: What was asked of them.
        processes: How many fresh ones, 2 or more; after an interrupt none is run.
        budget: That the choice is to keep, where one is.
        shares: What is left of the time; hears why it ended early.
    """
    language_forms, proven, listener = list(forms), set[str](), shares.listener
    for _ in range(_MOST_PROVEN):
        name = choose_form(language_forms, budget)
        if name in ORIGINALS and shares.is_late:
            name = _most_promising(language_forms)  # its rounds were cut short: processes prove what they could not
        if name in ORIGINALS or name in proven or shares.was_cut:
            break
        place = next(i for i, form in enumerate(language_forms) if form.name == name)
        runs, each_s = list[tuple[FormTurns, FormTurns]](), _process_s(language_forms[0], language_forms[place])
        left_s = shares.end_s(TimeShare.PROVEN) - monotonic()
        with shares.part(TimeShare.PROVEN):
            for number in range(processes):
                require_time(each_s)
                listener.progress(f"prove {name} in fresh processes", number, processes)
                files = Path(language_forms[0].file), Path(language_forms[place].file)
                prompts = [contest.prompts[(number * _ROUNDS + i) % len(contest.prompts)] for i in range(_ROUNDS)]
                began_s = monotonic()
                asked, entries = contest.asked, contest.original.origin.entries
                clients = contest.clients
                runs.append(answer_fresh(*files, prompts, asked, contest.threads, _ROUNDS, number, entries, clients))
                each_s = monotonic() - began_s
        if len(runs) < processes and not shares.was_cut:
            shares.lack(processes * (each_s if runs else _START_S + each_s), left_s)
        if len(runs) < FEWEST:
            break
        proven.add(name)
        listener.progress(f"prove {name} in fresh processes", len(runs), processes)
        both = [_all(run[i] for run in runs) for i in (0, 1)]
        language_forms[place] = replace(language_forms[place], speed=ratios_over(runs), times_ms=_medians(both[1]))
        language_forms[0] = replace(language_forms[0], times_ms=_medians(both[0]))
    return [form if form.name in proven else _unproven(form) for form in language_forms]


def _most_promising(forms: Sequence[LanguageForm]) -> str:
    """Return the form that looks fastest of those that may be chosen; the original where none looks faster."""
    fit = [form for form in forms[1:] if form.speed and not (form.unfit or form.out)]
    best = max(fit, key=lambda form: form.speed["answer"].speedup, default=None)
    return best.name if best and best.speed["answer"].speedup > 1 else forms[0].name


def _process_s(original: LanguageForm, form: LanguageForm) -> float:
    """Return what a fresh process takes at least, in seconds: its rounds, and one that warms up."""
    return (1 + _ROUNDS) * (original.times_ms["answer"] + form.times_ms["answer"]) / 1000


def process_of_s(answers_s: float) -> float:
    """Return about what a fresh process takes, its start too, where an answer of both forms takes so many seconds."""
    return _START_S + (1 + _ROUNDS) * answers_s


def told_of_end(
    forms: Sequence[LanguageForm], processes: int, budget: AnswerBudget | None, shares: TimeShares
) -> Note | None:
    """Return what a run that was interrupted, or ran out of time, chose; None of one that was not."""
    if not (shares.was_cut or shares.is_late):
        return None
    why = "interrupted" if shares.was_cut else "time limit reached"
    enough = longer(shares.enough_s) if shares.enough_s else LONGER
    remedy = "the same command with --resume takes up the forms" if shares.was_cut else enough
    chosen = next(form for form in forms if form.name == choose_form(forms, budget))
    if chosen.name in ORIGINALS:
        detail = f"{why} before a form was proven faster: the bundle holds the original"
        return Note(NoteKind.WARNING, detail, remedy)
    count = chosen.speed["answer"].processes
    if count >= processes and not shares.was_cut:
        return None
    detail = f"{why}: {chosen.name} is proven faster by {count} of {processes} fresh processes"
    return Note(NoteKind.WARNING, detail, remedy)


def _unproven(form: LanguageForm) -> LanguageForm:
    def told(ratio: Ratio) -> Ratio:
        return replace(ratio, verdict=Change.UNCONFIRMED) if ratio.verdict is Change.FASTER else ratio

    return replace(form, speed={part: told(ratio) for part, ratio in form.speed.items()})


def _medians(turns: FormTurns) -> dict[str, float]:
    return {part: turns.median_ms(part) for part in PARTS}


def _all(turns: Iterable[FormTurns]) -> FormTurns:
    return reduce(FormTurns.joined, turns)
