"""The configurations beside an exported encoder and decoder: how texts begin and end, and the sound's features.

Source: `generation_config.json` and `preprocessor_config.json` of Hugging Face transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.graph.files.exported_folder import folder_name
from edgeopt.recipes.inputs.audio import Audio, Features
from edgeopt.recipes.recipe import NO_DECODER, Evaluation, Postprocess, Recipe, read_recipe
from edgeopt.recipes.texts.beams import BeamOptions, BeamStop
from edgeopt.recipes.texts.generation import GENERATION, GenerationTable
from edgeopt.recipes.texts.speech import FirstTokens, SpeechSettings, first_tokens, read_speech
from edgeopt.recipes.texts.tokenizer import Tokenizer
from edgeopt.system.disk.files import read_text, require_regular
from edgeopt.system.disk.links import files_of

_ENCODER, _FIRST, _NEXT, _MERGED = (
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
    "decoder_model_merged.onnx",
)
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
"""Files of a pair: the encoder makes keys and values of what it heard, the decoder takes them, and one token a run."""
_WHISPER = "whisper"
_TEXTS = {"marian": 0, "t5": 0, "mt5": 0, "pegasus": 0, "bart": 1}
"""`model_type` of what reads texts: whether the first token stands before a text; the end stands behind each."""
KINDS = (_WHISPER, *_TEXTS)
"""`model_type` of all that are run here."""
_CONTEXT = 512
"""Tokens of an answer where a configuration tells none."""
_UNUSED: Mapping[str, Any] = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "constraints": None,
    "force_words_ids": None,
}
"""Keys that change which token is chosen and are not computed here, with the values at which they do nothing."""
_STOPS = {"True": BeamStop.FULL, "never": BeamStop.NEVER}
"""Values of `early_stopping`."""
_CONFIGURATIONS = ("config.json", "generation_config.json", "preprocessor_config.json", "recipe.toml")
_REMEDY = "copy the folder again, as optimum-cli export onnx wrote it"


@dataclass(frozen=True, slots=True)
class EncoderDecoderFiles:
    """A folder with an encoder, and a decoder that looks at what it gives."""

    name: str
    kind: str
    """`model_type`."""
    encoder: Path
    first: Path
    """The decoder that takes the first tokens."""
    following: Path
    """Decoder that takes each token after them, with a cache; the same file where one does both."""
    tokenizer: Path
    begin: tuple[int, ...]
    """Tokens that an answer begins with; the model is given them."""
    languages: tuple[int, ...]
    """Tokens of which the model chooses the second one by what it hears; none: it is given."""
    end: tuple[int, ...]
    suppress: tuple[int, ...]
    """Tokens that are never chosen."""
    begin_suppress: tuple[int, ...]
    """Tokens that are not chosen first."""
    context: int
    """Tokens that an answer may have, its first ones too."""
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Tokens before and behind each text that is read."""
    audio: Audio | None
    """How a sound becomes features; None: it reads texts."""
    notes: tuple[Note, ...] = ()
    speech: SpeechSettings | None = None
    """Settings of answers to speech, from the configurations; None: it reads texts."""
    beams: BeamOptions = field(default_factory=BeamOptions)
    """The search that the configuration asks for."""

    @property
    def is_pair(self) -> bool:
        """Whether the encoder itself makes keys and values of what it heard."""
        return self.encoder.name == ENCODER

    @property
    def files(self) -> tuple[Path, ...]:
        """Each graph once."""
        return tuple(dict.fromkeys((self.encoder, self.first, self.following)))


def graphs_in(folder: Path) -> tuple[Path, Path, Path] | None:
    """Return encoder, first and following decoder of a folder; None where it lacks one."""
    for inside in (folder, folder / "onnx"):
        if (inside / ENCODER).is_file() and (inside / DECODER).is_file():
            return inside / ENCODER, inside / DECODER, inside / DECODER
        if not (inside / _ENCODER).is_file():
            continue
        if (inside / _MERGED).is_file():
            return inside / _ENCODER, inside / _MERGED, inside / _MERGED
        if (inside / _FIRST).is_file() and (inside / _NEXT).is_file():
            return inside / _ENCODER, inside / _FIRST, inside / _NEXT
    return None


def configurations(folder: Path) -> list[Path]:
    """Return the files beside the graphs that say how sounds or texts are fed, and answers begin and end."""
    return files_of(folder, _CONFIGURATIONS)


def read_encoder_decoder(folder: Path) -> EncoderDecoderFiles:
    """Read the configurations of a folder in which `graphs_in` found all graphs.

    Raises:
        InvalidFileError: If one is absent or damaged.
        UnsupportedError: If they ask for what is not computed here.
    """
    graphs = graphs_in(folder)
    if graphs is None:
        raise InvalidFileError(f"{folder} holds no encoder with a decoder", remedy=_REMEDY)
    config = _read(folder / "config.json")
    kind = str(config.get("model_type"))
    if kind not in KINDS:
        raise UnsupportedError(
            f"{folder}: an encoder with a decoder of the type {kind[:40]} is not run here",
            remedy=f"those are: {', '.join(KINDS)}",
        )
    settings = folder / "generation_config.json"
    asked = config | (_read(settings) if settings.is_file() else {})
    _require_known(asked, settings)
    tokenizer = folder / "tokenizer.json"
    require_regular(tokenizer, remedy="save it with transformers: AutoTokenizer.from_pretrained(ID).save_pretrained(.)")
    try:
        begin = _begin(asked, kind)
        end = _tokens(asked.get("eos_token_id"))
        if not end or not begin.tokens:
            raise InvalidFileError(f"{settings} names no eos_token_id or decoder_start_token_id", remedy=_REMEDY)
        context = config.get("max_target_positions" if kind == _WHISPER else "max_position_embeddings")
        first = _tokens(asked.get("bos_token_id")) if _TEXTS.get(kind) else ()
        return EncoderDecoderFiles(
            name=folder_name(folder),
            kind=kind,
            encoder=graphs[0],
            first=graphs[1],
            following=graphs[2],
            tokenizer=tokenizer,
            begin=begin.tokens,
            languages=begin.languages,
            end=end,
            suppress=_suppressed(asked),
            begin_suppress=_tokens(asked.get("begin_suppress_tokens")),
            context=int(context or config.get("n_positions") or _CONTEXT),
            around=(first, end[:1]),
            audio=_audio(folder) if kind == _WHISPER else None,
            notes=_notes(asked),
            speech=read_speech(asked, int(asked.get("vocab_size") or 0)) if kind == _WHISPER else None,
            beams=_beams(asked),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise InvalidFileError(f"{settings} holds no token where one is expected: {error}", remedy=_REMEDY) from error


def recipe_of(files: EncoderDecoderFiles) -> Recipe:
    """Return the recipe of a bundle of such a model: what the configurations say is read from them."""
    generation = GenerationTable(files.context, files.end, files.begin, encoder=files.encoder.name)
    return Recipe(
        name=files.name,
        task=GENERATION,
        description=f"{files.kind}: an encoder with a decoder",
        license="that of its source",
        source=files.name,
        postprocess=Postprocess(NO_DECODER),
        evaluation=Evaluation("agreement"),
        tokenizer=Tokenizer(files.tokenizer.name),
        generation=generation,
        folder=files.tokenizer.parent,
    )


def _begin(asked: Mapping[str, Any], kind: str) -> FirstTokens:
    """Return the tokens that an answer begins with."""
    if kind == _WHISPER:
        return first_tokens(asked)
    start = _tokens(asked.get("decoder_start_token_id"))
    return FirstTokens((*start, *_tokens(asked.get("forced_bos_token_id"))))


def _suppressed(asked: Mapping[str, Any]) -> tuple[int, ...]:
    bad = asked.get("bad_words_ids") or ()
    if any(len(word) != 1 for word in bad):
        raise UnsupportedError(
            "bad_words_ids of several tokens are not honoured here", remedy="take them out of generation_config.json"
        )
    return tuple(sorted({*_tokens(asked.get("suppress_tokens")), *(int(word[0]) for word in bad)}))


def _require_known(asked: Mapping[str, Any], path: Path) -> None:
    """Raise where a configuration asks for what would change the tokens and is not computed."""
    for name, off in _UNUSED.items():
        value = asked.get(name)
        if value is not None and value != off:
            raise UnsupportedError(
                f"{path}: {name} = {str(value)[:40]} is not honoured here", remedy=f"take {name} out of the file"
            )


def _notes(asked: Mapping[str, Any]) -> tuple[Note, ...]:
    if not asked.get("do_sample"):
        return ()
    text = "the configuration asks for drawn tokens: the likeliest are written, unless a temperature is asked for"
    return (Note(NoteKind.INFO, text),)


def _beams(asked: Mapping[str, Any]) -> BeamOptions:
    """Return the search that a configuration asks for."""
    early, penalty = asked.get("early_stopping"), asked.get("length_penalty")
    return BeamOptions(
        count=int(asked.get("num_beams") or 1),
        length_penalty=1.0 if penalty is None else float(penalty),
        stops=_STOPS.get(str(early), BeamStop.UNLIKELY),
    )


def _audio(folder: Path) -> Audio:
    """Return how a sound becomes Whisper's features: as `recipe.toml` says, else `preprocessor_config.json`."""
    recipe = folder / "recipe.toml"
    if recipe.is_file() and (audio := read_recipe(recipe, stays_inside=True).audio).rate_hz:
        return audio
    values = _read(folder / "preprocessor_config.json")
    rate, step = int(values.get("sampling_rate", 16000)), int(values.get("hop_length", 160))
    made = Audio(rate_hz=rate, features=Features.WHISPER, samples=int(values.get("n_samples", 30 * rate)))
    bands, fft = int(values.get("feature_size", 80)), int(values.get("n_fft", 400))
    return replace(made, bands=bands, fft=fft, step=step)


def _tokens(value: Any) -> tuple[int, ...]:
    """Return one token or several as a tuple; None: none."""
    if value is None:
        return ()
    result: Sequence[Any] = value if isinstance(value, list) else [value]
    return tuple(int(entry) for entry in result)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(file, remedy=_REMEDY))
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{file} is no JSON", remedy=_REMEDY) from error
    if not isinstance(values, dict):
        raise InvalidFileError(f"{file} is no configuration", remedy=_REMEDY)
    return values
