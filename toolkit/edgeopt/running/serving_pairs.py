"""An encoder with a decoder behind an HTTP port: sounds become texts, texts become translations."""

from __future__ import annotations

from pathlib import Path

from edgeopt.measurement.generation.right_writer import correction_of_pair
from edgeopt.running.serving import ServedModel, ServeOptions
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder


def open_pair(model: str, options: ServeOptions) -> ServedModel:
    """Open an encoder with a decoder with its routes: of sounds `/v1/audio/transcriptions`, of texts `/v1/completions`.

    Args:
        model: Its folder, or a bundle.
        options: Its name, limits and threads, and after how long its memory is freed.

    Raises:
        EdgeoptError: If it does not open.
    """
    from edgeopt.runtime.serve.holder import Holder
    from edgeopt.runtime.serve.reader import PromptReader
    from edgeopt.runtime.serve.routes import sounds, texts
    from edgeopt.runtime.serve.watching.tally import Tally
    from edgeopt.runtime.serve.watching.tracing import SpanTracer

    correction, waiting = correction_of_pair(Path(model)), list[EncoderDecoder]()

    def opened() -> EncoderDecoder:
        if waiting:
            return waiting.pop()
        made = open_encoder_decoder(Path(model), options.threads, correction.entries)
        try:
            made.warm_up()
        except BaseException:
            made.close()
            raise
        return made

    first = opened()  # what it hears tells which routes it has
    waiting.append(first)
    files = first.files
    notes = (*files.notes, *correction.notes)
    name = options.name or files.name
    if files.audio is not None:
        heard = Holder(opened, options.keep_s)
        tally = Tally(name, sounds.STAGES, heard, writes=True)
        routes = sounds.Sounds(name, heard, files.audio.rate_hz, options.limits, tally, SpanTracer(name))
        text = "/v1/audio/transcriptions, a WAV in, its text out"
        return ServedModel(name, tally, heard, routes.routes(), routes.close, text, notes)
    written = Holder(lambda: sounds.Translations(opened()), options.keep_s)
    tally = Tally(name, texts.STAGES, written, writes=True)
    reader = PromptReader(first.tokenizer, first.reads + 1, (), None)
    answering = texts.TextRoutes(name, written, reader, options.limits, tally, SpanTracer(name))
    text = "/v1/completions, a text in, the model's answer to it out"
    return ServedModel(name, tally, written, answering.routes()[:1], answering.close, text, notes)
