"""A class for each pixel: a folder of PNG masks that are named as the pictures, as of VOC, Cityscapes and ADE20K."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import isdir
from pathlib import Path
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.pictures import PICTURES
from edgeopt.recipes.labels import LabelFormat, Labels
from edgeopt.recipes.labels.voc import holds_voc
from edgeopt.recipes.labels.yolo import holds_yolo
from edgeopt.system.disk.files import list_folder, read_file
from edgeopt.system.processes.quiet import quiet_natives

Mask = NDArray[np.uint16]
"""(height, width) the class of each pixel; `UNLABELLED` is not scored."""
UNLABELLED = 255
"""Value of a pixel that no one labelled: VOC, Cityscapes (train ids) and ADE20K write it so."""
_MOST_BYTES = 1 << 28
_CHECKED = 50
"""Masks that are read before work begins, spread over all."""
_HEAD, _GREY, _PALETTE = b"\x89PNG\r\n\x1a\n", 0, 3
_REMEDY = "store the class of each pixel, from 0, as a grey or palette PNG named as the picture; 255 is not scored"


@dataclass(frozen=True, slots=True)
class MaskLabels(Labels):
    """The class of each pixel of each picture."""

    masks: tuple[str, ...] = ()
    """File of each picture's mask."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The masks."""
        return tuple(self.source / mask for mask in self.masks)

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the pictures at these positions only."""
        return replace(self, files=tuple(self.files[i] for i in kept), masks=tuple(self.masks[i] for i in kept))

    def named_in(self, folder: Path) -> Self:
        """Return the labels with the pictures of a folder that are named as the masks, whatever their suffix."""
        names = [Path(entry) for entry in list_folder(folder, remedy="correct its permissions")]
        pictures = {name.stem: name.name for name in reversed(names) if name.suffix.lower() in PICTURES}
        return replace(self, files=tuple(pictures.get(Path(mask).stem, mask) for mask in self.masks))

    def read(self, index: int) -> Mask:
        """Return the mask of the i-th picture.

        Raises:
            InvalidFileError: If it is no PNG of classes.
        """
        return read_mask(self.source / self.masks[index])

    def check(self, pictures: Frames) -> tuple[Note, ...]:
        """Return no note.

        Raises:
            InvalidFileError: If a mask is no PNG of classes, has another size than its picture, or marks the thing
                by 255, which is not scored.
        """
        kept = np.unique(np.linspace(0, len(pictures) - 1, min(len(pictures), _CHECKED)).round().astype(int)).tolist()
        seen: set[int] = set()
        for i in kept:
            mask, (height, width) = self.read(i), pictures.picture(i).shape[:2]
            require_size(self, i, mask, (height, width))
            seen.update(np.unique(mask).tolist())
        if not seen - {UNLABELLED}:
            raise InvalidFileError(f"{self.source}: masks hold nothing but 255, which is not scored", remedy=_REMEDY)
        if seen == {0, UNLABELLED}:
            raise InvalidFileError(
                f"{self.source}: masks hold 0 and 255 only, and 255 is not scored", remedy="write 1 in place of 255"
            )
        return ()


def require_size(labels: MaskLabels, index: int, mask: Mask, size: tuple[int, int]) -> None:
    """Raise where a mask has another height and width than its picture.

    Raises:
        InvalidFileError: If so.
    """
    if mask.shape != size:
        raise InvalidFileError(
            f"{labels.source / labels.masks[index]} is {mask.shape[1]}x{mask.shape[0]}, its picture "
            f"{labels.files[index]} {size[1]}x{size[0]}",
            remedy="store masks in the size of their pictures",
        )


def read_masks(path: Path) -> MaskLabels:
    """Read the names of the masks in a folder; each is opened when it is needed.

    Raises:
        InvalidFileError: If it may not be read.
    """
    masks = tuple(name for name in list_folder(path, remedy=_REMEDY) if name.lower().endswith(".png"))
    return MaskLabels(masks, path, masks)


def read_mask(path: Path) -> Mask:
    """Return one mask; of a palette the numbers, not the colours.

    Raises:
        InvalidFileError: If it does not decode, or holds colours.
    """
    data = read_file(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    try:
        with quiet_natives():
            array = np.frombuffer(_with_grey_palette(data), np.uint8)
            mask = cv2.imdecode(array, cv2.IMREAD_UNCHANGED) if data else None
    except (cv2.error, struct.error):
        mask = None
    if mask is None:
        raise InvalidFileError(f"{path} does not decode as a mask", remedy=_REMEDY)
    if mask.ndim == 3:
        if not (mask[..., :1] == mask[..., 1:3]).all():
            raise InvalidFileError(f"{path} holds colours, not classes", remedy=_REMEDY)
        mask = mask[..., 0]
    return np.asarray(mask, np.uint16) // _spread_by(data)


def _spread_by(data: bytes) -> int:
    """Return what a decoder multiplies grey values of fewer than 8 bits by, so that the lightest is 255."""
    is_spread = data.startswith(_HEAD) and len(data) > 25 and data[25] == _GREY and data[24] < 8
    return 255 // (2 ** data[24] - 1) if is_spread else 1


def _with_grey_palette(data: bytes) -> bytes:
    """Return a palette PNG whose i-th colour is (i, i, i), so that OpenCV, which gives colours, gives the numbers."""
    if not data.startswith(_HEAD) or len(data) < 26 or data[25] != _PALETTE:
        return data
    place, parts = len(_HEAD), [_HEAD]
    while place + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        place += 12 + length
        if kind == b"tRNS":
            continue
        if kind == b"PLTE":
            body = bytes(i for i in range(256) for _ in range(3))[:length]
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(parts)


def _holds_masks(path: Path) -> bool:
    is_other = holds_voc(path) or holds_yolo(path)  # boxes that lie beside their pictures
    return isdir(path) and any(path.glob("*.[pP][nN][gG]")) and not is_other


FORMAT = LabelFormat("a folder of masks (.png)", _holds_masks, read_masks)
