"""The beginning of an `optimize` of an encoder with a decoder, and the folder into which its forms are written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.measurement.generation.held_out import read_sources, require_answers
from edgeopt.measurement.generation.right_writer import open_right_pair
from edgeopt.measurement.generation.sides.turns import Prompt
from edgeopt.optimization.encoder_decoder.forms import DECODER_FORMS, ENCODER_FORMS, FLOAT, PartForm
from edgeopt.optimization.generation.resume import Left
from edgeopt.optimization.generation.writer_run import FormMaker, WriterRun
from edgeopt.recipes.texts.encoder_decoder import DECODER, ENCODER, EncoderDecoderFiles, configurations
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.steps.convert.encoder_decoder_pair import Pair, read_pair
from edgeopt.system.declared.target import Target

IN_FLOAT = f"{FLOAT}-{FLOAT}"
"""Name of the pair that a model of more graphs becomes."""
_JOINED = "the encoder makes keys and values, one decoder"
_TOO_SMALL = "no matrix of constant weights is large enough"


@dataclass(frozen=True, slots=True)
class PairStart:
    """An encoder with a decoder, open, with the sounds or texts that judge and the folder of its forms."""

    original: EncoderDecoder
    sources: Sequence[Prompt]
    left: Left


@contextmanager
def started_pair(run: WriterRun, path: Path) -> Iterator[PairStart]:
    """Open an encoder with a decoder, read what it hears or reads, and take the output folder.

    Args:
        run: What is asked.
        path: Its folder.

    Raises:
        EdgeoptError: If the model and the sounds or texts do not fit, or the folder holds something else.
    """
    with open_right_pair(path, run.threads) as original:
        files = original.files
        require_answers(original, run.options.output_tokens)
        sources, parts = read_sources(run.options.eval, original), [load_model(file) for file in files.files]
        left = run.take_folder(files.name, parts, graphs=(ENCODER, DECODER))
        yield PairStart(original, sources, left)


@dataclass(frozen=True)
class PairWorkplace:
    """Where forms of both parts are made and written, and the original.

    What makes a form returns why there is none, or nothing: one that an earlier run made is that form.
    """

    left: Left
    files: EncoderDecoderFiles
    device: Target

    @property
    def original(self) -> Path:
        """Folder of the original, with configurations and tokenizer."""
        return self.files.tokenizer.parent

    @cached_property
    def pair(self) -> Pair:
        """Encoder and decoder as they came, each one graph."""
        return read_pair(self.files)

    def join(self) -> str:
        """Write the pair in float of a model that came in more graphs."""
        if self.left.is_finished(IN_FLOAT):
            return ""
        if self.left.handover is not None:
            return self.left.why_not_here(IN_FLOAT, _TOO_SMALL)
        self._write(IN_FLOAT, self.pair.encoder, self.pair.decoder)
        return ""

    def make_encoder(self, form: PartForm) -> str:
        """Make a form of the encoder, beside the decoder in float."""
        name = f"{form.name}-{FLOAT}"
        if self.left.is_finished(name):
            return ""
        if self.left.handover is not None:
            return self.left.why_not_here(name, _TOO_SMALL)
        outcome = form.make(self.pair.encoder, self.device)
        if not outcome.changes:
            return _TOO_SMALL
        self._write(name, outcome.model, self.pair.decoder)
        return ""

    def make_decoder(self, form: PartForm, encoder: str = FLOAT) -> str:
        """Make a form of the decoder, beside a form of the encoder that is there.

        Where another machine made the forms, it is that machine's, which lies beside the encoder in float.
        """
        name, beside = f"{encoder}-{form.name}", self.left.place(f"{encoder}-{FLOAT}")
        if self.left.is_finished(name):
            return ""
        made: Model | Path
        if self.left.handover is not None:
            alone = f"{FLOAT}-{form.name}"
            if not self.left.is_finished(alone):
                return self.left.why_not_here(alone, _TOO_SMALL)
            made = self.left.place(alone)
        else:
            outcome = form.make(self.pair.decoder, self.device)
            if not outcome.changes:
                return _TOO_SMALL
            made = outcome.model
        self._write(name, self.pair.encoder if encoder == FLOAT else beside, made)
        return ""

    def encoder_makers(self) -> list[FormMaker]:
        """Return what makes the forms of the encoder beside the decoder in float, behind a pair of a model in parts."""
        joined = [] if self.files.is_pair else [self._maker(IN_FLOAT, _JOINED, self.join)]
        encoders = [
            self._maker(f"{form.name}-{FLOAT}", f"encoder: {form.told}", partial(self.make_encoder, form))
            for form in ENCODER_FORMS
        ]
        return [*joined, *encoders]

    def decoder_makers(self, encoder: str = FLOAT) -> list[FormMaker]:
        """Return what makes the forms of the decoder, beside a form of the encoder that is there."""
        return [
            self._maker(f"{encoder}-{form.name}", f"decoder: {form.told}", partial(self.make_decoder, form, encoder))
            for form in DECODER_FORMS
        ]

    def _maker(self, name: str, text: str, make: Callable[[], str]) -> FormMaker:
        return FormMaker(name, text, name, self.left.place(name), make, self.left.is_finished(name))

    def _write(self, name: str, encoder: Model | Path, decoder: Model | Path) -> None:
        """Write a form into a folder of its own, with all that is read beside it.

        Args:
            name: Of the form.
            encoder: Its graph, or the folder of the form whose encoder it is.
            decoder: As `encoder`.
        """
        place = self.left.place(name)
        place.mkdir(parents=True, exist_ok=True)
        for graph, made in ((ENCODER, encoder), (DECODER, decoder)):
            if isinstance(made, Model):
                save_model(made, place / graph)
                continue
            for file in made.glob(f"{graph}*"):
                shutil.copyfile(file, place / file.name)
        for configuration in (*configurations(self.original), self.files.tokenizer):
            shutil.copyfile(configuration, place / configuration.name)
        self.left.finish(name)
