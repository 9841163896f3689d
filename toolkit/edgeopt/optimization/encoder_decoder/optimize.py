"""`optimize` of an encoder with a decoder: how it is opened, the forms of both parts, its bundle."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.export.export import names_pair
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model, save_model
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.held_out import (
    HeldOut,
    hold_out,
    lengths_of,
    no_sources,
    read_sources,
    read_transcripts,
    require_answers,
    score_answers,
)
from edgeopt.measurement.generation.right_writer import open_right_pair
from edgeopt.measurement.generation.sides.turns import PARTS
from edgeopt.optimization.encoder_decoder.forms import DECODER_FORMS, ENCODER_FORMS, FLOAT, PartForm
from edgeopt.optimization.encoder_decoder.words import refuse_by_words
from edgeopt.optimization.generation.ahead import Ahead
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.deploy import FOLDER, told_of
from edgeopt.optimization.generation.life import (
    Made,
    WriterRun,
    export_first,
    find_processor,
    judge_forms,
    prove_and_write,
)
from edgeopt.optimization.generation.memory import require_room
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import LanguageReport
from edgeopt.optimization.generation.resume import Left, take_folder
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.optimize import device_name
from edgeopt.recipes.texts.encoder_decoder import (
    DECODER,
    ENCODER,
    EncoderDecoderFiles,
    configurations,
    read_encoder_decoder,
    recipe_of,
)
from edgeopt.runtime.bundle import Artefact, Bundle, Expected, is_bundle, make_artefact, write_bundle
from edgeopt.runtime.bundle_models import in_bundle
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.selftest_pair import record_pair
from edgeopt.steps._context import Listener
from edgeopt.steps.convert.encoder_decoder_pair import Pair, read_pair
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import limited, require_time
from edgeopt.system.text import format_bytes, plural


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


_JOINED = "the encoder makes keys and values, one decoder"
_COPIES = 6
"""Times the size of the weights: original and form are open, and a form is made."""
_ENCODER, _DECODER = "encoder", "decoder"


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
    began_s, device = monotonic() if began_s is None else began_s, find_processor(target)
    if is_bundle(Path(model)):
        raise EdgeoptError(f"{model} is a bundle already", remedy="name the folder that it was made of")
    threads = engine_threads(options.threads)
    if (is_source := names_pair(model)) and not options.eval:
        raise no_sources()
    path = export_first(model, target, out, listener) if is_source else Path(model)
    shares = TimeShares(options.time_limit_s, listener, began_s)
    with open_right_pair(path, threads) as original:
        files = original.files
        require_answers(original, options.output_tokens)
        require_room(_COPIES * original.size_bytes)
        sources = read_sources(options.eval, original)
        folder = out or Path("out") / f"{files.name}-{device_name(target)}"
        graphs = [load_model(file) for file in files.files]
        of_form = ENCODER, DECODER
        left = take_folder(folder, files.name, graphs, device, (), resumes=options.resume, graphs=of_form)
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
        contest = FormContest(
            original=original,
            windows=held,
            prompts=[held_out.source for held_out in held],
            asked=AnswerOptions(most_tokens=options.output_tokens, ends=False),
            threads=threads,
            max_rise=options.max_rise,
            seconds=options.seconds,
            parts=PARTS if options.budget else ("answer",),
            listener=listener,
            score=score_answers,
        )
        forms = _PairForms(contest, _Workplace(left, files), device)
        run = WriterRun(options, device, folder, threads, shares, began_s)
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
        told=told,
        guess=lambda _: None,
        deploy=lambda report: deploy_encoder_decoder(report, opened_as),
        notes=lambda: (*files.notes, *forms.made.notes),
    )


@dataclass(frozen=True, slots=True)
class _Workplace:
    """Where forms are written, and the original."""

    left: Left
    files: EncoderDecoderFiles

    @property
    def original(self) -> Path:
        """Its folder, with configurations and tokenizer."""
        return self.files.tokenizer.parent

    def write(self, name: str, pair: Pair) -> None:
        """Write a form into a folder of its own, with all that is read beside it."""
        place = self.left.place(name)
        place.mkdir(parents=True, exist_ok=True)
        save_model(pair.encoder, place / ENCODER)
        save_model(pair.decoder, place / DECODER)
        for configuration in (*configurations(self.original), self.files.tokenizer):
            shutil.copyfile(configuration, place / configuration.name)
        self.left.finish(name)


@dataclass
class _PairForms:
    """The forms of both parts, made and entered into the contest."""

    contest: FormContest
    place: _Workplace
    device: Target
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
        pair, entrants = read_pair(self.place.files), self.made.entrants
        count = len(ENCODER_FORMS) + len(DECODER_FORMS) + (not self.place.files.is_pair)
        if not self.place.files.is_pair:
            self.place.write(name := f"{FLOAT}-{FLOAT}", pair)
            self._enter_form(name, _JOINED)
        for form in ENCODER_FORMS:
            ahead.tell_making(len(entrants), count, entrants)
            name = f"{form.name}-{FLOAT}"
            if self._is_made(name, _ENCODER, form, pair):
                self._enter_form(name, f"encoder: {form.told}")
        leader = self.contest.leader(entrants)
        if leader is not None and leader.ratio("answer").speedup > 1:
            self.best_encoder = leader.name.partition("-")[0]
        if self.best_encoder != FLOAT:
            pair = Pair(load_model(self.place.left.place(f"{self.best_encoder}-{FLOAT}") / ENCODER), pair.decoder)
        for form in DECODER_FORMS:
            ahead.tell_making(len(entrants), count, entrants)
            name = f"{self.best_encoder}-{form.name}"
            if self._is_made(name, _DECODER, form, pair):
                self._enter_form(name, f"decoder: {form.told}")
        ahead.tell_making(count, count, entrants)

    def _is_made(self, name: str, part: str, form: PartForm, pair: Pair) -> bool:
        """Make a form of a part, unless an earlier run made it; return whether there is one."""
        require_time()
        if self.place.left.is_finished(name):
            return True
        outcome = form.make(pair.encoder if part == _ENCODER else pair.decoder, self.device)
        if not outcome.changes:
            self.made.leave_out(name, "no matrix of constant weights is large enough")
            return False
        is_encoder = part == _ENCODER
        self.place.write(name, Pair(outcome.model, pair.decoder) if is_encoder else Pair(pair.encoder, outcome.model))
        return True

    def _enter_form(self, name: str, text: str) -> None:
        entrant = Entrant(name, text, name, self.place.left.place(name))
        size = sum(file.stat().st_size for file in entrant.file.glob("*.onnx*"))
        self.contest.listener.say(f"{name:<14} {format_bytes(size):>10}  {text}")
        self.contest.enter([entrant])
        self.made.take([entrant])


def _kind(held: Sequence[HeldOut]) -> str:
    return "sound" if isinstance(held[0].source, Sound) else "text"


def _told(held: Sequence[HeldOut]) -> str:
    tokens = sum(len(held_out.answer) for held_out in held)
    return f"{plural(len(held), _kind(held))} ({plural(tokens, 'token')} of answers)"
