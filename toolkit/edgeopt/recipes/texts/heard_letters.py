"""The letters that a recogniser of speech writes: `vocab.json` of Hugging Face, as Wav2Vec2's tokenizer reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.recipes.texts.alphabet import Alphabet, Blank
from edgeopt.recipes.texts.chat_template import SETTINGS_FILE, read_settings
from edgeopt.system.toml import read_json

VOCABULARY = "vocab.json"
_REMEDY = "copy the folder again, or pass --recipe"
_SILENT = ("<s>", "</s>", "<unk>", "[UNK]", "[PAD]", "<pad>")
"""Tokens that are scores and no letters, where the tokenizer names no others."""


def letters_in(folder: Path, configuration: Mapping[str, Any]) -> Alphabet:
    """Return the alphabet of a CTC; empty where the folder tells none that is one character, or its blank, a score.

    Args:
        folder: With the tokenizer's files.
        configuration: Of the network, which says which score is the blank.

    Raises:
        InvalidFileError: If a file is no JSON.
    """
    file = folder / VOCABULARY
    names = configuration.get("architectures")
    if not file.is_file() or not isinstance(names, list) or not str(names[:1]).endswith("ForCTC']"):
        return Alphabet()
    vocabulary = read_json(file, remedy=_REMEDY)
    settings = read_settings(folder / SETTINGS_FILE)
    if not isinstance(vocabulary, dict):
        return Alphabet()
    places = {place: str(name) for name, place in vocabulary.items() if isinstance(place, int)}
    if len(vocabulary) < 2 or sorted(places) != [*range(len(vocabulary))]:  # of several languages, or with gaps
        return Alphabet()
    if configuration.get("pad_token_id", 0) != 0:  # the blank; another place than the first has no letters before it
        return Alphabet()
    between = settings.get("word_delimiter_token", "|")
    silent = {*_SILENT, *(str(settings.get(f"{one}_token")) for one in ("bos", "eos", "unk", "pad"))}
    lowers = bool(settings.get("do_lower_case", False))
    symbols = ["" if name in silent else " " if name == between else name for _, name in sorted(places.items())][1:]
    text = "".join(f"{symbol.lower() if lowers else symbol}\n" for symbol in symbols)
    return Alphabet(characters=text, blank=Blank.FIRST)
