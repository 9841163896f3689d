"""TensorRT's options beyond a profile: the model's precision, and the folder of compiled engines.

Engines take seconds to minutes to build. They lie in the folder of a run, and for bundles and other files below the
user's own caches: an engine is a program for the GPU, and one that lies in a bundle would be somebody else's. They
belong to that kind of GPU and that version of TensorRT, and elsewhere are built anew. TensorRT knows an engine by the
names in its graph, whatever the weights: each content of a model has a folder of its own.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from edgeopt.system.disk import caches

ENGINES = "engines"
"""The folder in that of a run, or below the user's caches."""
_INTEGERS = b"DequantizeLinear"
_OFF = ("", "0", "False", "false")


def tensorrt_options(
    options: Mapping[str, str], source: bytes | Path, precision: str, cache_folder: str
) -> dict[str, str]:
    """Return the provider's options, completed where the profile leaves them open.

    Args:
        options: As the profile says.
        source: A serialized ONNX model, or its path.
        precision: What float operators are computed in.
        cache_folder: For engines and timings; empty: below the user's caches, for a model that is a file. With neither,
            nothing is kept: TensorRT would write into whatever folder the program was started in.
    """
    values = dict(options)
    if precision == "fp16":
        values.setdefault("trt_fp16_enable", "1")
    if _has_integers(source):
        values.setdefault("trt_int8_enable", "1")
    if values.get("trt_engine_cache_enable", "") not in _OFF:
        _cache(values, "engine", _made(cache_folder, source, _digest(source)))
    if values.get("trt_timing_cache_enable", "") not in _OFF:
        _cache(values, "timing", _made(cache_folder, source))
    return values


def _cache(values: dict[str, str], kind: str, folder: Path | None) -> None:
    values[f"trt_{kind}_cache_enable"] = "1" if folder else "0"
    if folder:
        values[f"trt_{kind}_cache_path"] = str(folder)


def _has_integers(source: bytes | Path) -> bool:
    """Whether the model holds Q/DQ pairs: TensorRT refuses them without its INT8 flag, and the flag without them."""
    if isinstance(source, bytes):
        return _INTEGERS in source
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return view.find(_INTEGERS) >= 0


def _digest(source: bytes | Path) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()[:16]
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _made(asked: str, source: bytes | Path, *below: str) -> Path | None:
    """Return the folder, which exists then; None where there is none or it cannot be written."""
    if not asked and not isinstance(source, Path):
        return None
    try:
        kept = Path(asked).resolve() if asked else caches.cache_folder() / ENGINES
        folder = kept.joinpath(*below)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None
