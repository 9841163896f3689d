"""Puzzles of letters: ddddocr, captcha-whisperer, vietcombank-captcha."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from case import Case, Feed, Shown
from feeds import as_planes, pages
from likeness import cells, headed, spelled


def cases() -> Iterator[Case]:
    """Yield recognisers and a detector."""
    word = pages(64, 160)
    for name, path, variable in (
        ("common", "common.onnx", "CHARSET_BETA"),
        ("common_old (INT8)", "common_old.onnx", "CHARSET_OLD"),
    ):
        yield Case(
            name,
            "ddddocr",
            path,
            _grey("input1", word),
            spelled(),
            recipe="ddddocr",
            shown=word,
            dictionary=lambda wheel, name=variable: _charset(next(wheel.rglob("charsets.py")), name),
        )
    sight = pages(416, 416, lines=3)
    yield Case(
        "common_det",
        "ddddocr",
        "common_det.onnx",
        as_planes("images", sight, 416, 416, 0, 1),
        cells(lambda one: one[0, :, 4] * one[0, :, 5]),
        recipe="ddddocr_det",
        shown=sight,
    )
    puzzle = pages(60, 160, letters="0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    yield Case(
        "captcha_crnn",
        "captcha-whisperer",
        "captcha_crnn.onnx",
        as_planes("image", puzzle, 60, 160, 0, 1),
        spelled(blank=36),
        recipe="captcha_crnn",
        shown=puzzle,
    )
    digits = pages(50, 155, letters="0123456789")
    yield Case(
        "vietcombank_captcha",
        "vietcombank-captcha",
        "vietcombank_captcha.onnx",
        _as_rows("input", digits),
        headed,
        recipe="vietcombank",
        shown=digits,
    )


def _as_rows(name: str, shown: Shown) -> Feed:
    """Feed pictures with colours last, red first, within 0 and 1."""
    return lambda *told: [{name: np.float32(one[None, ..., ::-1] / 255)} for one, _ in shown(*told)]


def _grey(name: str, shown: Shown) -> Feed:
    """Feed grey pictures, (1, 1, height, width) within 0 and 1."""
    return lambda *told: [
        {name: (cv2.cvtColor(one, cv2.COLOR_BGR2GRAY)[None, None] / 255).astype(np.float32)} for one, _ in shown(*told)
    ]


def _charset(path: Path, name: str) -> str:
    """Return the characters of a list in a Python file, without the blank that comes first, one a line."""
    assigned = (one for one in ast.parse(path.read_text("utf-8")).body if isinstance(one, ast.Assign))
    listed = next(one.value for one in assigned if ast.unparse(one.targets[0]) == name)
    return "\n".join(ast.literal_eval(listed)[1:]) + "\n"
