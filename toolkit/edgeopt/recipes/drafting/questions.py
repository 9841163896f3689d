"""Questions about a model that it does not answer itself, with the answers that are likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.inputs.preprocess import MOST_PIXELS_A_SIDE, Anchor, Colour, Preprocess, Resize
from edgeopt.recipes.recipe import Recipe, read_class_names
from edgeopt.recipes.texts.alphabet import Alphabet
from edgeopt.system.text import parse_shape, short

Norm: TypeAlias = tuple[float, tuple[float, ...], tuple[float, ...]]
"""Scale, mean and std of (value * scale - mean) / std."""
_PIXEL = 1 / 255
_LEAST, _MOST = 1e-6, 1e6
"""Least and most of a std, and of any of these numbers: what a recipe takes."""
NORMS: Mapping[str, Norm] = {
    "0 to 255": (1.0, (0.0,), (1.0,)),
    "0 to 1": (_PIXEL, (0.0,), (1.0,)),
    "-1 to 1": (1 / 127.5, (1.0,), (1.0,)),
    "ImageNet's mean and std": (_PIXEL, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "ImageNet's mean in 0 to 255": (1.0, (123.68, 116.78, 103.94), (1.0,)),
}
"""As trainers use them, channels in the order RGB."""
_USED_BY = {
    "0 to 255": "YOLOX, and models that normalise by themselves",
    "0 to 1": "Ultralytics, many of PyTorch",
    "-1 to 1": "TensorFlow, MobileNet, ViT",
    "ImageNet's mean and std": "torchvision, timm, most of Hugging Face",
    "ImageNet's mean in 0 to 255": "Caffe, Keras",
}
_COLOURS = {"RGB: PyTorch, TensorFlow, Ultralytics": Colour.RGB, "BGR: OpenCV, Caffe, YOLOX": Colour.BGR}
_RESIZES = {
    "letterbox: all of it in its own proportions, in the middle of a border: Ultralytics": (
        Resize.LETTERBOX,
        Anchor.CENTRE,
    ),
    "letterbox, in the upper left corner: YOLOX": (Resize.LETTERBOX, Anchor.TOP_LEFT),
    "centre_crop: the middle, in its own proportions: most classifiers": (Resize.CENTRE_CROP, Anchor.TOP_LEFT),
    "stretch: all of it, proportions lost": (Resize.STRETCH, Anchor.TOP_LEFT),
    "line: a line of text, as wide as its height makes it, the rest empty: PaddleOCR": (Resize.LINE, Anchor.TOP_LEFT),
}


@dataclass(frozen=True, slots=True)
class RecipeQuestion:
    """One thing that the model does not tell."""

    text: str
    options: Mapping[str, Any]
    """Likely answers in words, and what each means; the first is taken where nobody knows."""
    typed: str = ""
    """Form of a further answer that may be typed; empty: the options are all."""
    read: Callable[[str], Any] | None = None
    """Reads what was typed; raises EdgeoptError."""

    @property
    def default(self) -> Any:
        """The answer that is taken where nobody knows."""
        return next(iter(self.options.values()))

    def answer(self, typed: str) -> Any:
        """Return what an answer means: the number of an option, or what else may be typed.

        Raises:
            EdgeoptError: If it is neither.
        """
        values = [*self.options.values()]
        if typed.isascii() and typed.isdigit() and len(typed) < 4 and 1 <= int(typed) <= len(values):
            return values[int(typed) - 1]
        if self.read is None:
            raise EdgeoptError(f"{short(typed)} is no answer", remedy=f"type a number from 1 to {len(values)}, or ?")
        return self.read(typed)


def name_of_reading(preprocess: Preprocess) -> str:
    """Return how pictures are fed in a few words, such as `BGR, 0 to 1`."""
    result = _ends(preprocess.colour, preprocess.scale, preprocess.mean, preprocess.std)
    order = -1 if preprocess.colour is Colour.BGR else 1
    known = {
        _ends(preprocess.colour, norm[0], norm[1][::order], norm[2][::order]): name for name, norm in NORMS.items()
    }
    return f"{preprocess.colour}, {known.get(result, 'other values')}"


def _ends(colour: Colour, scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[float, ...]:
    """Return what black and white become in each channel; of grey with the means of mean and std."""
    if colour is Colour.GREY:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    channels = [(mean[i % len(mean)], std[i % len(std)]) for i in range(3)]
    return tuple(round((level * scale - number) / by, 3) for number, by in channels for level in (0, 255))


Ask: TypeAlias = Callable[[RecipeQuestion], Any]
"""Returns the answer to a question, or None where nobody knows."""


def nobody(question: RecipeQuestion) -> None:
    """Know no answer, as where no terminal is."""
    del question


def _first(options: Mapping[str, Any], likely: Any) -> dict[str, Any]:
    """Return options with the likely one in front."""
    return dict(sorted(options.items(), key=lambda one: one[1] != likely))


def about_colour(likely: Colour) -> RecipeQuestion:
    """Return the question for the channel order."""
    return RecipeQuestion("In which order does the model take colours?", _first(_COLOURS, likely))


def about_resize(likely: Resize, anchor: Anchor) -> RecipeQuestion:
    """Return the question for resize mode and anchor."""
    known = (likely, anchor if likely is Resize.LETTERBOX else Anchor.TOP_LEFT)
    return RecipeQuestion("How does a picture become the input's height and width?", _first(_RESIZES, known))


def about_values(likely: Norm) -> RecipeQuestion:
    """Return the question for scale, mean and std, channels in the order RGB."""
    options = {f"{name}: {_USED_BY[name]}": norm for name, norm in NORMS.items()}
    if likely not in NORMS.values():
        options["as the recipe of its kind has them"] = likely
    typed = "SCALE MEAN STD, one or three numbers each, such as 1/255 0.5,0.5,0.5 0.5,0.5,0.5"
    return RecipeQuestion("Which values do the pixels have?", _first(options, likely), typed, _read_norm)


def about_size(name: str, likely: tuple[int, int]) -> RecipeQuestion:
    """Return the question for the height and width that the model leaves free."""
    sizes = dict.fromkeys((likely, (224, 224), (640, 640), (320, 320), (416, 416)))
    options = {f"{height}x{width}": (height, width) for height, width in sizes}
    return RecipeQuestion(
        f"Which size shall pictures have? Input {name} takes any.", options, "HEIGHTxWIDTH", _read_size
    )


def about_dimension(name: str, inputs: Sequence[str]) -> RecipeQuestion:
    """Return the question for a free dimension that is no height, width or batch."""
    options = {str(size): size for size in (128, 64, 256, 512, 1)}
    line = f"Which size shall dimension {name} of input {', '.join(inputs)} have?"
    return RecipeQuestion(line, options, "a whole number", lambda text: _read_sizes(text, 1)[0])


def about_labels(count: int) -> RecipeQuestion:
    """Return the question for the file of class names."""
    line = f"What are the {count} classes called?" if count else "What are the classes called?"

    def read(text: str) -> tuple[str, ...]:
        names = read_class_names(Path(), text)
        if count and len(names) != count:
            raise EdgeoptError(f"{text} holds {len(names)} names, the model has {count} classes", remedy="correct it")
        return names

    return RecipeQuestion(line, {"by their numbers": ()}, "the path of a file, one name a line", read)


def about_alphabet(count: int, *, is_sure: bool = False) -> RecipeQuestion:
    """Return the question for the dictionary of a recogniser of text; an alphabet without characters: it reads none.

    Args:
        count: Of the scores of a step.
        is_sure: Whether nothing else has such outputs.
    """

    def read(text: str) -> Alphabet:
        first = Alphabet(text).read_in(Path())
        fitting = first.of_scores(count)
        if fitting is None:
            raise EdgeoptError(
                f"{text} holds {len(first.symbols)} characters, the model has {count} scores a step",
                remedy=f"name one of {count - 2} or {count - 1} lines, or type 1",
            )
        return first

    line = f"Which characters do the {count} scores of a step stand for, if it reads text?"
    options = {f"by their places: [1] to [{count - 1}]": Alphabet.numbered(count), "it reads no text": Alphabet()}
    likely = options if is_sure else dict(reversed(options.items()))
    return RecipeQuestion(line, likely, "the path of its dictionary, one character a line", read)


def about_recipe(recipes: Sequence[Recipe]) -> RecipeQuestion:
    """Return the question for what the outputs are."""
    return RecipeQuestion(
        "What are the outputs?", {f"{recipe.name}: {recipe.description}": recipe for recipe in recipes}
    )


def _read_size(text: str) -> tuple[int, int]:
    height, width = _read_sizes(text, 2)
    return height, width


def _read_sizes(text: str, count: int) -> tuple[int, ...]:
    sizes = parse_shape(f"input={text}")[1]
    if len(sizes) != count or max(sizes) > MOST_PIXELS_A_SIDE:
        line = " ".join(("HEIGHTxWIDTH,",) if count == 2 else ())
        raise EdgeoptError(f"{short(text)} is no size", remedy=f"type {line} whole numbers up to {MOST_PIXELS_A_SIDE}")
    return sizes


def _read_norm(text: str) -> Norm:
    """Return scale, mean and std of a line such as `1/255 0.5 0.5`."""
    try:
        scale, mean, std = ([_number(other) for other in part.split(",")] for part in text.split())
    except (ValueError, ZeroDivisionError):
        scale, mean, std = [], [], []
    fits = len(scale) == 1 and len(mean) in (1, 3) and len(std) in (1, 3)
    if not (fits and scale[0] and min(std) >= _LEAST and max(map(abs, (*scale, *mean, *std))) <= _MOST):
        raise EdgeoptError(f"{short(text)} is no answer", remedy="type a number, ?, or such as 1/255 0.5 0.5")
    return scale[0], tuple(mean), tuple(std)


def _number(text: str) -> float:
    over, _, under = text.partition("/")
    result = float(over) / float(under or 1)
    if not math.isfinite(result):
        raise ValueError(text)
    return result
