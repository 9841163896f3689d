"""An encoder with a decoder behind an HTTP port: sounds become texts, texts become translations."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from edgeopt.errors import EdgeoptError
from edgeopt.graph.files.exported_folder import exported_in
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles, read_encoder_decoder
from edgeopt.running.serving import Hosted, ServedModel, ServeOptions, bytes_beside
from edgeopt.running.transcribing import opened_voice
from edgeopt.runtime.bundle import is_bundle, parse_bundle
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.fallback import least_bytes
from edgeopt.runtime.serve.model_memory import MemoryNeeds

if TYPE_CHECKING:
    from edgeopt.measurement.opening.right_optimizations import Correction
    from edgeopt.runtime.serve.model_memory import MemoryPlace

_SOUNDS, _TRANSLATIONS, _TEXTS = "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/completions"


def hosted_pair(model: str, options: ServeOptions) -> Hosted:
    """Return an encoder with a decoder that can be served.

    Raises:
        EdgeoptError: If its configurations are damaged, or it hears nothing and a model of voice activity is named.
    """
    name, files = _read(Path(model))
    if options.voice and files.audio is None:
        raise EdgeoptError(f"--voice-activity is for models that hear, and {model} reads texts", remedy="leave it out")
    paths = (_SOUNDS, _TRANSLATIONS) if files.audio is not None else (_TEXTS,)
    weights_bytes = sum(map(bytes_beside, files.files)) + (_bytes_of_voice(Path(options.voice)) if options.voice else 0)
    return Hosted(model, name, paths, MemoryNeeds(weights_bytes), options, open_pair)


def _bytes_of_voice(model: Path) -> int:
    """Return the size of a detector; 0 where its name is wrong, which is told when it opens."""
    if is_bundle(model):
        return least_bytes(parse_bundle(model), 0)
    file = exported_in(model) if model.is_dir() else model
    return bytes_beside(file) if file is not None else 0


def open_pair(model: str, options: ServeOptions, place: MemoryPlace | None = None) -> ServedModel:
    """Open an encoder with a decoder with its routes: of sounds `/v1/audio/transcriptions`, of texts `/v1/completions`.

    Args:
        model: Its folder, or a bundle.
        options: Its name, limits and threads, and after how long its memory is freed.
        place: Its part of the memory that several models share.

    Raises:
        EdgeoptError: If it does not open.
    """
    from edgeopt.measurement.generation.right_writer import correction_of_pair  # with onnx, which others do without
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.reader import PromptReader
    from edgeopt.runtime.serve.routes import sounds, texts
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    correction: list[Correction] = []

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
        with ExitStack() as undone:
            voice = undone.enter_context(opened_voice(options.voice, options.threads)) if options.voice else None
            heard = Holder(opened, options.keep_s, place)
            with heard.held() as first:
                name, notes = options.name or first.files.name, (*first.files.notes, *correction[0].notes)
            tally = Tally(name, sounds.STAGES, heard, writes=True)
            routes = sounds.Sounds(name, heard, read, options.limits, tally, SpanTracer(name), voice)
            undone.callback(routes.close)  # before the detector, which its answers ask
            text = f"{_SOUNDS}, a WAV in, its text out{', without its silence' if voice else ''}"
            return ServedModel(name, tally, heard, routes.routes(), undone.pop_all().close, text, notes)
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
