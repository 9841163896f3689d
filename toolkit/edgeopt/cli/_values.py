"""Texts of the command line as values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from edgeopt.errors import EdgeoptError
from edgeopt.system.declared.options import Option, Syntax
from edgeopt.system.text import parse_bytes, parse_duration_s, parse_ratio, parse_shape, short, typed_duration

if TYPE_CHECKING:
    from edgeopt.measurement.generation.answer_budget import AnswerBudget

ELEMENT_TYPES = ("float32", "float16", "float64", "int64", "int32", "uint8", "int8", "bool")
"""Element types of an input of a network, in NumPy's words; the first where none is told."""


class Duration(click.ParamType[float]):
    """A duration such as `33ms` or `5m`, in seconds; a bare number is in `unit`."""

    name = "duration"

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows for the value: the unit of a bare number, and another way to write it."""
        return {"s": "SECONDS|5m", "ms": "MS|33ms"}[self.unit]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        try:
            return value if isinstance(value, float) else parse_duration_s(value, unit=self.unit)
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)


class MemorySize(click.ParamType[int]):
    """A size of memory such as `2GiB`, in bytes."""

    name = "size"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows for the value."""
        return "2GiB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes."""
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)


class Milliseconds(Duration):
    """A duration such as `33ms`, in milliseconds."""

    def __init__(self) -> None:
        """A bare number is in milliseconds."""
        super().__init__("ms")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return milliseconds."""
        return super().convert(value, param, ctx) * 1000


class FrameBudget(Milliseconds):
    """The time of a frame, such as `33ms`, in milliseconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return milliseconds."""
        if isinstance(value, str) and ":" in value:
            self.fail("ttft and tpot limit a language model, and this is none: write 33ms", param, ctx)
        return super().convert(value, param, ctx)


class AnswerLimits(click.ParamType["AnswerBudget"]):
    """Limits of an answer, such as `ttft:200ms,tpot:20ms`."""

    name = "limits"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows for the value."""
        return "ttft:TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnswerBudget:
        """Return the limits."""
        from edgeopt.measurement.generation.answer_budget import parse_answer_budget

        return self._read(parse_answer_budget, value, param, ctx)

    def _read(
        self,
        parse: Callable[[str], AnswerBudget],
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> AnswerBudget:
        """Return the limits that a text names."""
        try:
            return parse(value) if isinstance(value, str) else value
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)


class ServerLimits(AnswerLimits):
    """Limits of what a server answers: `33ms` of a frame, or those of an answer of a language model."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnswerBudget:
        """Return the limits."""
        from edgeopt.measurement.generation.answer_budget import parse_server_budget

        return self._read(parse_server_budget, value, param, ctx)


class Switch(click.ParamType[bool]):
    """`on` or `off`."""

    name = "on|off"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows for the value."""
        return "[on|off]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether it is on."""
        if value not in ("on", "off"):
            self.fail(f"{short(value)} is neither on nor off", param, ctx)
        return bool(value == "on")


class ShareValue(click.ParamType[float]):
    """A share such as `1%` or `0.01`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a number from 0 to 1."""
        try:
            return value if isinstance(value, float) else parse_ratio(value)
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)


class Number(click.FloatRange):
    """A finite number; click's own range holds NaN, which is neither below nor above anything."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        result: float = super().convert(value, param, ctx)
        return result if math.isfinite(result) else self.fail(f"{value} is no finite number", param, ctx)


class WholeNumber(click.IntRange):
    """A whole number."""

    name = "integer"


class Amount(click.ParamType[str]):
    """How much is pruned: `auto`, `off`, `0.3` or `1.5x`."""

    name = "amount"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows for the value."""
        return "AMOUNT"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin so."""
        return [CompletionItem(word) for word in ("auto", "off") if word.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        from edgeopt.steps._pruning import parse_pruning

        try:
            parse_pruning(value)
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Names(click.ParamType[tuple[str, ...]]):
    """Names separated by commas; an option that is `multiple` gives one tuple for all times it is written."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())


def joined(ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the names of every time that an option was written."""
    del ctx, param
    return tuple(name for names in value for name in names)


class FormatName(click.ParamType[str]):
    """A format of `edgeopt.report.formats`; that folder is read when its names are needed."""

    name = "format"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the formats that begin so."""
        from edgeopt.report.formats import names

        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        from edgeopt.report.formats import find

        try:
            find(value)
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class _Known(click.ParamType[str]):
    """A name of something shipped, or a path; a shell completes both."""

    name = "text"
    folder = ""
    """Where the shipped ones lie, below the package's data."""
    file = ""
    """Glob pattern below that folder; each match is a known name."""

    def known(self) -> list[str]:
        """Return the names of all that is shipped."""
        from edgeopt.system.disk import assets

        folder = assets.folder(self.folder)
        return sorted(path.relative_to(folder).parts[0].removesuffix(".toml") for path in folder.glob(self.file))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so, or else what files do."""
        names = [CompletionItem(name) for name in self.known() if name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]


class TargetName(_Known):
    """A target."""

    folder, file = "targets", "*.toml"


class RecipeName(_Known):
    """A recipe."""

    folder, file = "models", "*/recipe.toml"


class ModelName(_Known):
    """A model."""

    folder, file = "models", "*/*.onnx"


class Counts(click.ParamType[tuple[int, ...]]):
    """Whole numbers separated by commas, such as `1,2,4,8`."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        words = [part.strip() for part in value.split(",")]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 and int(word) for word in words):
            self.fail(f"{short(value)} is no list of whole numbers from 1 on; write them as 1,2,4,8", param, ctx)
        return tuple(map(int, words))


class Guesses(click.ParamType[int]):
    """A number of guesses, or `auto`, which is -1."""

    name = "integer"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows for the value."""
        return "INTEGER|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, int):
            return value
        if value == "auto":
            return -1
        if not (value.isascii() and value.isdigit() and len(value) < 3 and int(value) <= 64):
            self.fail(f"{short(value)} is no number from 0 to 64, and not auto", param, ctx)
        return int(value)


class Shape(click.ParamType[tuple[str, tuple[int, ...]]]):
    """An input and its shape, such as `images=1x3x48x192`."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name and the sizes."""
        try:
            return value if isinstance(value, tuple) else parse_shape(value)
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)


class TypedShape(click.ParamType[tuple[str, tuple[int, ...], str]]):
    """An input, its shape and its element type, such as `ids=1x128:int64`; without a type float32."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, the sizes and NumPy's word for the type."""
        if isinstance(value, tuple):
            return value
        text, _, word = value.partition(":")
        if word and word not in ELEMENT_TYPES:
            self.fail(f"{short(word)} is none of {', '.join(ELEMENT_TYPES)}", param, ctx)
        try:
            return (*parse_shape(text), word or ELEMENT_TYPES[0])
        except EdgeoptError as error:
            self.fail(str(error), param, ctx)


class FreeAxes(click.ParamType[tuple[str, tuple[int, ...]]]):
    """An input and its axes that stay free, such as `images=0` or `images=0,2,3`."""

    name = "axes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name and the axes."""
        if isinstance(value, tuple):
            return value
        name, _, axes = value.rpartition("=")
        words = axes.split(",")
        if not name or not all(word.isascii() and word.isdigit() and len(word) < 3 for word in words):
            self.fail(f"{short(value)} names no axes of an input; write them as images=0 or images=0,2,3", param, ctx)
        return name, tuple(map(int, words))


class FilePath(click.ParamType[Path]):
    """A path of the file system."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell name files."""
        return [CompletionItem(incomplete, type="file")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return Path(value)


def type_of(option: Option) -> click.ParamType[Any]:
    """Return what reads the text of an option of a verb."""
    syntax = option.syntax
    if syntax is Syntax.WHOLE:
        least, most = (None if each is None else int(each) for each in (option.least, option.most))
        return WholeNumber(min=least, max=most)
    if syntax is Syntax.NUMBER:
        return Number(min=option.least, max=option.most, min_open=option.above)
    if syntax is Syntax.CHOICE:
        return click.Choice(list(option.choices))
    return _TYPES[syntax]()


_TYPES: Mapping[Syntax, Callable[[], click.ParamType[Any]]] = {
    Syntax.TEXT: click.types.StringParamType,
    Syntax.FLAG: click.types.BoolParamType,
    Syntax.FILE: FilePath,
    Syntax.SHARE: ShareValue,
    Syntax.SECONDS: lambda: Duration("s"),
    Syntax.MILLISECONDS: Milliseconds,
    Syntax.BYTES: MemorySize,
    Syntax.FRAME_BUDGET: FrameBudget,
    Syntax.ANSWER_BUDGET: AnswerLimits,
    Syntax.SERVER_BUDGET: ServerLimits,
    Syntax.COUNTS: Counts,
    Syntax.NAMES: Names,
    Syntax.SWITCH: Switch,
    Syntax.SHAPE: Shape,
    Syntax.TYPED_SHAPE: TypedShape,
    Syntax.GUESSES: Guesses,
    Syntax.PRUNING: Amount,
    Syntax.MODEL: ModelName,
    Syntax.TARGET: TargetName,
    Syntax.RECIPE: RecipeName,
}


def default_text(option: Option, value: Any) -> str:
    """Return the default of an option as help shows it; empty: there is none to show."""
    if option.syntax is Syntax.FLAG or option.required or value in (None, "", (), {}):
        return ""
    if option.syntax is Syntax.SHARE:
        return f"{value:.0%}"
    if option.syntax is Syntax.SECONDS:
        return typed_duration(value * 1000)
    return f"{value:g}" if isinstance(value, float) else str(value)
