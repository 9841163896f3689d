"""The life of an `optimize` of a model that writes tokens: forms are judged and timed, one is proven and written.

A language model and an encoder with a decoder differ in how they are opened, in their forms and in their bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime.providers import CPU
from edgeopt.export.export import export_for
from edgeopt.graph.model import Model
from edgeopt.measurement.generation.budget import BUDGET_SECONDS, prove_budget
from edgeopt.measurement.generation.sides.turns import PARTS, Prompt, Writes
from edgeopt.optimization.folder.handover import MadeHere
from edgeopt.optimization.folder.workspace import holds_run, lock_run
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.proof import as_forms, bytes_of_form, prove, told_of_end
from edgeopt.optimization.generation.result import BASELINE, LANGUAGE_RUN, GuessChoice, LanguageForm, LanguageReport
from edgeopt.optimization.generation.resume import MODEL, Left, mark_folder
from edgeopt.optimization.generation.summary import summarize_language
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.optimize import folder_of_run
from edgeopt.optimization.report.columns import write_document
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_writer
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps._context import Listener
from edgeopt.system.amounts import Tenths
from edgeopt.system.declared.target import Target, TargetElsewhere
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import OutOfTime, limited, longer, require_time, time_left_s
from edgeopt.system.text import format_bytes, typed_duration

_MAKING = "make forms"
_MADE_BYTES = 1 << 30
"""Bytes of float weights that become integers and are written in a second, where it goes fast: those of `w8a8`."""


@dataclass(frozen=True, slots=True)
class WriterRun:
    """One call of `optimize`; its folder is locked until its `with` ends."""

    options: LanguageOptions
    device: Target
    named: str
    """The target as it was named."""
    out: Path | None
    """Folder to write; None: `out/MODEL-TARGET`."""
    threads: int
    shares: TimeShares
    began_s: float
    """When the command began, on the monotonic clock."""
    held: ExitStack = field(default_factory=ExitStack)
    """The lock of its folder."""

    @classmethod
    def begin(
        cls,
        device: Target,
        options: LanguageOptions,
        listener: Listener,
        began_s: float | None,
        *,
        named: str,
        out: Path | None,
    ) -> WriterRun:
        """Begin a call: its time starts, and its threads are chosen.

        Args:
            device: Target of the run; of one elsewhere threads are the device's, as far as they are here.
            options: What is asked.
            listener: Hears how far it is.
            began_s: When a time limit began, on the monotonic clock; None: now.
            named: The target as it was named.
            out: Folder to write; None: `out/MODEL-TARGET`.

        Raises:
            UnsupportedError: If the target does not run ONNX Runtime on a processor.
            EdgeoptError: If a budget is asked for, which is of one answer, and several clients.
        """
        require_processor(device)
        if options.clients > 1 and options.budget:
            raise EdgeoptError(
                "a --budget is of one answer, and --clients asks for several", remedy="leave one of them out"
            )
        began_s = monotonic() if began_s is None else began_s
        is_elsewhere = isinstance(device, TargetElsewhere)
        threads = engine_threads(0, options.threads) if is_elsewhere else engine_threads(options.threads)
        shares = TimeShares(options.time_limit_s, listener, began_s)
        return cls(options, device, named, out, threads, shares, began_s)

    def __enter__(self) -> WriterRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def require_time(self) -> None:
        """Raise where no form could be judged within the time limit any more: all before took too long.

        Raises:
            EdgeoptError: If so.
        """
        if monotonic() > self.shares.end_s(TimeShare.FORMS):
            limit, spent_s = typed_duration(1000 * (self.options.time_limit_s or 0.0)), self.shares.spent_s
            raise EdgeoptError(
                f"opening the model and reading the texts took {spent_s:.0f} s: too long for the time limit of {limit}",
                remedy=longer(spent_s / TimeShare.FEWER.value),
            )

    def exported(self, source: str, missing: Callable[[], EdgeoptError]) -> Path:
        """Export a source, tell of it, and return the file, or the folder of an encoder with a decoder.

        Args:
            source: As `export` takes it.
            missing: What is wrong, before minutes are spent, where no text or sound was named that judges forms.

        Raises:
            EdgeoptError: If it cannot be exported, or nothing judges it.
        """
        if not self.options.eval:
            raise missing()
        self.shares.listener.say(f"export {source}")
        made = export_for(source, self.named, self.out)
        self.shares.listener.say(f"exported to {made.file}, compared with {made.framework}")
        return made.file

    def take_folder(
        self,
        name: str,
        models: Sequence[Model],
        calibration: Sequence[Sequence[int]] = (),
        graphs: tuple[str, ...] = (MODEL,),
    ) -> Left:
        """Take the output folder, and lock it.

        Args:
            name: Of the model.
            models: The original, a model or its parts.
            calibration: Windows of the text that forms are fitted to.
            graphs: Files of a form.

        Raises:
            InvalidFileError: If it holds something else, or is to be resumed and holds another run.
            EdgeoptError: If another run writes there.
        """
        folder = folder_of_run(self.out, name, self.named)
        holds_run(folder, LANGUAGE_RUN)
        self.held.enter_context(lock_run(folder))
        return mark_folder(folder, name, models, self.device, calibration, resumes=self.options.resume, graphs=graphs)

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


@guarded()
def optimize_writer(
    search: Callable[[WriterRun, str], LanguageReport],
    model: str,
    *,
    target: str,
    out: Path | None,
    options: LanguageOptions,
    listener: Listener,
    began_s: float | None = None,
) -> LanguageReport:
    """Make the forms of a model that writes tokens, judge and measure them, and write what is proven fastest.

    Args:
        search: Does so, for the kind of model.
        model: Shipped name, ONNX file or folder, with recipe or configurations beside it; or `hf:FOLDER`, exported
            first.
        target: One that runs ONNX Runtime on the processor of this machine.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked; `eval` names the text, or the sounds or texts, that judge.
        listener: Hears how far it is.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        UnsupportedError: If this machine is not the target: forms are chosen by their times, and these are of here.
        EdgeoptError: If the model, what judges it or the lengths do not fit, or memory does not suffice.
    """
    device = find_device(target)
    if (reason := device.why_unfit()) and not isinstance(device, TargetElsewhere):
        raise UnsupportedError(
            f"forms are chosen by the times of their answers, and {reason}",
            remedy="optimize on the device, or make the forms here and let it measure: --on ssh://USER@HOST",
        )
    with WriterRun.begin(device, options, listener, began_s, named=target, out=out) as run:
        return search(run, model)


@guarded()
def make_writer_forms_for(
    make: Callable[[WriterRun, str, TargetElsewhere], MadeHere],
    model: str,
    target: TargetElsewhere,
    *,
    named: str,
    out: Path | None,
    options: LanguageOptions,
    listener: Listener,
    began_s: float | None = None,
) -> MadeHere:
    """Make the forms of a model that writes tokens for a device elsewhere, which takes them up and measures them.

    Args:
        make: Does so, for the kind of model.
        model: As `optimize_writer`, like all that follow.
        target: See `find_device_elsewhere`.
        named: The target as it was named.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked.
        listener: Hears how far it is.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: As `optimize_writer`, for everything that can be known before forms are judged.
        KeyboardInterrupt: What is finished stays on disk, and a run that resumes takes it up.
    """
    with WriterRun.begin(target, options, listener, began_s, named=named, out=out) as run:
        return make(run, model, target)


@dataclass
class Made:
    """The forms that were made and judged, and those that were left out."""

    entrants: list[Entrant] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Names by the reason."""
    more: list[Note] = field(default_factory=list)
    begun: str = ""
    """Name of the form that was made or judged last."""
    longest_s: float = field(init=False, default=0.0)
    """Seconds of the form that was made slowest: those that come later are fitted to a text, and take no less."""

    @contextmanager
    def making(self, name: str, contest: FormContest, *, is_known: bool, least_s: float = 0.0) -> Iterator[None]:
        """Make a form, unless time is not left to judge it as well, if it takes as long as any before it.

        Args:
            name: Of the form.
            contest: That is to judge it.
            is_known: Whether an earlier run made it.
            least_s: Seconds that making it takes at the least, by what it is made of.

        Raises:
            OutOfTime: If so; nothing is made.
        """
        require_time((0.0 if is_known else max(self.longest_s, least_s)) + contest.entering_s(self.entrants))
        self.begun, began_s = name, monotonic()
        yield
        if not is_known:
            self.longest_s = max(self.longest_s, monotonic() - began_s)

    def leave_out(self, name: str, why: str) -> None:
        """Tell that a form was left out."""
        self.left_out.setdefault(why, []).append(name)

    def take(self, entrant: Entrant) -> None:
        """Keep an entrant that was judged; one on which the engine aborted has no score, and is left out."""
        if entrant.score is None:
            self.leave_out(entrant.name, entrant.out)
        else:
            self.entrants.append(entrant)

    def told_missing(self, names: Sequence[str]) -> str:
        """Return which forms a time limit left out, and why; empty: none."""
        missing = self.missing_of(names)
        unmade = ", ".join(name for name in missing if name != self.begun)
        texts = [f"no time to judge it: {self.begun}"] if self.begun in missing else []
        return "; ".join([*texts, *([f"not made, as no time was left to judge them: {unmade}"] if unmade else [])])

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
    if shares.is_late and (missing := made.told_missing(names())):
        shares.warn(missing)
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
        max_drop=options.max_rise,
        accuracy_asked=bool(options.eval) or options.max_drop is not None,
        windows=len(contest.windows),
        left_windows=contest.left_windows,
        environment=read_environment(),
        threads=run.threads,
        candidates=tuple(forms),
        chosen=choose_form(forms, options.budget),
        bundle=None,
        budget=options.budget,
        memory_bytes=options.memory_bytes,
        clients=options.clients,
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
    write_document(report, summarize_language(report))
    return report


@dataclass(frozen=True, slots=True)
class FormMaker:
    """A form as it is made: for a contest, or for another machine."""

    name: str
    told: str
    """Description of the form, in a clause."""
    precision: str
    """Its scheme, in the words of targets."""
    file: Path
    """Where it lies: a file, or a folder of graphs."""
    make: Callable[[], str]
    """Makes it, unless an earlier run did; returns why there is none, or nothing."""
    was_finished: bool
    """Whether an earlier run made it."""
    weights_bytes: int = 0
    """Size of what it is made of."""
    read_tokens: int = 0
    """Tokens of text that making it takes as long as the original's reading of."""

    def least_s(self, token_s: float) -> float:
        """Return about how many seconds making it takes at the least.

        Args:
            token_s: Seconds in which the original reads a token.
        """
        return self.weights_bytes / _MADE_BYTES + self.read_tokens * token_s

    @property
    def line(self) -> str:
        """The line that tells of the form, once it is there."""
        size = format_bytes(bytes_of_form(self.file))
        return f"{self.name:<14} {size:>10}  {self.told}{', from disk' if self.was_finished else ''}"


def enter_forms(
    makers: Sequence[FormMaker], contest: FormContest, made: Made, ahead: Ahead, *, done: int = 0, of: int = 0
) -> None:
    """Make forms, one by one, and let each into the contest; one that there is not is left out.

    Args:
        makers: One for each form, in the order in which they are tried.
        contest: Judges and times.
        made: Is filled.
        ahead: Hears how far it is.
        done: Forms that were tried before these.
        of: All forms that are tried; 0: these alone.

    Raises:
        OutOfTime: At the end of a time limit; what was judged before it stays.
    """
    of = of or len(makers)
    for position, maker in enumerate(makers, done):
        ahead.tell_making(position, of, made.entrants)
        least_s = maker.least_s(contest.token_s)
        with made.making(maker.name, contest, is_known=maker.was_finished, least_s=least_s):
            longest_s = made.longest_s
            why = maker.make()
        if why:
            made.longest_s = longest_s  # a look makes nothing longer
            made.leave_out(maker.name, why)
            continue
        contest.listener.say(maker.line)
        entrant = Entrant(maker.name, maker.told, maker.precision, maker.file)
        contest.enter(entrant)
        made.take(entrant)


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
                listener.say(maker.line)
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
                BUDGET_SECONDS * contest.seconds,
                lambda done, of: contest.listener.progress("prove the budget", done, Tenths(of)),
            )
            if not judged.is_decided and time_left_s() < 0:
                shares.warn("the budget is not decided")
            return replace(report, judged=judged)
    text = "interrupted before the budget was decided"
    shares.notes.append(Note(NoteKind.WARNING, text, "edgeopt bench decides it"))
    return report
