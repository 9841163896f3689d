"""Shifts of pictures after ImageNet-C (Hendrycks and Dietterich 2019) at severity 3, and two of our own.

A picture is (height, width, 3) uint8, BGR. Numbers of blur are pixels of a picture 224 high; larger pictures are
blurred by as much of their height.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame

Shift = Callable[[Frame, np.random.Generator], Frame]
_SIDE = 224


def _radius(picture: Frame, pixels: float) -> int:
    return max(round(pixels * min(picture.shape[:2]) / _SIDE), 1)


def _clipped(values: np.ndarray) -> Frame:
    return np.clip(values, 0, 255).astype(np.uint8)


def _defocus(picture: Frame, generator: np.random.Generator) -> Frame:
    del generator
    radius = _radius(picture, 6)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1,) * 2).astype(np.float32)
    return cv2.filter2D(picture, -1, kernel / kernel.sum())


def _motion(picture: Frame, generator: np.random.Generator) -> Frame:
    reach, angle = _radius(picture, 8), np.deg2rad(generator.uniform(-45, 45))
    kernel = np.zeros((2 * reach + 1,) * 2, np.float32)
    end = round(reach + reach * np.cos(angle)), round(reach + reach * np.sin(angle))
    begin = 2 * reach - end[0], 2 * reach - end[1]
    cv2.line(kernel, begin, end, 1.0, 1)
    return cv2.filter2D(picture, -1, kernel / kernel.sum())


def _noise(picture: Frame, generator: np.random.Generator) -> Frame:
    return _clipped(picture + generator.normal(0, 0.18 * 255, picture.shape))


def _shot_noise(picture: Frame, generator: np.random.Generator) -> Frame:
    return _clipped(generator.poisson(picture / 255 * 12) / 12 * 255)


def _dark(picture: Frame, generator: np.random.Generator) -> Frame:
    del generator
    values = cv2.cvtColor(picture, cv2.COLOR_BGR2HSV).astype(np.float32)
    values[..., 2] = np.clip(values[..., 2] - 0.3 * 255, 0, 255)
    return cv2.cvtColor(values.astype(np.uint8), cv2.COLOR_HSV2BGR)


def _night(picture: Frame, generator: np.random.Generator) -> Frame:
    """A quarter of the light, and the noise of few photons."""
    return _clipped(generator.poisson(picture / 255 * 0.25 * 120) / 120 * 255)


def _contrast(picture: Frame, generator: np.random.Generator) -> Frame:
    del generator
    mean = picture.mean(axis=(0, 1))
    return _clipped((picture - mean) * 0.2 + mean)


def _fog(picture: Frame, generator: np.random.Generator) -> Frame:
    del generator
    return _clipped(picture * 0.45 + 0.55 * 200)


def _codec(picture: Frame, generator: np.random.Generator) -> Frame:
    del generator
    return cv2.imdecode(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 15])[1], cv2.IMREAD_COLOR)


def _camera(picture: Frame, generator: np.random.Generator) -> Frame:
    """Another gamma, a warmer white, and what the camera's own filter against noise leaves."""
    del generator
    warm = (picture / 255) ** 0.8 * np.array([0.8, 1.0, 1.25])
    return cv2.bilateralFilter(_clipped(warm * 255), 7, 40, 5)


SHIFTS: Mapping[str, Shift] = {
    "none": lambda picture, generator: picture,
    "defocus": _defocus,
    "motion": _motion,
    "gaussian noise": _noise,
    "shot noise": _shot_noise,
    "dark": _dark,
    "night": _night,
    "contrast": _contrast,
    "fog": _fog,
    "JPEG 15": _codec,
    "another camera": _camera,
}
