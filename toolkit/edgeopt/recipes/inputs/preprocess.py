"""Frame to tensor: resize, channel order, layout and normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame, ReducedPicture, Sample, require_picture
from edgeopt.system.toml import Within

PICTURE_TYPES = ("float32", "float16", "uint8", "int8")
"""Element types of an input that can take a picture."""
MOST_PIXELS_A_SIDE = 8192
"""Most pixels a side of an input or a crop; a square frame of that side has 800 MB in float32."""
_MOST_ELEMENTS = 2**28
"""Most elements of one input: 1 GiB of float32."""
MOST_PIXELS = 2**26
"""Most pixels of a picture scaled before it is cropped; only very long pictures have more."""

Side = Annotated[int, Within(1, MOST_PIXELS_A_SIDE)]
"""Pixels."""
Length = Annotated[int, Within(1, _MOST_ELEMENTS)]


class Colour(StrEnum):
    """Channel order of the model's input."""

    RGB = "RGB"
    BGR = "BGR"
    GREY = "GREY"


class Layout(StrEnum):
    """Axis order of the model's input."""

    NCHW = "NCHW"
    NHWC = "NHWC"
    CHW = "CHW"
    """No batch: torchvision's detectors take a list of pictures, and are exported with one."""

    @property
    def channels(self) -> int:
        """The axis of channels."""
        return self.index("C")

    @property
    def plane(self) -> tuple[int, int]:
        """The axes of height and width."""
        return self.index("H"), self.index("W")


class Resize(StrEnum):
    """How a frame becomes the model's height and width."""

    STRETCH = "stretch"
    CENTRE_CROP = "centre_crop"
    LETTERBOX = "letterbox"
    LINE = "line"
    """A line of text, as PaddleOCR reads it: the input's height, as wide as that makes it, no wider than the input;
    right of it 0."""


class Decode(StrEnum):
    """How the file of a JPEG becomes a frame."""

    FULL = "full"
    REDUCED = "reduced"
    """A JPEG is decoded at half, a quarter or an eighth of its size, the smallest that `resize` need not enlarge:
    libjpeg computes fewer pixels. Other files, and frames that come as arrays, stay whole."""


class Anchor(StrEnum):
    """Where a letterboxed frame lies."""

    TOP_LEFT = "top_left"
    CENTRE = "centre"


@dataclass(frozen=True, slots=True)
class Input:
    """The tensor that receives the frame."""

    tensor: str = ""
    """Its name; empty: the model's only input."""
    size: tuple[Side, ...] = ()
    """Height and width in pixels; empty: as the model says."""
    layout: Layout = Layout.NCHW
    dtype: str = "float32"
    fixed: Mapping[str, Length] = field(default_factory=dict)
    """Sizes for named free dimensions, for example `batch = 1`."""
    shapes: Mapping[str, tuple[Length, ...]] = field(default_factory=dict)
    """Whole shapes of inputs by name, for example `ids = [1, 128]`; they win over all other sizes."""
    smaller: bool = True
    """Whether the step `resolution` may offer the model at a smaller size; false: the app or the task fixes it."""
    states: Mapping[str, str] = field(default_factory=dict)
    """States of a recurrent model: state input to the output that feeds it in the next sample, for example `h =
    "hn"`."""
    constants: Mapping[str, Annotated[float, Within(-1e18, 1e18)]] = field(default_factory=dict)
    """Constants of inputs beside a sound that always hold one number, for example `sr = 16000`."""

    def __post_init__(self) -> None:
        if self.size and len(self.size) != 2:
            raise ValueError(f"size is {list(self.size)}, not [height, width]")
        for name, shape in self.shapes.items():
            if math.prod(shape) > _MOST_ELEMENTS:
                raise ValueError(f"shapes of {name} hold more than {_MOST_ELEMENTS} elements")
        if self.dtype not in PICTURE_TYPES:
            raise ValueError(f"dtype {self.dtype!r} is not float32, float16, uint8 or int8")


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Frame to tensor: resize, colour, then (value * scale - mean) / std."""

    colour: Colour = Colour.RGB
    resize: Resize = Resize.STRETCH
    crop_from: Annotated[int, Within(0, MOST_PIXELS_A_SIDE)] = 0
    """Centre crop: the shorter side before the crop, in pixels; 0: the model's own size."""
    pad: Annotated[int, Within(0, 255)] = 114
    """Letterbox: the grey value of the border, 0..255."""
    anchor: Anchor = Anchor.TOP_LEFT
    scale: Annotated[float, Within(-1e6, 1e6)] = 1.0
    mean: tuple[Annotated[float, Within(-1e6, 1e6)], ...] = (0.0, 0.0, 0.0)
    std: tuple[Annotated[float, Within(1e-6, 1e6)], ...] = (1.0, 1.0, 1.0)
    decode: Decode = Decode.FULL

    def __post_init__(self) -> None:
        channels = 1 if self.colour is Colour.GREY else 3
        if channels == 1 and (self.mean, self.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)):  # what stands for nothing
            object.__setattr__(self, "mean", (0.0,))
            object.__setattr__(self, "std", (1.0,))
        if len(self.mean) not in (1, channels) or len(self.std) not in (1, channels):
            raise ValueError(f"mean and std need {'1 value' if channels == 1 else '1 or 3 values'}, as colour says")
        if self.scale == 0:
            raise ValueError("scale must not be zero")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the frame lies in the model's input: input = frame * scale + offset, in pixels."""

    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float
    width: int
    """Width of the frame."""
    height: int

    @classmethod
    def of_input(cls, size: Sequence[int]) -> Geometry:
        """Return the geometry of a frame that is the input itself, of (height, width) in pixels."""
        return cls(1.0, 1.0, 0.0, 0.0, size[1], size[0])

    def to_frame(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n, 4) corner boxes of the input in the frame's pixels, clipped to the frame."""
        offset = np.array([self.offset_x, self.offset_y] * 2, np.float32)
        scale = np.array([self.scale_x, self.scale_y] * 2, np.float32)
        limit = np.array([self.width, self.height] * 2, np.float32)
        return np.asarray(np.clip((boxes - offset) / scale, 0, limit), np.float32)

    def points_to_frame(self, points: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., 2 or more) points of the input, x and y first, in the frame's pixels, also outside the frame."""
        moved = points.copy()
        moved[..., 0] = (points[..., 0] - self.offset_x) / self.scale_x
        moved[..., 1] = (points[..., 1] - self.offset_y) / self.scale_y
        return moved


class PictureInput:
    """Turn frames into one input tensor.

    Splitting into planes and copying each into the float tensor is 2.4x as fast as transposing and 5x as fast as
    `cv2.dnn.blobFromImage` (benchmarks/preprocess.py).
    """

    def __init__(self, wanted: Input, preprocess: Preprocess, *, reuse: bool) -> None:
        """Prepare buffers.

        Args:
            wanted: Size (set), layout and dtype of the tensor.
            preprocess: Resize mode, colour and normalisation.
            reuse: Give out the same array each time, valid until the next call: no page faults on the way.
        """
        self._height, self._width = wanted.size
        self._channels = 1 if preprocess.colour is Colour.GREY else 3
        self._order = range(self._channels) if preprocess.colour is not Colour.RGB else (2, 1, 0)
        self._layout, self._dtype = wanted.layout, np.dtype(wanted.dtype)
        self._shared = self._allocate() if reuse else None
        self._planes = [np.empty((self._height, self._width), np.uint8) for _ in range(self._channels)]
        self._gain, self._bias = affine(preprocess, self._channels)
        self._preprocess = preprocess
        self._canvas = np.full((self._height, self._width, 3), preprocess.pad, np.uint8)
        self._covered = (0, 0, 0, 0)
        resizers: dict[Resize, Callable[[ReducedPicture], tuple[Frame, Geometry]]] = {
            Resize.STRETCH: self._stretch,
            Resize.CENTRE_CROP: self._centre_crop,
            Resize.LETTERBOX: self._letterbox,
            Resize.LINE: self._line,
        }
        self._resize = resizers[preprocess.resize]

    def __call__(self, frame: Sample) -> tuple[NDArray[Any], Geometry]:
        """Return the tensor, a batch of one but for CHW, and where the frame lies in it.

        Args:
            frame: (height, width, 3), BGR, uint8; or one that was decoded at a part of its size.

        Raises:
            UnsupportedError: If it is no picture.
        """
        source = frame if isinstance(frame, ReducedPicture) else _whole(require_picture(frame))
        resized, geometry = self._resize(source)
        if self._channels == 1:
            import cv2  # here and below: 17 MB that a model of texts does without

            resized = cv2.cvtColor(resized, cv2.COLOR_BGR2GRAY)
        tensor = self._allocate() if self._shared is None else self._shared
        width, picture = resized.shape[1], tensor if self._layout is Layout.CHW else tensor[0]
        if self._layout is Layout.NHWC:
            self._fill_interleaved(resized, picture[:, :width])
            picture[:, width:] = 0
        else:
            self._fill_planes(resized, picture[:, :, :width])
            picture[:, :, width:] = 0
        return tensor, geometry

    def _allocate(self) -> NDArray[Any]:
        sizes = {"N": 1, "C": self._channels, "H": self._height, "W": self._width}
        return np.empty([sizes[axis] for axis in self._layout], self._dtype)

    def _fill_planes(self, pixels: Frame, tensor: NDArray[Any]) -> None:
        buffers = self._planes if pixels.shape[:2] == self._planes[0].shape else None
        import cv2

        planes = [pixels] if self._channels == 1 else cv2.split(pixels, buffers)
        for position, channel in enumerate(self._order):
            self._normalise(planes[channel], tensor[position], self._gain[position], self._bias[position])

    def _fill_interleaved(self, pixels: Frame, tensor: NDArray[Any]) -> None:
        pixels = pixels[..., None] if self._channels == 1 else pixels
        ordered = pixels[..., ::-1] if self._preprocess.colour is Colour.RGB else pixels
        if np.all(self._gain == self._gain[0]) and np.all(self._bias == self._bias[0]):
            self._normalise(ordered, tensor, self._gain[0], self._bias[0])
        else:
            self._normalise(ordered, tensor, self._gain, self._bias)

    @staticmethod
    def _normalise(pixels: NDArray[Any], out: NDArray[Any], gain: Any, bias: Any) -> None:
        """Write pixels * gain + bias, within the limits of whole numbers; only cast where that is the same."""
        plain_gain, plain_bias = np.all(gain == 1), np.all(bias == 0)
        if out.dtype.kind != "f" and not (plain_gain and plain_bias and out.dtype == np.uint8):
            limits = np.iinfo(out.dtype)
            out[...] = np.clip(np.rint(pixels * gain + bias), limits.min, limits.max)
            return
        np.copyto(out, pixels, casting="unsafe")
        if not plain_gain:
            np.multiply(out, gain, out=out)
        if not plain_bias:
            np.add(out, bias, out=out)

    def _stretch(self, picture: ReducedPicture) -> tuple[Frame, Geometry]:
        return self._scaled(picture, (self._height, self._width))

    def _centre_crop(self, picture: ReducedPicture) -> tuple[Frame, Geometry]:
        """Scale so that the shorter side is `crop_from`, then cut the middle."""
        whole = picture.height, picture.width
        new_height, new_width = scaled_size((self._height, self._width), self._preprocess, whole)
        left, top = (new_width - self._width) // 2, (new_height - self._height) // 2
        if new_width * new_height > MOST_PIXELS:  # a picture of one row: cut before, or it fills all memory
            return self._cut_first(picture.pixels)
        resized, geometry = self._scaled(picture, (new_height, new_width))
        cut = np.ascontiguousarray(resized[top : top + self._height, left : left + self._width])
        return cut, replace(geometry, offset_x=geometry.offset_x - left, offset_y=geometry.offset_y - top)

    def _cut_first(self, frame: Frame) -> tuple[Frame, Geometry]:
        """Crop a long frame, then scale it: the result differs from scaling first only at its edge."""
        height, width = frame.shape[:2]
        factor = _crop_factor((self._height, self._width), self._preprocess, (height, width))
        rows = min(height, max(round(self._height / factor), 1))
        columns = min(width, max(round(self._width / factor), 1))
        top, left = (height - rows) // 2, (width - columns) // 2
        cut, _ = self._scaled(_whole(frame[top : top + rows, left : left + columns]), (self._height, self._width))
        scale_x, scale_y = self._width / columns, self._height / rows
        return cut, Geometry(scale_x, scale_y, -left * scale_x, -top * scale_y, width, height)

    def _letterbox(self, picture: ReducedPicture) -> tuple[Frame, Geometry]:
        """Scale both sides by one factor so that the frame fits; fill the rest with grey."""
        place = (self._height, self._width), (picture.height, picture.width), self._preprocess.anchor
        covered, geometry = letterbox_place(*place)
        left, top, new_width, new_height = covered
        if covered != self._covered:  # the border is painted again only when the frame's shape changes
            self._canvas.fill(self._preprocess.pad)
            self._covered = covered
        region = self._canvas[top : top + new_height, left : left + new_width]
        if picture.factor > 1:
            region[...], inner = self._scaled(picture, (new_height, new_width))
            geometry = replace(inner, offset_x=inner.offset_x + left, offset_y=inner.offset_y + top)
        elif (new_width, new_height) == (picture.width, picture.height):
            region[...] = picture.pixels
        else:
            import cv2

            cv2.resize(picture.pixels, (new_width, new_height), dst=region, interpolation=cv2.INTER_LINEAR)
        return self._canvas, geometry

    def _line(self, picture: ReducedPicture) -> tuple[Frame, Geometry]:
        """Scale to the input's height, in its own proportions unless it is too long.

        Source: PaddleOCR, `resize_norm_img` of `ppocr/data/imaug/rec_img_aug.py`.
        """
        size = (self._height, self._width), self._preprocess, (picture.height, picture.width)
        return self._scaled(picture, scaled_size(*size))

    @staticmethod
    def _scaled(picture: ReducedPicture, size: Sequence[int]) -> tuple[Frame, Geometry]:
        """Return a picture in a size, and where the whole one lies in it.

        What a picture that was decoded at a part of its size has too much by rounding, less than one of its rows or
        columns, is cut off and not scaled.
        """
        (height, width), (rows, columns), factor = size, picture.pixels.shape[:2], picture.factor
        resized, left, top = picture.pixels, picture.left, picture.top
        lost = picture.height - factor * height, picture.width - factor * width
        if factor > 1 and rows >= height and columns >= width and max(lost) < factor:
            first, start = (rows - height if top else 0), (columns - width if left else 0)
            resized = resized[first : first + height, start : start + width]
            left, top = left - factor * start, top - factor * first
            rows, columns = height, width
        elif (rows, columns) != (height, width):
            import cv2

            resized = np.asarray(cv2.resize(resized, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
        scale_x, scale_y = width / (factor * columns), height / (factor * rows)
        return resized, Geometry(scale_x, scale_y, left * scale_x, top * scale_y, picture.width, picture.height)


def _whole(frame: Frame) -> ReducedPicture:
    return ReducedPicture(frame, 1, *frame.shape[:2])


def scaled_size(size: Sequence[int], preprocess: Preprocess, frame: Sequence[int]) -> tuple[int, int]:
    """Return height and width to which a frame is scaled, before it is cropped or gets a border.

    Args:
        size: Height and width of the input.
        preprocess: How it is scaled.
        frame: Its height and width.
    """
    (wanted_height, wanted_width), (height, width) = size, frame
    match preprocess.resize:
        case Resize.STRETCH:
            return wanted_height, wanted_width
        case Resize.CENTRE_CROP:
            factor = _crop_factor(size, preprocess, frame)
            return max(round(height * factor), wanted_height), max(round(width * factor), wanted_width)
        case Resize.LETTERBOX:
            (*_, new_width, new_height), _ = letterbox_place(size, frame, preprocess.anchor)
            return new_height, new_width
        case Resize.LINE:
            return wanted_height, min(max(math.ceil(wanted_height * (width / height)), 1), wanted_width)


def _crop_factor(size: Sequence[int], preprocess: Preprocess, frame: Sequence[int]) -> float:
    shorter = max(preprocess.crop_from, 0) or min(size)
    return max(shorter / min(frame), size[0] / frame[0], size[1] / frame[1])


def letterbox_place(
    size: Sequence[int], frame: Sequence[int], anchor: Anchor
) -> tuple[tuple[int, int, int, int], Geometry]:
    """Return where a letterboxed frame lies in the input: left, top, width and height in pixels, and the geometry.

    Args:
        size: Height and width of the input.
        frame: Height and width of the frame.
        anchor: Where the frame lies.
    """
    height, width = frame
    factor = min(size[1] / width, size[0] / height)
    new_width, new_height = max(int(width * factor), 1), max(int(height * factor), 1)
    left = top = 0
    if anchor is Anchor.CENTRE:
        left, top = (size[1] - new_width) // 2, (size[0] - new_height) // 2
    return (left, top, new_width, new_height), Geometry(factor, factor, float(left), float(top), width, height)


def affine(preprocess: Preprocess, channels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return gain and bias so that (v * scale - mean) / std = v * gain + bias, in the model's channel order."""
    mean = np.broadcast_to(np.asarray(preprocess.mean, np.float64), channels)
    std = np.broadcast_to(np.asarray(preprocess.std, np.float64), channels)
    return (preprocess.scale / std).astype(np.float32), (-mean / std).astype(np.float32)
