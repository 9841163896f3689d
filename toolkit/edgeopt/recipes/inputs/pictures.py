"""Pictures: which files of a folder are some, what is left out of it, and their bytes as (height, width, 3) BGR."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import isfile, islink
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.graph.tensors import Frame, ReducedPicture, Sample
from edgeopt.recipes.inputs.jpeg import ReducedDecoding, read_jpeg_head
from edgeopt.system.disk.files import is_pointer, read_file
from edgeopt.system.processes.quiet import quiet_natives
from edgeopt.system.text import plural

PICTURES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".webp", ".avif", ".gif", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm", ".jp2"}
)
VIDEOS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".ts"})
_UNREAD = VIDEOS | {".heic", ".heif", ".jxl", ".psd", ".svg", ".exr", ".pfm", ".tga", ".ico", ".dcm", ".raw"}
_UNREAD |= {".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"}
"""Files that show something and are not read from a folder of pictures."""
_COMPANIONS = frozenset({".txt", ".json", ".jsonl", ".xml", ".csv", ".tsv", ".md", ".yaml", ".yml", ".toml", ".npz"})
"""Files that lie beside pictures and are none: labels, descriptions."""
_SHOWN = 5
"""Files, or kinds of them, in a note."""
_MOST_BYTES = 256 << 20
"""Most bytes of one picture; OpenCV decodes up to 2^30 pixels."""
_DEPTHS = (8, 10, 12, 14, 16)
"""Bits of cameras whose numbers stand unscaled in 16 bits."""
_DEEP = (b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
"""How TIFF and JPEG 2000 begin, which may hold 16 bits."""
_REDUCED = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
"""How OpenCV is asked for a picture whose sides are divided by a number; it turns it upright, as in whole size."""
_PNG = b"\x89PNG\r\n\x1a\n"
_GAP = rb"(?:\s|#[^\n]*\n)++"
_PGM = re.compile(rb"P[56]%b\d++%b\d++%b(\d{1,5})\s" % (_GAP, _GAP, _GAP))
"""The head of a binary PGM or PPM; its last number is the largest that a pixel may have. Nothing in it is tried twice:
a head of forty spaces would take for ever."""

# What does not open or decode is our message, not OpenCV's or FFmpeg's, which reads its level when it is first used.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")


@dataclass(frozen=True, slots=True)
class Decodable:
    """The files of a folder that decode, and what is to be known of them."""

    files: tuple[str, ...]
    top: int
    """The largest number in those of 16 bits; 0: there are none."""
    notes: tuple[Note, ...]


@runtime_checkable
class PictureSource(Protocol):
    """Reads pictures from files, whole or at a part of their size."""

    def __call__(self, index: int) -> Sample:
        """Return the i-th picture; raises InvalidFileError where it does not decode."""
        ...

    def select(self, kept: Sequence[int]) -> PictureSource:
        """Return what reads the pictures at these places only."""
        ...

    def decoded_by(self, decoding: ReducedDecoding) -> PictureSource:
        """Return what decodes them so."""
        ...


@dataclass(frozen=True, slots=True)
class PictureReader:
    """Reads the pictures of a folder by their place: also in another process, and where it lies elsewhere."""

    folder: Path
    files: tuple[str, ...]
    top: int = 0
    """As `read_picture` takes it."""
    decoding: ReducedDecoding | None = None
    """None: whole."""

    def __call__(self, index: int) -> Frame | ReducedPicture:
        """Return the i-th picture; raises InvalidFileError where it does not decode."""
        return read_sample(self.path(index), self.decoding, self.top)

    def path(self, index: int) -> Path:
        """Return where the i-th picture lies."""
        return self.folder / self.files[index]

    def select(self, kept: Sequence[int]) -> PictureReader:
        """Return what reads the pictures at these places only."""
        return replace(self, files=tuple(self.files[i] for i in kept))

    def decoded_by(self, decoding: ReducedDecoding) -> PictureReader:
        """Return what decodes them so."""
        return replace(self, decoding=decoding)


def read_sample(path: Path, decoding: ReducedDecoding | None, top: int = 0) -> Frame | ReducedPicture:
    """Return one picture, whole or as `decoding` says; the rest as `read_picture`."""
    sample = decode_sample(_read(path), decoding, top)
    if sample is None:
        raise InvalidFileError(f"{path} does not decode as a picture", remedy="remove the file or copy it again")
    return sample


def decode_sample(data: bytes, decoding: ReducedDecoding | None, top: int = 0) -> Frame | ReducedPicture | None:
    """Return the picture in the bytes of a file, whole or as `decoding` says; None where they are none.

    Args:
        data: Of the file.
        decoding: None: whole.
        top: As `read_picture` takes it.
    """
    reduced = None if decoding is None else _decode_reduced(data, decoding)
    return decode_picture(data, top) if reduced is None else reduced


def _decode_reduced(data: bytes, decoding: ReducedDecoding) -> ReducedPicture | None:
    """Return a picture at a part of its size; None where it is to be decoded whole."""
    head = read_jpeg_head(data)
    if head is None or (factor := decoding.reduction(head)) == 1:
        return None
    pixels, (height, width) = _decode(data, _REDUCED[factor]), head.size
    rows, columns = -(-height // factor), -(-width // factor)
    if pixels is None or pixels.shape[:2] != (rows, columns):
        return None
    left = factor * columns - width if head.begins_at_right else 0
    top = factor * rows - height if head.begins_at_bottom else 0
    return ReducedPicture(pixels, factor, height, width, left, top)


def read_picture(path: Path, top: int = 0) -> Frame:
    """Return one picture as (height, width, 3) BGR.

    Args:
        path: Of the file.
        top: The largest number in all pictures of its set, where they have 16 bits; 0: in this one.

    Raises:
        InvalidFileError: If it does not decode.
    """
    frame = decode_picture(_read(path), top)
    if frame is None:
        raise InvalidFileError(f"{path} does not decode as a picture", remedy="remove the file or copy it again")
    return frame


def _read(path: Path) -> bytes:
    return read_file(path, remedy="check the file", most_bytes=_MOST_BYTES)


def decode_picture(data: bytes, top: int = 0) -> Frame | None:
    """Return the picture in the bytes of a file as (height, width, 3) BGR; None where they are none.

    Numbers of 10 or 12 bits that stand in 16 are taken for what they are, as a decoder would make them black.

    Args:
        data: Of the file.
        top: As `read_picture` takes it.
    """
    deep = _deep(data)
    if deep is None:
        return _decode(data, cv2.IMREAD_COLOR)
    bits = depth_of(top or _top_of(data, deep))
    return _decode(data, cv2.IMREAD_COLOR) if bits == _DEPTHS[-1] else (deep >> (bits - 8)).astype(np.uint8)


def depth_of(top: int) -> int:
    """Return how many bits numbers of a camera have of which this is the largest."""
    return next((bits for bits in _DEPTHS if top < 1 << bits), _DEPTHS[-1])


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture by its name, or by how it begins where its name tells nothing."""
    suffix = path.suffix.lower()
    if suffix in PICTURES:
        return True
    if suffix in _UNREAD | _COMPANIONS or not isfile(path):
        return False
    with quiet_natives():
        return bool(cv2.haveImageReader(str(path)))


def pictures_of(folder: Path, names: Sequence[str]) -> tuple[list[str], tuple[Note, ...]]:
    """Return which names in a folder are pictures, and a note of what else is there to see and is not read."""
    result = [name for name in names if isfile(folder / name) and is_picture(folder / name)]
    if not result:
        return [], ()
    unread = Counter(
        suffix for name in names if (suffix := Path(name).suffix.lower()) in _UNREAD and isfile(folder / name)
    )
    dead = [name for name in names if islink(folder / name) and Path(name).suffix.lower() in PICTURES]
    dead = [name for name in dead if not isfile(folder / name)]
    notes = []
    if unread:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in unread.most_common(_SHOWN))
        text = f"{plural(unread.total(), 'file')} in {folder} left out, not read among pictures: {kinds}"
        notes.append(Note(NoteKind.WARNING, text, "convert them to JPEG or PNG"))
    if dead:
        text = f"{plural(len(dead), 'picture')} in {folder} left out, links to nothing: {_named(dead)}"
        notes.append(Note(NoteKind.WARNING, text, "fetch what they lead to: dvc pull, git annex get"))
    return result, tuple(notes)


def decodable(folder: Path, files: Sequence[str]) -> Decodable:
    """Return which of these files decode.

    Raises:
        InvalidFileError: If none does.
    """
    tops = {name: _top_in(folder / name) for name in files}
    broken = sorted(name for name in files if tops[name] is None)
    pointers = [name for name in broken if is_pointer(folder / name)]
    if len(broken) == len(tops):
        if pointers:
            raise InvalidFileError(
                f"{plural(len(pointers), 'picture')} in {folder} are pointers of Git LFS, not pictures",
                remedy="git lfs pull, in their repository",
            )
        raise InvalidFileError(
            f"none of {plural(len(tops), 'file')} in {folder} decodes as a picture, for example {broken[0]}",
            remedy="copy the pictures again, or convert them to JPEG or PNG",
        )
    notes = []
    if broken:
        text = f"{plural(len(broken), 'picture')} in {folder} left out, not decodable: {_named(broken)}"
        hint = f"{plural(len(pointers), 'pointer')} of Git LFS: git lfs pull" if pointers else ""
        notes.append(Note(NoteKind.SKIPPED, text, hint))
    deep = [top for top in tops.values() if top]
    top = max(deep, default=0)
    if deep and (bits := depth_of(top)) < _DEPTHS[-1]:
        text = f"{plural(len(deep), 'picture')} in {folder} of 16 bits with numbers up to {top} read as {bits}-bit"
        notes.append(Note(NoteKind.WARNING, text, "store them over all 16 bits, or as 8 bits, where that is wrong"))
    return Decodable(tuple(name for name in files if tops[name] is not None), top, tuple(notes))


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _top_in(path: Path) -> int | None:
    """Return the largest number of a picture of 16 bits, 0 of another one, None where it does not decode.

    An eighth of the size is faster, and too small for tiny pictures.
    """
    try:
        data = read_file(path, remedy="", most_bytes=_MOST_BYTES)
    except InvalidFileError:
        return None
    if (deep := _deep(data)) is not None:
        return _top_of(data, deep)
    is_right = any(_decode(data, how) is not None for how in (cv2.IMREAD_REDUCED_GRAYSCALE_8, cv2.IMREAD_COLOR))
    return 0 if is_right else None


def _top_of(data: bytes, deep: NDArray[np.uint16]) -> int:
    match = _PGM.match(data)
    return int(match[1]) if match else max(int(deep.max(initial=0)), 1)


def _deep(data: bytes) -> NDArray[np.uint16] | None:
    """Return a picture of 16 bits as (height, width, 3) BGR; None where it has other numbers."""
    is_png = data.startswith(_PNG) and data[24:25] == b"\x10"
    if not is_png and not data.startswith((*_DEEP, b"P5", b"P6")):
        return None
    frame = _imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    return frame if frame is not None and frame.dtype == np.uint16 else None


def _decode(data: bytes, how: int) -> Frame | None:
    frame = _imdecode(data, how)
    return None if frame is None else np.asarray(frame, np.uint8)


def _imdecode(data: bytes, how: int) -> NDArray[Any] | None:
    """Return the picture in a file's bytes; None where OpenCV cannot decode them."""
    try:  # unlike imread, imdecode opens any path on Windows and does not warn
        with quiet_natives():
            return cv2.imdecode(np.frombuffer(data, np.uint8), how) if data else None
    except cv2.error:
        return None
