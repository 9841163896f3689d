"""`optimize` of an encoder with a decoder: how it is opened, the forms of both parts, its bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.export.export import names_pair
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.held_out import (
    HeldOut,
    hold_out,
    lengths_of,
    no_sources,
    read_transcripts,
    score_answers,
)
from edgeopt.optimization.encoder_decoder.forms import DECODER_FORMS, ENCODER_FORMS, FLOAT
from edgeopt.optimization.encoder_decoder.words import refuse_by_words
from edgeopt.optimization.encoder_decoder.workplace import IN_FLOAT, JOINED, PairWorkplace, started_pair
from edgeopt.optimization.folder.handover import MadeHere, hand_over
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.deploy import FOLDER, told_of
from edgeopt.optimization.generation.forms.memory import JUDGED_COPIES, require_room
from edgeopt.optimization.generation.life import (
    Made,
    WriterRun,
    export_first,
    judge_forms,
    line_of_form,
    make_forms_here,
    prove_and_write,
)
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.generation.time_shares import TimeShare
from edgeopt.recipes.texts.encoder_decoder import read_encoder_decoder, recipe_of
from edgeopt.runtime.bundle import Bundle, is_bundle, make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.bundles.parts import Artefact, Expected
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.selftest_pair import record_pair
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps._context import Listener
from edgeopt.system.declared.target import Target, TargetElsewhere
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.processes.time_limit import limited, require_time
from edgeopt.system.text import plural


def deploy_encoder_decoder(report: LanguageReport, target: Target) -> Bundle:
    """Write the bundle of the chosen form into the output folder.

    Args:
        report: Whose choice it is.
        target: Whose engine opens it, with the entries with which forms were measured.

    Raises:
        InvalidFileError: If the disk is full.
    """
    best, weights = report.best, dict[str, PieceLayout]()
    files = read_encoder_decoder(Path(best.file))
    heard, _, written = best.precision.partition("-")
    made = list[tuple[Artefact, bytes]]()
    for file in files.files:
        model = load_model(file)
        data, beside = in_bundle(model, weights)
        precision = heard if file == files.encoder else (written or heard).partition("+")[0]
        other = make_artefact(file.name, data, precision, target, report.threads, model.inputs, model.outputs)
        made.append((replace(other, weights=beside, expected=Expected(agreement=best.agreement)), data))
    with open_encoder_decoder(Path(best.file), report.threads) as judged:
        test, numbers, limit = record_pair(judged, best.precision)
    named = {artefact.file: (artefact, data) for artefact, data in made}
    decoder, decoder_data = named.pop(files.following.name)
    return write_bundle(
        report.folder / FOLDER,
        [(replace(decoder, noise_limits={LOGITS: limit}), decoder_data)],
        target,
        replace(recipe_of(files), name=report.model),
        told_of(report, best),
        package_versions(),
        weights=weights,
        parts=list(named.values()),
        selftest=(test, numbers),
    )


_COPIES = 6
"""Times the size of the weights: original and form are open, and a form is made."""


@guarded()
def optimize_encoder_decoder(
    model: str,
    *,
    target: str,
    out: Path | None,
    options: LanguageOptions,
    listener: Listener,
    began_s: float | None = None,
) -> LanguageReport:
    """Make the forms of both parts, judge and measure them, and write the pair that is proven fastest.

    Args:
        model: A folder that optimum-cli or `edgeopt export` wrote; or `hf:FOLDER`, exported first.
        target: One that runs ONNX Runtime on the processor of this machine.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked; `eval` names the sounds or texts that judge.
        listener: Hears how far it is.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: If the model or the sounds or texts do not fit, or memory does not suffice.
    """
    run = WriterRun.begin(find_device(target), options, listener, began_s)
    path, device, shares = _folder_of(model, target, out, options, listener), run.device, run.shares
    with started_pair(path, device, named=target, out=out, options=options, threads=run.threads) as start:
        original, files, sources, left = start.original, start.original.files, start.sources, start.left
        require_room((_COPIES if left.handover is None else JUDGED_COPIES) * original.size_bytes)
        shares.say()
        with limited(shares.end_s(TimeShare.JUDGED)):
            held = hold_out(
                original,
                sources,
                options.output_tokens,
                lambda done, of: listener.progress("the original answers", done, of),
                read_transcripts(options.eval, original),
            )
        if len(held) < len(sources):
            shares.warn(f"{len(held)} of {plural(len(sources), _kind(held))} judge")
        listener.say(f"{_told(held)} judge, by the original's answers")
        contest = run.contest(
            original,
            held,
            [held_out.source for held_out in held],
            AnswerOptions(most_tokens=options.output_tokens, ends=False),
            score=score_answers,
        )
        forms = _PairForms(contest, PairWorkplace(left, files, device))
        language_forms = judge_forms(
            run,
            contest,
            forms.made,
            forms.place.original,
            names=lambda: forms.names,
            enter=forms.enter,
            refuse=lambda: forms.made.more.extend(refuse_by_words(contest, forms.made.entrants, shares)),
        )
    answers, text = plural(options.output_tokens, "token"), Path(options.eval).name
    told = {
        "model": files.name,
        "prompt_tokens": 0,
        "text": text,
        "window_tokens": 0,
        "calibration": "",
        "told_lengths": f"{lengths_of([each.source for each in held])}, answers of {answers}",
        "told_judge": f"the original's answers to {_told(held)} of {text}",
        "asks": "SOUND.wav" if files.audio else "--prompt TEXT",
    }
    opened_as = replace(device, options=original.origin.entries)
    return prove_and_write(
        run,
        contest,
        language_forms,
        left.folder,
        told=told,
        guess=lambda _: None,
        deploy=lambda report: deploy_encoder_decoder(report, opened_as),
        notes=lambda: (*files.notes, *(left.handover.told if left.handover else ()), *forms.made.notes),
    )


@guarded()
def make_pair_forms_for(
    model: str,
    target: TargetElsewhere,
    *,
    named: str,
    out: Path | None,
    options: LanguageOptions,
    listener: Listener,
    began_s: float | None = None,
) -> MadeHere:
    """Make the forms of both parts for a device elsewhere, which puts pairs of them together and measures those.

    Args:
        model: As `optimize_encoder_decoder`, like all that follow.
        target: See `find_device_elsewhere`.
        named: The target as it was named.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked.
        listener: Hears how far it is.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: As `optimize_encoder_decoder`, for everything that can be known before forms are judged.
        KeyboardInterrupt: What is finished stays on disk, and a run that resumes takes it up.
    """
    run = WriterRun.begin(target, options, listener, began_s, is_here=False)
    is_exported, path, shares = names_pair(model), _folder_of(model, named, out, options, listener), run.shares
    with started_pair(path, target, named=named, out=out, options=options, threads=run.threads) as start:
        if not start.left.is_complete:
            require_room(_COPIES * start.original.size_bytes)
            shares.say_here(target.address)
            place = PairWorkplace(replace(start.left, handover=None), start.original.files, target)
            names = make_forms_here(place.makers(), shares)
            hand_over(start.left.folder, start.left.described, names, ())
    return MadeHere(str(path) if is_exported else model, start.left.folder)


def _folder_of(model: str, target: str, out: Path | None, options: LanguageOptions, listener: Listener) -> Path:
    """Return the folder of a model; of a source the one that it is exported to first."""
    if is_bundle(Path(model)):
        raise EdgeoptError(f"{model} is a bundle already", remedy="name the folder that it was made of")
    if not names_pair(model):
        return Path(model)
    return export_first(model, target, out, listener, None if options.eval else no_sources())


@dataclass
class _PairForms:
    """The forms of both parts, made and entered into the contest."""

    contest: FormContest
    place: PairWorkplace
    made: Made = field(default_factory=Made)
    best_encoder: str = FLOAT
    """Name of the encoder's form that decoders are tried beside."""

    @property
    def names(self) -> list[str]:
        """Names of all forms that are tried."""
        encoders = [f"{form.name}-{FLOAT}" for form in ENCODER_FORMS]
        return [*encoders, *(f"{self.best_encoder}-{form.name}" for form in DECODER_FORMS)]

    def enter(self, ahead: Ahead) -> None:
        """Let forms of the encoder compete beside the decoder in float, then the decoder's beside the fastest encoder.

        Raises:
            OutOfTime: At the end of a time limit; what was judged before it stays.
        """
        entrants = self.made.entrants
        count = len(ENCODER_FORMS) + len(DECODER_FORMS) + (not self.place.files.is_pair)
        if not self.place.files.is_pair:
            self._make_and_enter(self.place.join, IN_FLOAT, JOINED)
        for form in ENCODER_FORMS:
            ahead.tell_making(len(entrants), count, entrants)
            make = partial(self.place.make_encoder, form)
            self._make_and_enter(make, f"{form.name}-{FLOAT}", f"encoder: {form.told}")
        leader = self.contest.leader(entrants)
        if leader is not None and leader.ratio("answer").speedup > 1:
            self.best_encoder = leader.name.partition("-")[0]
        for form in DECODER_FORMS:
            ahead.tell_making(len(entrants), count, entrants)
            make = partial(self.place.make_decoder, form, self.best_encoder)
            self._make_and_enter(make, f"{self.best_encoder}-{form.name}", f"decoder: {form.told}")
        ahead.tell_making(count, count, entrants)

    def _make_and_enter(self, make: Callable[[], str], name: str, text: str) -> None:
        """Make a form, and let it into the contest; one that there is not is left out."""
        require_time()
        if why := make():
            self.made.leave_out(name, why)
            return
        entrant = Entrant(name, text, name, self.place.left.place(name))
        self.contest.listener.say(line_of_form(name, entrant.file, text, is_known=name in self.place.known))
        self.contest.enter(entrant)
        self.made.take(entrant)


def _kind(held: Sequence[HeldOut]) -> str:
    return "sound" if isinstance(held[0].source, Sound) else "text"


def _told(held: Sequence[HeldOut]) -> str:
    tokens = sum(len(held_out.answer) for held_out in held)
    return f"{plural(len(held), _kind(held))} ({plural(tokens, 'token')} of answers)"
