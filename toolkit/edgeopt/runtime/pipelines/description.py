"""The stages of a pipeline in order, and the inputs of each. `pipeline.toml` says it, a bundle keeps it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from edgeopt.errors import InvalidFileError, NotFoundError
from edgeopt.recipes.default_limits import MAX_DROP, Check
from edgeopt.recipes.recipe import LEAST_AGREEMENT
from edgeopt.system.toml import DURATION_MS, Within, parse_table, read_toml

FRAME = "frame"
"""Source of a stage that takes the picture itself."""
MOST_STAGES = 32
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MOST_CROPS = 32
_KINDS = ("model", "crop", "call")


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the work on a frame: a model, a crop, or a call of the app's own function."""

    name: str
    model: str = ""
    """An ONNX file, relative to the file that names it, or a shipped model."""
    recipe: str = ""
    """Recipe of the model: a shipped name, or a file relative to this one; empty: read from the model."""
    crop: str = ""
    """The stage whose boxes are cut out of what it took."""
    most: Annotated[int, Within(1, 1000)] = _MOST_CROPS
    """Most crops a frame; the best boxes stay."""
    margin: Annotated[float, Within(0, 2)] = 0.0
    """Margin of a crop: by what share of its size a box is made larger, on each side."""
    least_score: Annotated[float, Within(0, 1)] = 0.0
    """Least score of a crop: boxes below are left out."""
    call: str = ""
    """A Python function of the app, `module:function`; its code is never part of a bundle."""
    takes: tuple[str, ...] = ()
    """The stages whose answers it is given, or `frame`; empty: the stage before it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == FRAME:
            raise ValueError(f"name {self.name[:60]!r} is not lower-case letters, digits, _ and -, or is 'frame'")
        kinds = [kind for kind in _KINDS if getattr(self, kind)]
        if len(kinds) != 1:
            raise ValueError(f"it has {' and '.join(kinds) or 'nothing to do'}: give it one of model, crop and call")
        if self.call and not _CALL.fullmatch(self.call):
            raise ValueError(f"call {self.call[:60]!r} is not module:function")
        if self.recipe and not self.model:
            raise ValueError("recipe belongs to a stage with a model")
        if not self.crop and (self.most, self.margin, self.least_score) != (_MOST_CROPS, 0.0, 0.0):
            raise ValueError("most, margin and least_score belong to a stage with a crop")
        if self.crop and self.takes:
            raise ValueError("a crop takes what `crop` names: leave takes out")
        if self.model and len(self.takes) > 1:
            raise ValueError(f"a model takes one answer, not {len(self.takes)}")

    @property
    def kind(self) -> str:
        """`model`, `crop` or `call`."""
        return next(kind for kind in _KINDS if getattr(self, kind))


@dataclass(frozen=True, slots=True)
class Description:
    """A pipeline as its file says it, with what each stage takes written out."""

    name: str
    stages: tuple[Stage, ...]
    budget_ms: Annotated[float, DURATION_MS] | None = None
    """Milliseconds that a whole frame may take; None: as many as the target says."""
    calib: str = ""
    """Pictures from where it will work, relative to the file."""
    eval: str = ""
    """Labels of the last stage's answers, relative to the file; empty: agreement with the original judges."""
    max_drop: Annotated[float, Within(0, 1)] = MAX_DROP
    """Max drop of the metric, where labels judge the whole."""
    least_agreement: Annotated[float, Within(0, 1)] = LEAST_AGREEMENT
    """Least agreement with the answers of the original, where no labels judge."""
    check: Check = field(default_factory=Check)
    """The limits of `edgeopt check`."""
    folder: Path = field(default=Path(), compare=False)
    """Folder of the file; paths are relative to it."""

    @property
    def models(self) -> tuple[Stage, ...]:
        """The stages that run a model, in order."""
        return tuple(stage for stage in self.stages if stage.kind == "model")

    @property
    def calls(self) -> tuple[Stage, ...]:
        """The stages that call the app, in order."""
        return tuple(stage for stage in self.stages if stage.kind == "call")

    def path_of(self, relative: str) -> Path | None:
        """Return the path of what the file names, or None where it names nothing."""
        return self.folder / relative if relative else None


@dataclass(frozen=True, slots=True)
class _File:
    """The keys of `pipeline.toml`."""

    name: str
    stage: tuple[Any, ...]
    budget_ms: Annotated[float, DURATION_MS] | None = None
    calib: str = ""
    eval: str = ""
    max_drop: Annotated[float, Within(0, 1)] = MAX_DROP
    least_agreement: Annotated[float, Within(0, 1)] = LEAST_AGREEMENT
    check: Check = field(default_factory=Check)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", self.name):
            raise ValueError(f"name {self.name[:60]!r} is not letters, digits, _, - and dots")


def is_description(path: Path) -> bool:
    """Return whether a path is meant to be a description: no model is TOML."""
    return path.suffix.lower() == ".toml"


def read_description(path: Path) -> Description:
    """Read a `pipeline.toml`.

    Raises:
        InvalidFileError: If it is not TOML, a key is unknown or missing, or stages do not follow from one another.
    """
    return parse_description(read_toml(path), str(path), path.parent)


def parse_description(values: Mapping[str, Any], where: str, folder: Path) -> Description:
    """Return what a table says, in a file or in the manifest of a bundle.

    Args:
        values: The table, its stages under `stage`.
        where: Its place, for messages.
        folder: To which its paths are relative.

    Raises:
        InvalidFileError: If a key is unknown or missing, or stages do not follow from one another.
    """
    said = parse_table(_File, values, where)
    stages = []
    for number, value in enumerate(said.stage, 1):
        if not isinstance(value, Mapping):
            raise InvalidFileError(f"{where}: stage {number} is no table", remedy="write [[stage]] above each stage")
        told = value.get("name")
        stages.append(parse_table(Stage, value, f"{where}: stage {told if isinstance(told, str) else number}"))
    return Description(
        name=said.name,
        stages=require_order(stages, where),
        budget_ms=said.budget_ms,
        calib=said.calib,
        eval=said.eval,
        max_drop=said.max_drop,
        least_agreement=said.least_agreement,
        check=said.check,
        folder=folder,
    )


def require_order(stages: Sequence[Stage], where: str) -> tuple[Stage, ...]:
    """Return the stages with what each takes written out.

    Raises:
        InvalidFileError: If there is none, a name comes twice, a stage takes what is not there or comes later, or a
            crop has no boxes to cut.
    """
    if not 1 <= len(stages) <= MOST_STAGES:
        raise InvalidFileError(f"{where}: it has {len(stages)} stages", remedy=f"write 1 to {MOST_STAGES} [[stage]]")
    defaults = (FRAME, *(stage.name for stage in stages))  # the stage before each
    sources = {
        stage.name: stage.takes or ((stage.crop,) if stage.crop else (defaults[i],)) for i, stage in enumerate(stages)
    }
    by_name = {stage.name: stage for stage in stages}
    names = [stage.name for stage in stages]
    twice = [name for name in by_name if names.count(name) > 1]
    if twice:
        raise InvalidFileError(f"{where}: two stages are named {twice[0]}", remedy="give each a name of its own")
    if not any(stage.kind == "model" for stage in stages):
        raise InvalidFileError(f"{where}: no stage runs a model", remedy='give a stage model = "file.onnx"')
    result: list[Stage] = []
    for other in stages:
        for source in sources[other.name]:
            _require_before(other, source, [each.name for each in result], sources, where)
        if other.crop and (other.crop == FRAME or by_name[other.crop].kind == "crop"):
            raise InvalidFileError(
                f"{where}: stage {other.name} crops {other.crop}, which gives no boxes",
                remedy="name a stage whose model is a detector, or a call that gives detections",
            )
        result.append(replace(other, takes=() if other.crop else sources[other.name]))
    return tuple(result)


def _require_before(
    stage: Stage, source: str, before: Sequence[str], sources: Mapping[str, Sequence[str]], where: str
) -> None:
    """Raise unless a stage takes the frame, or a stage above it."""
    if source == FRAME or source in before:
        return
    if source not in sources:
        error = NotFoundError("stage", source, [FRAME, *before])
        raise InvalidFileError(f"{where}: stage {stage.name} takes {source}: {error.problem}", remedy=error.remedy)
    if source == stage.name or _leads_to(source, stage.name, sources, set()):
        path = "itself" if source == stage.name else f"{source}, which takes it in turn"
        raise InvalidFileError(
            f"{where}: stage {stage.name} takes {path}: a circle", remedy="a stage takes the frame or stages above it"
        )
    raise InvalidFileError(
        f"{where}: stage {stage.name} takes {source}, which comes after it",
        remedy=f"write stage {source} above it: stages run in the order of the file",
    )


def _leads_to(start: str, goal: str, sources: Mapping[str, Sequence[str]], seen: set[str]) -> bool:
    """Return whether a stage takes another, itself or by those that it takes."""
    if start in seen or start not in sources:
        return False
    seen.add(start)
    return goal in sources[start] or any(_leads_to(source, goal, sources, seen) for source in sources[start])
