"""The life of one call of `optimize` for an encoder with a decoder: its forms, then the decoder's, one choice."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.budget import prove_budget
from edgeopt.measurement.generation.held_out import (
    HeldOut,
    hold_out,
    lengths_of,
    no_sources,
    read_sources,
    require_answers,
    score_answers,
)
from edgeopt.measurement.generation.turns import PARTS
from edgeopt.pipeline.encoder_decoder.deploy import deploy_encoder_decoder
from edgeopt.pipeline.encoder_decoder.forms import DECODER_FORMS, ENCODER_FORMS, FLOAT, PartForm
from edgeopt.pipeline.encoder_decoder.pair import Pair, read_pair
from edgeopt.pipeline.export.export import names_pair
from edgeopt.pipeline.generation.choice import choose_form
from edgeopt.pipeline.generation.contest import Contest, Entrant
from edgeopt.pipeline.generation.optimize import LanguageOptions, export_first, find_processor, require_room
from edgeopt.pipeline.generation.proof import as_forms, prove, told_of_cut
from edgeopt.pipeline.generation.result import LanguageReport
from edgeopt.pipeline.generation.resume import take_folder
from edgeopt.pipeline.generation.summary import summarize_language
from edgeopt.pipeline.optimize import device_name
from edgeopt.recipes.encoder_decoder import DECODER, ENCODER, EncoderDecoderFiles, configurations
from edgeopt.report.formats import write_pages
from edgeopt.runtime.bundle import is_bundle
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import Asked
from edgeopt.steps._context import Listener
from edgeopt.system.environment import read_environment
from edgeopt.system.target import Target
from edgeopt.system.text import format_bytes, plural
from edgeopt.system.threads import engine_threads

_JOINED = "the encoder makes keys and values, one decoder"
_COPIES = 6
"""Times the size of the weights: original and form are open, and a form is made."""
_LONGER = 3
"""Times the seconds of the contest that proving a budget may take."""


def optimize_encoder_decoder(
    model: str, *, target: str, out: Path | None, options: LanguageOptions, listener: Listener
) -> LanguageReport:
    """Make the forms of both parts, judge and measure them, and write the pair that is proven fastest.

    Args:
        model: A folder that optimum-cli or `edgeopt export` wrote; or `hf:FOLDER`, exported first.
        target: One that runs ONNX Runtime on the processor of this machine.
        out: Folder to write; None: `out/MODEL-TARGET`.
        options: What is asked; `text` names the sounds or texts that judge.
        listener: Hears how far it is.

    Raises:
        EdgeoptError: If the model or the sounds or texts do not fit, or memory does not suffice.
    """
    began_s, device = monotonic(), find_processor(target)
    if is_bundle(Path(model)):
        raise EdgeoptError(f"{model} is a bundle already", remedy="name the folder that it was made of")
    threads = engine_threads(options.threads)
    if (is_source := names_pair(model)) and not options.text:
        raise no_sources()
    given = export_first(model, target, out, listener) if is_source else Path(model)
    with open_encoder_decoder(given, threads) as original:
        files = original.files
        require_answers(original, options.output_tokens)
        require_room(_COPIES * original.size_bytes)
        sources = read_sources(options.text, original)
        folder = out or Path("out") / f"{files.name}-{device_name(target)}"
        take_folder(folder, files.name, load_model(files.encoder), device, (), resumes=False)
        place = _Workplace(folder, files)
        held = hold_out(
            original,
            sources,
            options.output_tokens,
            lambda done, of: listener.progress("the original answers", done, of),
        )
        listener.say(f"{_told(held)} judge, by the original's answers")
        contest = Contest(
            original=original,
            windows=held,
            prompts=[one.source for one in held],
            asked=Asked(most_tokens=options.output_tokens, ends=False),
            threads=threads,
            max_rise=options.max_rise,
            seconds=options.seconds,
            parts=PARTS if options.budget else ("answer",),
            listener=listener,
            score=score_answers,
        )
        entrants, notes, was_cut = list[Entrant](), list[Note](), False
        try:
            _enter(read_pair(files), contest, place, device, entrants, notes)
            contest.hold(entrants)
        except KeyboardInterrupt:
            was_cut = True
        found = as_forms(contest, place.original, [one for one in entrants if one.score])
    found, stopped = prove(found, contest, 0 if was_cut else options.processes, options.budget, listener)
    was_cut = was_cut or stopped
    if was_cut:
        notes.append(told_of_cut(found, options.processes, options.budget, resumes=False))
    report = LanguageReport(
        model=files.name,
        target=device.name,
        folder=folder,
        prompt_tokens=0,
        output_tokens=options.output_tokens,
        max_rise=options.max_rise,
        text=Path(options.text).name,
        windows=len(held),
        window_tokens=0,
        calibration="",
        cpu=read_environment().cpu,
        threads=threads,
        forms=tuple(found),
        chosen=choose_form(found, options.budget),
        seconds=0.0,
        budget=options.budget,
        was_cut=was_cut,
        told_lengths=f"{lengths_of([one.source for one in held])}, answers of {plural(options.output_tokens, 'token')}",
        told_judge=f"the original's answers to {_told(held)} of {Path(options.text).name}",
        asks="SOUND.wav" if files.audio else "--prompt TEXT",
    )
    if options.budget and not was_cut:
        with open_encoder_decoder(Path(report.best.file), threads) as chosen:
            seconds = _LONGER * options.seconds
            judged = prove_budget(
                chosen,
                contest.prompts,
                contest.asked,
                options.budget,
                seconds,
                lambda done, of: listener.progress("prove the budget, tenths of a second", done, of),
            )
        report = replace(report, judged=judged)
    bundle = deploy_encoder_decoder(report, device)
    report = replace(report, notes=tuple(notes), seconds=monotonic() - began_s, bundle=bundle.folder)
    write_pages(summarize_language(report), report.folder, "report")
    return report


@dataclass(frozen=True, slots=True)
class _Workplace:
    """Where forms are written, and the original."""

    folder: Path
    files: EncoderDecoderFiles

    @property
    def original(self) -> Path:
        """Its folder, with configurations and tokenizer."""
        return self.files.tokenizer.parent

    def write(self, name: str, pair: Pair) -> Path:
        """Write a form into a folder of its own, with all that is read beside it; return the folder."""
        place = self.folder / "candidates" / name
        place.mkdir(parents=True, exist_ok=True)
        save_model(pair.encoder, place / ENCODER)
        save_model(pair.decoder, place / DECODER)
        for one in (*configurations(self.original), self.files.tokenizer):
            shutil.copyfile(one, place / one.name)
        return place


def _enter(
    pair: Pair, contest: Contest, place: _Workplace, device: Target, entrants: list[Entrant], notes: list[Note]
) -> None:
    """Let forms of the encoder compete beside the decoder in float, then the decoder's beside the fastest encoder."""
    count = len(ENCODER_FORMS) + len(DECODER_FORMS) + (not place.files.is_pair)
    listener = contest.listener

    def enter(name: str, told: str, made: Pair) -> None:
        listener.progress("make, judge and time forms", len(entrants), count)
        one = Entrant(name, told, name, place.write(name, made))
        size = sum(file.stat().st_size for file in one.file.glob("*.onnx*"))
        listener.say(f"{name:<14} {format_bytes(size):>10}  {told}")
        contest.enter([one])
        entrants.append(one)

    encoders, left_out = {FLOAT: pair.encoder}, list[str]()
    if not place.files.is_pair:
        enter(f"{FLOAT}-{FLOAT}", _JOINED, pair)
    for form, made in _made(ENCODER_FORMS, pair.encoder, device, left_out, "encoder"):
        encoders[form.name] = made
        enter(f"{form.name}-{FLOAT}", f"encoder: {form.told}", Pair(made, pair.decoder))
    leader = contest.leader(entrants)
    best = leader.name.partition("-")[0] if leader and leader.ratio("answer").speedup > 1 else FLOAT
    for form, made in _made(DECODER_FORMS, pair.decoder, device, left_out, "decoder"):
        enter(f"{best}-{form.name}", f"decoder: {form.told}", Pair(encoders[best], made))
    listener.progress("make, judge and time forms", count, count)
    if left_out:
        detail = f"left out: {', '.join(left_out)}: no matrix of constant weights is large enough"
        notes.append(Note(NoteKind.INFO, detail))


def _made(
    forms: Sequence[PartForm], model: Model, device: Target, left_out: list[str], part: str
) -> list[tuple[PartForm, Model]]:
    found = list[tuple[PartForm, Model]]()
    for form in forms:
        made = form.make(model, device)
        if made.changes:
            found.append((form, made.model))
        else:
            left_out.append(f"{part} {form.name}")
    return found


def _told(held: Sequence[HeldOut]) -> str:
    kind = "sound" if isinstance(held[0].source, Sound) else "text"
    return f"{plural(len(held), kind)} ({plural(sum(len(one.answer) for one in held), 'token')} of answers)"
