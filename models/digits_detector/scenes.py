"""Compose labelled scenes: scikit-learn's handwritten digits on synthetic backgrounds.

The digits are 8x8 pictures by Alpaydin and Kaynak (Optical Recognition of Handwritten Digits, UCI, 1998,
CC BY 4.0). A scene follows from its random generator alone: the same seed always draws the same scene.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Image = NDArray[np.uint8]  # (height, width, 3), RGB
Floats = NDArray[np.float32]

SCENE_SIZES = ((200, 160), (160, 200), (192, 144), (144, 192), (224, 168), (180, 240))  # width, height
MAX_DIGITS = 8
GAP = 3  # pixels between two boxes, at least


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture and what it shows."""

    image: Image
    boxes: Floats  # (digits, 4): x1, y1, x2, y2 in pixels, tight around the ink
    labels: NDArray[np.int64]  # (digits,)


@dataclass(frozen=True, slots=True)
class Digits:
    """Handwritten digits: `images` (count, 8, 8) in 0..1 and the `labels` (count,)."""

    images: Floats
    labels: NDArray[np.int64]


def split_digits(seed: int) -> tuple[Digits, Digits]:
    """Return the training digits and, a quarter of them all, the evaluation digits."""
    source = load_digits()
    images, labels = (source.images / 16).astype(np.float32), source.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    held_out, kept = np.split(order, [len(order) // 4])
    return Digits(images[kept], labels[kept]), Digits(images[held_out], labels[held_out])


def ink_span(profile: Floats) -> tuple[float, float]:
    """Return where `profile` first rises above and last falls below one half, between pixels if need be."""
    inside = np.flatnonzero(profile >= 0.5)
    first, last = int(inside[0]), int(inside[-1])
    rise = (profile[first] - 0.5) / (profile[first] - profile[first - 1])
    fall = (profile[last] - 0.5) / (profile[last] - profile[last + 1])
    return first + 0.5 - float(rise), last + 0.5 + float(fall)


def draw_digit(digit: Floats, side: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the opacity, 0..1, of an 8x8 `digit` about `side` pixels high, and its box x1, y1, x2, y2."""
    cells = np.pad(digit, 3)
    across = round(side * len(cells) / 8)
    smooth = cv2.resize(cells, (across, across), interpolation=cv2.INTER_CUBIC)
    matrix = cv2.getRotationMatrix2D(((across - 1) / 2,) * 2, rng.uniform(-15, 15), 1)
    matrix[0] *= (aspect := rng.uniform(0.8, 1.15))
    matrix[0, 2] += (1 - aspect) * (across - 1) / 2
    turned = cv2.warpAffine(smooth, matrix, (across, across))
    sharpness = max(2.5, across / 14 * rng.uniform(0.8, 1.3))
    opacity = np.clip((turned - rng.uniform(0.36, 0.48)) * sharpness + 0.5, 0, 1)
    opacity = cv2.GaussianBlur(opacity, (0, 0), rng.uniform(0.4, 0.9))
    (left, right), (top, bottom) = ink_span(opacity.max(axis=0)), ink_span(opacity.max(axis=1))
    return opacity, np.array([left, top, right, bottom], np.float32)


def draw_background(width: int, height: int, rng: np.random.Generator) -> Floats:
    """Return a gradient with some of: blotches, stripes, clutter. Shape (height, width, 3), 0..255."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / max(width, height)
    grey, tint, angle = rng.uniform(30, 225), rng.uniform(5, 60), rng.uniform(0, 2 * np.pi)
    colour, slope = np.float32(rng.normal(grey, tint, 3)), np.float32(rng.uniform(-90, 90, 3))
    canvas = colour + (math.cos(angle) * x + math.sin(angle) * y)[..., None] * slope
    if rng.random() < 0.6:
        cells = rng.integers(3, 24, 2)
        blotches = rng.normal(0, rng.uniform(5, 22), (*cells, 3)).astype(np.float32)
        canvas += cv2.resize(blotches, (width, height), interpolation=cv2.INTER_CUBIC)
    if rng.random() < 0.3:
        angle, period = rng.uniform(0, np.pi), rng.uniform(6, 40)
        turns = max(width, height) / period
        wave = np.sin((math.cos(angle) * x + math.sin(angle) * y) * (2 * math.pi * turns))
        canvas += wave[..., None] * rng.uniform(-18, 18, 3).astype(np.float32)
    for _ in range(rng.integers(0, 7)):
        colour = np.clip(rng.normal(canvas[height // 2, width // 2], 35), 0, 255).tolist()
        ends = rng.integers(0, (width, height), (2, 2))
        shape = rng.integers(3)
        if shape == 0:
            cv2.line(canvas, ends[0], ends[1], colour, int(rng.integers(1, 6)), cv2.LINE_AA)
        elif shape == 1:
            axes = rng.integers(6, 50, 2)
            cv2.ellipse(canvas, ends[0], axes, rng.uniform(0, 180), 0, 360, colour, -1, cv2.LINE_AA)
        else:
            corners = ends[0] + rng.integers(-50, 50, (4, 2))
            cv2.fillConvexPoly(canvas, cv2.convexHull(corners.astype(np.int32)), colour, cv2.LINE_AA)
    return canvas


def ink_colour(behind: Floats, rng: np.random.Generator) -> Floats:
    """Return an RGB colour whose brightness is well away from that of the pixels `behind`."""
    brightness = float(behind.mean())
    contrast = rng.uniform(70, 170)
    darker = brightness - contrast > 10 if rng.random() < 0.5 else brightness + contrast > 245
    target = brightness - contrast if darker else brightness + contrast
    return np.clip(target + rng.normal(0, 22, 3), 0, 255).astype(np.float32)


def compose_scene(digits: Digits, rng: np.random.Generator) -> Scene:
    """Place one to eight digits, clear of each other, on a background."""
    width, height = SCENE_SIZES[rng.integers(len(SCENE_SIZES))]
    canvas = draw_background(width, height, rng)
    boxes, labels = np.zeros((0, 4), np.float32), []
    wanted = rng.integers(1, MAX_DIGITS + 1)
    for attempt in range(4 * wanted):
        if len(labels) == wanted:
            break
        chosen = rng.integers(len(digits.labels))
        side = 24 * 3 ** rng.random() if attempt < wanted else rng.uniform(24, 36)
        opacity, box = draw_digit(digits.images[chosen], side, rng)
        span = box[2:] - box[:2]
        shift = np.floor(rng.uniform(1, (width, height) - span - 1) - box[:2]).astype(int)
        box += np.tile(shift, 2)
        common = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
        if (common.min(axis=1) > -GAP).any() or (box[:2] < 0).any() or (box[2:] > (width, height)).any():
            continue
        low = np.maximum(shift, 0)
        high = np.minimum(shift + opacity.shape[::-1], (width, height))
        part = opacity[low[1] - shift[1] : high[1] - shift[1], low[0] - shift[0] : high[0] - shift[0], None]
        region = canvas[low[1] : high[1], low[0] : high[0]]
        region += part * (ink_colour(region, rng) - region)
        boxes = np.vstack([boxes, box])
        labels.append(digits.labels[chosen])
    if not labels:
        return compose_scene(digits, rng)
    canvas += rng.uniform(0, 8) * rng.standard_normal(canvas.shape, np.float32)
    return Scene(np.clip(canvas + 0.5, 0, 255).astype(np.uint8), boxes, np.array(labels))
