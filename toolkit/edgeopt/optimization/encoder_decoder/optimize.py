"""`optimize` of an encoder with a decoder: how it is opened, the forms of both parts, its bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edgeopt.errors import EdgeoptError
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
from edgeopt.optimization.encoder_decoder.forms import FLOAT
from edgeopt.optimization.encoder_decoder.words import refuse_by_words
from edgeopt.optimization.encoder_decoder.workplace import PairWorkplace, started_pair
from edgeopt.optimization.folder.handover import MadeHere, hand_over
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.contest import FormContest
from edgeopt.optimization.generation.deploy import FOLDER, told_of
from edgeopt.optimization.generation.forms.memory import JUDGED_COPIES, require_room
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.generation.time_shares import TimeShare
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
from edgeopt.recipes.texts.encoder_decoder import read_encoder_decoder, recipe_of
from edgeopt.runtime.bundle import Bundle, is_bundle, make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.bundles.parts import Artefact, Expected
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.selftest_pair import record_pair
from edgeopt.system.declared.target import Target, TargetElsewhere
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.processes.time_limit import limited
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


def _search(run: WriterRun, model: str) -> LanguageReport:
    """Make the forms of both parts, judge and measure them, and write the pair that is proven fastest."""
    path, device, shares, options = _folder_of(run, model), run.device, run.shares, run.options
    listener = shares.listener
    with started_pair(run, path) as start:
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
        "calibrated_on": "",
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


optimize_encoder_decoder = partial(optimize_writer, _search)
"""`optimize` of an encoder with a decoder."""


def _make_here(run: WriterRun, model: str, target: TargetElsewhere) -> MadeHere:
    """Make the forms of both parts for a device elsewhere, which puts pairs of them together and measures those."""
    path, shares = _folder_of(run, model), run.shares
    with started_pair(run, path) as start:
        if not start.left.is_complete:
            require_room(_COPIES * start.original.size_bytes)
            shares.say_here(target.address)
            place = PairWorkplace(replace(start.left, handover=None), start.original.files, target)
            names = make_forms_here([*place.encoder_makers(), *place.decoder_makers()], shares)
            hand_over(start.left.folder, start.left.described, names, ())
    return MadeHere(str(path) if names_pair(model) else model, start.left.folder)


make_pair_forms_for = partial(make_writer_forms_for, _make_here)
"""The forms of an encoder with a decoder for a device elsewhere."""


def _folder_of(run: WriterRun, model: str) -> Path:
    """Return the folder of a model; of a source the one that it is exported to first."""
    if is_bundle(Path(model)):
        raise EdgeoptError(f"{model} is a bundle already", remedy="name the folder that it was made of")
    return run.exported(model, no_sources) if names_pair(model) else Path(model)


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
        makers = [*self.place.encoder_makers(), *self.place.decoder_makers(self.best_encoder)]
        return [maker.name for maker in makers]

    def enter(self, ahead: Ahead) -> None:
        """Let forms of the encoder compete beside the decoder in float, then the decoder's beside the fastest encoder.

        Raises:
            OutOfTime: At the end of a time limit; what was judged before it stays.
        """
        entrants, encoders = self.made.entrants, self.place.encoder_makers()
        count = len(encoders) + len(self.place.decoder_makers())
        enter_forms(encoders, self.contest, self.made, ahead, of=count)
        leader = self.contest.leader(entrants)
        if leader is not None and leader.ratio("answer").speedup > 1:
            self.best_encoder = leader.name.partition("-")[0]
        decoders = self.place.decoder_makers(self.best_encoder)
        enter_forms(decoders, self.contest, self.made, ahead, done=len(encoders), of=count)
        ahead.tell_making(count, count, entrants)


def _kind(held: Sequence[HeldOut]) -> str:
    return "sound" if isinstance(held[0].source, Sound) else "text"


def _told(held: Sequence[HeldOut]) -> str:
    tokens = sum(len(held_out.answer) for held_out in held)
    return f"{plural(len(held), _kind(held))} ({plural(tokens, 'token')} of answers)"
