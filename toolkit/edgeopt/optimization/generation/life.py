"""The life of an `optimize` of a model that writes tokens: forms are judged and timed, one is proven and written.

A language model and an encoder with a decoder differ in how they are opened, in their forms and in their bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors.onnxruntime.providers import CPU
from edgeopt.export.export import export_for
from edgeopt.measurement.generation.budget import prove_budget
from edgeopt.measurement.generation.sides.turns import PARTS, Prompt, Writes
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.proof import as_forms, bytes_of_form, prove, told_of_end
from edgeopt.optimization.generation.result import BASELINE, GuessChoice, LanguageForm, LanguageReport
from edgeopt.optimization.generation.summary import summarize_language
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.report.formats import write_pages
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_writer
from edgeopt.steps._context import Listener
from edgeopt.system.amounts import Tenths
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import OutOfTime, limited, require_time, time_left_s
from edgeopt.system.text import format_bytes

_MAKING = "make forms"
_LONGER = 3
"""Times the seconds of the contest that proving a budget may take."""


@dataclass(frozen=True, slots=True)
class WriterRun:
    """One call of `optimize`."""

    options: LanguageOptions
    device: Target
    threads: int
    shares: TimeShares
    began_s: float
    """When the command began, on the monotonic clock."""

    @classmethod
    def begin(
        cls,
        device: Target,
        options: LanguageOptions,
        listener: Listener,
        began_s: float | None,
        *,
        is_here: bool = True,
    ) -> WriterRun:
        """Begin a call: its time starts, and its threads are chosen.

        Args:
            device: Target of the run.
            options: What is asked.
            listener: Hears how far it is.
            began_s: When a time limit began, on the monotonic clock; None: now.
            is_here: Whether forms are measured on this machine; else threads are the device's, as far as they are here.

        Raises:
            UnsupportedError: If the target does not run ONNX Runtime on a processor.
        """
        require_processor(device)
        began_s = monotonic() if began_s is None else began_s
        threads = engine_threads(options.threads) if is_here else engine_threads(0, options.threads)
        return cls(options, device, threads, TimeShares(options.time_limit_s, listener, began_s), began_s)

    def contest(
        self, original: Writes, windows: Sequence[Any], prompts: Sequence[Prompt], asked: AnswerOptions, **own: Any
    ) -> FormContest:
        """Return the contest of the forms.

        Args:
            original: The model as it came, open.
            windows: What judges.
            prompts: What is answered for the times.
            asked: Of each answer.
            own: Further fields of `FormContest`, of the kind of model.
        """
        return FormContest(
            original=original,
            windows=windows,
            prompts=prompts,
            asked=asked,
            threads=self.threads,
            max_rise=self.options.max_rise,
            seconds=self.options.seconds,
            parts=PARTS if self.options.budget else PARTS[:1],
            listener=self.shares.listener,
            **own,
        )


@dataclass
class Made:
    """The forms that were made and judged, and those that were left out."""

    entrants: list[Entrant] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Names by the reason."""
    more: list[Note] = field(default_factory=list)

    def leave_out(self, name: str, why: str) -> None:
        """Tell that a form was left out."""
        self.left_out.setdefault(why, []).append(name)

    def take(self, entrant: Entrant) -> None:
        """Keep an entrant that was judged; one on which the engine aborted has no score, and is left out."""
        if entrant.score is None:
            self.leave_out(entrant.name, entrant.out)
        else:
            self.entrants.append(entrant)

    def missing_of(self, names: Sequence[str]) -> list[str]:
        """Return those of some names that were neither judged nor left out."""
        known = {
            *(entrant.name for entrant in self.entrants),
            *(name for names in self.left_out.values() for name in names),
        }
        return [name for name in names if name not in known]

    @property
    def notes(self) -> list[Note]:
        """Why forms were left out."""
        parts = [f"left out: {', '.join(names)}: {why}" for why, names in self.left_out.items()]
        return [*(Note(NoteKind.INFO, name) for name in parts), *self.more]


def judge_forms(
    run: WriterRun,
    contest: FormContest,
    made: Made,
    file: Path,
    *,
    names: Callable[[], Sequence[str]],
    enter: Callable[[Ahead], None],
    refuse: Callable[[], None] = lambda: None,
    precision: str = BASELINE,
) -> list[LanguageForm]:
    """Make forms, judge and time them; the original is open meanwhile.

    Args:
        run: What is asked.
        contest: Judges and times.
        made: Is filled.
        file: The original.
        names: Names of all forms that are tried, once `enter` is over.
        enter: Makes forms and lets each into the contest.
        refuse: Takes out forms that lose too much in another way than by their perplexity.
        precision: Scheme of the original, in the words of targets.
    """
    shares, ahead = run.shares, Ahead(contest, run.options.processes)
    with shares.part(TimeShare.FORMS):
        enter(ahead)
    missing = made.missing_of(names())
    if missing and shares.is_late:
        shares.warn(f"not made or not judged: {', '.join(missing)}")
    ahead.tell_timing(made.entrants)
    _time_forms(contest, made.entrants, shares)
    refuse()
    is_hurried = shares.was_cut or shares.is_late
    forms = as_forms(contest, file, made.entrants, is_hurried=is_hurried, precision=precision)
    ahead.tell_proving(made.entrants)
    return forms


def prove_and_write(
    run: WriterRun,
    contest: FormContest,
    forms: list[LanguageForm],
    folder: Path,
    *,
    told: Mapping[str, Any],
    guess: Callable[[LanguageReport], GuessChoice | None],
    deploy: Callable[[LanguageReport], Bundle],
    notes: Callable[[], Sequence[Note]],
) -> LanguageReport:
    """Prove the speed of the best forms in fresh processes, choose, and write bundle and report.

    Args:
        run: What is asked.
        contest: In which the forms were judged.
        forms: All of them, the original first.
        folder: Output folder.
        told: Fields of the report that say what was asked and what judged, by their names.
        guess: Decides whether the chosen form guesses in its bundle; None: nothing is tried.
        deploy: Writes the bundle.
        notes: Notes of the kind of model, once all is done.
    """
    options, shares = run.options, run.shares
    forms = prove(forms, contest, options.processes, options.budget, shares)
    ended = told_of_end(forms, options.processes, options.budget, shares)
    report = LanguageReport(
        target=run.device.name,
        folder=folder,
        output_tokens=options.output_tokens,
        max_rise=options.max_rise,
        accuracy_asked=bool(options.eval) or options.max_drop is not None,
        windows=len(contest.windows),
        cpu=read_environment().cpu,
        threads=run.threads,
        forms=tuple(forms),
        chosen=choose_form(forms, options.budget),
        seconds=0.0,
        budget=options.budget,
        memory_bytes=options.memory_bytes,
        **told,
    )
    report = replace(report, guessing=guess(report))
    report = _with_budget(report, contest, shares)
    bundle = deploy(report)
    report = replace(
        report,
        notes=(*notes(), *shares.notes, *([ended] if ended else [])),
        seconds=monotonic() - run.began_s,
        bundle=bundle.folder,
        was_cut=shares.was_cut,
    )
    write_pages(summarize_language(report), report.folder, "report")
    return report


@dataclass(frozen=True, slots=True)
class FormMaker:
    """A form as it is made for another machine."""

    name: str
    told: str
    """What it is."""
    make: Callable[[], str]
    """Makes it, unless an earlier run did; returns why there is none, or nothing."""
    file_of: Callable[[str], Path]
    """Returns where a form of a name lies: a file, or a folder of graphs."""
    known: Collection[str]
    """Names of forms that an earlier run made, as far as they were asked for."""


def line_of_form(name: str, file: Path, text: str, *, is_known: bool = False) -> str:
    """Return the line that tells of a form which is there.

    Args:
        name: Of the form.
        file: Its file, or the folder of its graphs.
        text: What it is.
        is_known: Whether an earlier run made it.
    """
    return f"{name:<14} {format_bytes(bytes_of_form(file)):>10}  {text}{', from disk' if is_known else ''}"


def make_forms_here(makers: Sequence[FormMaker], shares: TimeShares) -> list[str]:
    """Make forms for another machine, as far as the time goes.

    Args:
        makers: One for each, in the order in which they are tried.
        shares: Their time.

    Returns:
        Names of the forms that machine takes up, with those for which there was no time; not those that are no use.

    Raises:
        KeyboardInterrupt: What is finished stays on disk.
    """
    listener, left_out, done, began_s = shares.listener, set[str](), 0, monotonic()
    with suppress(OutOfTime), limited(shares.end_s(TimeShare.MADE)):
        for maker in makers:
            listener.progress(_MAKING, done, len(makers))
            if done:
                listener.ahead(_MAKING, (monotonic() - began_s) / done * (len(makers) - done), 0.0)
            require_time()
            if maker.make():
                left_out.add(maker.name)
            else:
                is_known = maker.name in maker.known
                listener.say(line_of_form(maker.name, maker.file_of(maker.name), maker.told, is_known=is_known))
            done += 1
    listener.progress(_MAKING, len(makers), len(makers))
    if missing := [maker.name for maker in makers[done:]]:
        shares.warn(f"not made: {', '.join(missing)}")
    return [maker.name for maker in makers if maker.name not in left_out]


def require_processor(device: Target) -> None:
    """Raise where a target does not run ONNX Runtime on a processor.

    Raises:
        UnsupportedError: If so.
    """
    if device.executor != "onnxruntime" or device.providers[0] != CPU:
        raise UnsupportedError(
            f"language models are made for ONNX Runtime on a processor so far, not for {device.name}",
            remedy="--target cpu",
        )


def _time_forms(contest: FormContest, entrants: Sequence[Entrant], shares: TimeShares) -> None:
    """Time the fastest longer, until one is left or their share of the time is over."""
    if shares.was_cut:
        return
    with shares.part(TimeShare.ROUNDS):
        contest.hold(entrants, shares.seconds(contest.seconds, TimeShare.ROUNDS))
    contest.drop_unjudged(entrants)
    contest.drop_unproven(entrants)


def _with_budget(report: LanguageReport, contest: FormContest, shares: TimeShares) -> LanguageReport:
    """Return the report with whether the chosen form keeps the budget, on answers of its own; as it is without one."""
    if report.budget is None:
        return report
    if not shares.was_cut:
        with shares.part(TimeShare.BUDGET), open_writer(Path(report.best.file), contest.threads) as opened:
            judged = prove_budget(
                opened,
                contest.prompts,
                contest.asked,
                report.budget,
                _LONGER * contest.seconds,
                lambda done, of: contest.listener.progress("prove the budget", done, Tenths(of)),
            )
            if not judged.is_decided and time_left_s() < 0:
                shares.warn("the budget is not decided")
            return replace(report, judged=judged)
    text = "interrupted before the budget was decided"
    shares.notes.append(Note(NoteKind.WARNING, text, "edgeopt bench decides it"))
    return report


def export_first(source: str, target: str, out: Path | None, listener: Listener, missing: EdgeoptError | None) -> Path:
    """Export a source, tell of it, and return the file, or the folder of an encoder with a decoder.

    Args:
        source: As `export` takes it.
        target: Shipped name, or path of a TOML file.
        out: Output folder of the run; None: its default.
        listener: Hears of it.
        missing: What to raise, before minutes are spent, where nothing judges an exported model; None: something does.
    """
    if missing is not None:
        raise missing
    listener.say(f"export {source}")
    made = export_for(source, target, out)
    listener.say(f"exported to {made.file}, compared with {made.framework}")
    return made.file
