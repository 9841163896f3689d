"""Feeds of models of several wheels: sounds, streams, pages, photographs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np
import signals as made
from case import Feed, Heard, Sample, Shown, Source
from signals import Array

IMAGENET = (np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375]))


def speech_cut(samples: int) -> Callable[[int, int], list[Array]]:
    """Return what cuts stretches of speech of so many samples: (how many, seed) -> them."""

    def cut(count: int, seed: int) -> list[Array]:
        return [made.speech(samples / made.RATE + 0.01, seed * 1000 + i)[:samples] for i in range(count)]

    return cut


def spoken(samples: int) -> Heard:
    """Let stretches of speech be heard."""
    return lambda count, seed: (speech_cut(samples)(count, seed), made.RATE)


def played(seconds: float, rate: int, samples: int) -> Heard:
    """Let chords be heard."""
    return lambda count, seed: ([made.chords(seconds, rate, seed * 1000 + i)[:samples] for i in range(count)], rate)


def sound(name: str, heard: Heard, shape: tuple[int, ...] = (1, -1), **others: Array) -> Feed:
    """Feed sounds as they are, in the shape asked for."""
    return lambda _, count, seed: [{name: one.reshape(shape), **others} for one in heard(count, seed)[0]]


def stream(
    name: str, chunk: int, context: int, states: Mapping[str, tuple[str, tuple[int, ...]]], **others: Array
) -> Feed:
    """Feed one stream of speech, chunk by chunk behind its context, with the states that the original leaves.

    Args:
        name: The input of sound.
        chunk: Samples that are new in each step.
        context: Samples of the chunk before that are fed again.
        states: Output to input and its shape.
        others: Further inputs, always the same.
    """

    def feed(source: Source, count: int, seed: int) -> list[Sample]:
        heard = np.concatenate([np.zeros(context, np.float32), made.speech((count + 1) * chunk / made.RATE, seed)])
        held = {given: np.zeros(shape, np.float32) for given, shape in states.values()}
        samples = []
        for i in range(count):
            sample = {name: heard[i * chunk : (i + 1) * chunk + context][None], **held, **others}
            samples.append(sample)
            found = source.run(sample)
            held = {states[output][0]: value for output, value in found.items() if output in states}
        return samples

    return feed


def pages(height: int, width: int, *, lines: int = 1, turned: int = 0, letters: str = made.ALL_LETTERS) -> Shown:
    """Show rendered text; `turned`: every second picture upside down (180), or each by a quarter (90)."""

    def shown(_: Source, count: int, seed: int) -> list[tuple[Array, str]]:
        found = []
        for i in range(count):
            page, texts = made.written(height, width, seed * 1000 + i, lines=lines, letters=letters)
            if turned == 180:
                page = page[::-1, ::-1] if i % 2 else page
            elif turned == 90:
                page = np.rot90(page, i % 4)
            found.append((np.ascontiguousarray(page), " ".join(texts)))
        return found

    return shown


def photographs(size: int = 0) -> Shown:
    """Show photographs: those of an odd place for odd seeds, of an even one for even seeds; stretched to `size`."""

    def shown(source: Source, count: int, seed: int) -> list[tuple[Array, str]]:
        found = [one for i, one in enumerate(made.photos(source.data / "coco" / "calib")) if i % 2 == seed % 2]
        return [(cv2.resize(one, (size, size)) if size else one, "") for one in found[:count]]

    return shown


def as_planes(name: str, shown: Shown, height: int, width: int, mean: object, std: object) -> Feed:
    """Feed pictures in planes, (1, 3, height, width), colours less `mean` over `std`."""
    return lambda source, count, seed: [
        {name: made.scaled(one, height, width, mean, std)} for one, _ in shown(source, count, seed)
    ]


def cropped(name: str, shown: Shown, size: int, mean: object, std: object) -> Feed:
    """Feed the middle of pictures in planes, not scaled."""

    def middle(*told: Any) -> list[tuple[Array, str]]:
        found = []
        for one, text in shown(*told):
            top, left = (one.shape[0] - size) // 2, (one.shape[1] - size) // 2
            found.append((one[top : top + size, left : left + size], text))
        return found

    return as_planes(name, middle, size, size, mean, std)


def in_order(chunk: int) -> Heard:
    """Let the sound of a stream be heard, whole."""
    return lambda count, seed: ([made.speech((count + 1) * chunk / made.RATE, seed)[: count * chunk]], made.RATE)
