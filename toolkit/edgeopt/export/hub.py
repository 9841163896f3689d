"""Networks of Hugging Face by their id: which are language models, and the folder in which their files lie then."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from edgeopt.errors import UnavailableError
from edgeopt.export.decoder.folder import is_decoder
from edgeopt.export.from_torch import said
from edgeopt.export.seeing.written import sees
from edgeopt.export.source import NetworkSource
from edgeopt.system.declared.optional import require

_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*")
"""Files that make a decoder: weights in other forms stay where they are."""
_PATIENCE_S = 10
"""Seconds to wait for the first answer about an id."""


def decoder_folder(source: NetworkSource) -> Path | None:
    """Return the folder of a network of Hugging Face that writes token after token; None: it is another network.

    Of an id its files are fetched, once, into the hub's own cache.

    Raises:
        UnavailableError: If an id is not in the cache and cannot be fetched.
    """
    folder = _folder_of(source)
    return folder if folder is not None and is_decoder(folder) else None


def seeing_folder(source: NetworkSource) -> Path | None:
    """Return the folder of a language model that sees; None: it is another network. As `decoder_folder` otherwise.

    Raises:
        UnavailableError: As `decoder_folder`.
    """
    folder = _folder_of(source)
    return folder if folder is not None and sees(folder) else None


def _folder_of(source: NetworkSource) -> Path | None:
    return Path(source.where) if Path(source.where).is_dir() else _fetched(source.where)


@lru_cache(maxsize=8)
def _fetched(name: str) -> Path | None:
    hub = require("huggingface_hub", extra="export", purpose="a network of Hugging Face")
    require("huggingface_hub.utils", extra="export", purpose="a network of Hugging Face").disable_progress_bars()
    offline = why_offline(name)
    options = {"local_files_only": bool(offline)}
    try:
        config = Path(hub.hf_hub_download(name, "config.json", **options))
        if not (is_decoder(config.parent) or sees(config.parent)):
            return None
        return Path(hub.snapshot_download(name, allow_patterns=list(_FILES), **options))
    except Exception as error:  # any: no network, no such id, a gate, no configuration there
        raise UnavailableError(
            f"hf:{name} is no folder here, and cannot be fetched as an id: {offline or said(error)}",
            remedy="name a folder that save_pretrained wrote, or connect to the network and correct the id",
        ) from error


def why_offline(name: str) -> str:
    """Return why an id cannot be fetched, asked once and shortly; empty where it can."""
    hub = require("huggingface_hub", extra="export", purpose="a network of Hugging Face")
    try:
        hub.HfApi().model_info(name, timeout=_PATIENCE_S)
    except Exception as error:  # any: no network, no such id, a gate
        return said(error)
    return ""
