"""An encoder with a decoder behind an HTTP port: sounds become texts, texts become translations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.measurement.generation.right_writer import correction_of_pair
from edgeopt.measurement.opening.right_optimizations import Correction
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles, read_encoder_decoder
from edgeopt.running.serving import Hosted, ServedModel, ServeOptions, bytes_beside
from edgeopt.runtime.bundle import is_bundle, parse_bundle
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder

if TYPE_CHECKING:
    from edgeopt.runtime.serve.room import MemoryPlace

_SOUNDS, _TRANSLATIONS, _TEXTS = "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/completions"


def hosted_pair(model: str, options: ServeOptions) -> Hosted:
    """Return an encoder with a decoder that can be served.

    Raises:
        EdgeoptError: If its configurations are damaged.
    """
    name, files = _read(Path(model))
    paths = (_SOUNDS, _TRANSLATIONS) if files.audio is not None else (_TEXTS,)
    return Hosted(model, name, paths, sum(map(bytes_beside, files.files)), options, open_pair)


def open_pair(model: str, options: ServeOptions, place: MemoryPlace | None = None) -> ServedModel:
    """Open an encoder with a decoder with its routes: of sounds `/v1/audio/transcriptions`, of texts `/v1/completions`.

    Args:
        model: Its folder, or a bundle.
        options: Its name, limits and threads, and after how long its memory is freed.
        place: Its part of the memory that several models share.

    Raises:
        EdgeoptError: If it does not open.
    """
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.reader import PromptReader
    from edgeopt.runtime.serve.routes import sounds, texts
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    correction = list[Correction]()

    def opened() -> EncoderDecoder:
        if not correction:
            correction.append(correction_of_pair(Path(model)))
        made = open_encoder_decoder(Path(model), options.threads, correction[0].entries)
        try:
            made.warm_up()
        except BaseException:
            made.close()
            raise
        return made

    _, read = _read(Path(model))
    if read.audio is not None:
        heard = Holder(opened, options.keep_s, place)
        with heard.held() as first:
            name, notes = options.name or first.files.name, (*first.files.notes, *correction[0].notes)
        tally = Tally(name, sounds.STAGES, heard, writes=True)
        routes = sounds.Sounds(name, heard, read, options.limits, tally, SpanTracer(name))
        text = f"{_SOUNDS}, a WAV in, its text out"
        return ServedModel(name, tally, heard, routes.routes(), routes.close, text, notes)
    written = Holder(lambda: sounds.Translations(opened()), options.keep_s, place)
    with written.held() as translations:
        first = translations.model
        name, notes = options.name or first.files.name, (*first.files.notes, *correction[0].notes)
        reader = PromptReader(first.tokenizer, first.reads + 1, (), None)
    tally = Tally(name, texts.STAGES, written, writes=True)
    answering = texts.TextRoutes(name, written, reader, options.limits, tally, SpanTracer(name))
    text = f"{_TEXTS}, a text in, the model's answer to it out"
    return ServedModel(name, tally, written, answering.routes()[:1], answering.close, text, notes)


def _read(folder: Path) -> tuple[str, EncoderDecoderFiles]:
    """Return the name of an encoder with a decoder, and its files."""
    if is_bundle(folder):
        bundle = parse_bundle(folder)
        return bundle.recipe.name, read_encoder_decoder(bundle.folder)
    files = read_encoder_decoder(folder)
    return files.name, files
