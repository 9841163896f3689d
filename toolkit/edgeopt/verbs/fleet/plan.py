"""The file of a fleet: which workloads are optimized for which targets on which devices, and with which options."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgeopt.errors import InvalidFileError
from edgeopt.export.source import is_source
from edgeopt.measurement.resources.prices import PRICE
from edgeopt.optimization.optimize import device_name
from edgeopt.system.declared.options import FileUse, Option, Syntax, options_of
from edgeopt.system.text import plural, short
from edgeopt.system.toml import parse_table, read_toml
from edgeopt.verbs.remote.address import read_address
from edgeopt.verbs.remote.command import CommandWord
from edgeopt.verbs.remote.mirror import files_behind
from edgeopt.workloads import Kind, kind_of

VERB = "optimize"
_MODEL = "model"
_MOST_NAME = 200
"""Bytes of the name of a folder: file systems hold 255, and drafts beside it are called longer."""
_OURS = ("out", "resume", "target", "replay", "dry_run", "cluster")
"""Options that the fleet itself gives, that make no bundle, or that compute where other cells measure."""


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device of the file."""

    targets: tuple[str, ...] = ("cpu",)
    on: str = ""
    """Address as `--on` takes it; empty: the machine of the worker that offers the device."""
    cost_per_hour: Annotated[float, PRICE] | None = None
    """Price of an hour in which a cell holds it, in any currency; None: nobody says."""


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The file as it is written."""

    workloads: Mapping[str, Mapping[str, Any]]
    """Name to `model` and options of its own."""
    devices: Mapping[str, FleetDevice]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of all workloads, by their flags without dashes."""
    scheduler: str = ""
    """Address of a Dask scheduler; empty: workers of this machine, one for each device."""


@dataclass(frozen=True, slots=True)
class FleetCell:
    """One workload for one target on one device."""

    workload: str
    device: str
    target: str
    words: tuple[CommandWord, ...]
    """Command line behind `edgeopt`, without the output folder and the device's address."""
    on: str
    """Address of the device; empty: it is the worker's own machine."""

    @property
    def name(self) -> str:
        """The name of its folder and its row."""
        return f"{self.workload}-{self.device}-{device_name(self.target)}"

    @property
    def files(self) -> Mapping[str, Path]:
        """The files that it reads, by their names in the mirror."""
        return files_behind([Path(word.text) for word in self.words if word.is_read and Path(word.text).exists()])


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The cells of a fleet, and where they run."""

    name: str
    cells: tuple[FleetCell, ...]
    scheduler: str
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price of an hour of each device that has one, by its name."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of all devices that a cell needs."""
        return tuple(dict.fromkeys(cell.device for cell in self.cells))


def read_plan(path: Path) -> FleetPlan:
    """Return the cells of a file, the workloads in their order and of each all devices.

    Raises:
        InvalidFileError: If a key, an option or a name is wrong.
        EdgeoptError: If an address is none.
    """
    table = read_toml(path)
    if isinstance(devices := table.get("devices"), dict):  # with dashes, as the options beside are written
        table["devices"] = {name: _with_underscores(device) for name, device in devices.items()}
    read = parse_table(FleetFile, table, str(path))
    if not read.workloads or not read.devices:
        raise InvalidFileError(
            f"{path} names no workloads or no devices", remedy="write [workloads.NAME] and [devices.NAME]"
        )
    for name in (*read.workloads, *read.devices):
        if not _names_a_folder(name):
            raise InvalidFileError(
                f"{path}: {short(name)} cannot be the name of a folder", remedy="use letters and digits"
            )
    for device in read.devices.values():
        if device.on:
            read_address(device.on)
    targets = dict.fromkeys(target for device in read.devices.values() for target in device.targets)
    cells = list[FleetCell]()
    for workload, values in read.workloads.items():
        # Each opens the model's file: once for a target, and not for each device.
        words = {target: _words(path, workload, {**read.options, **values}, target) for target in targets}
        cells += [
            FleetCell(workload, name, target, words[target], device.on)
            for name, device in read.devices.items()
            for target in device.targets
        ]
    for cell in cells:
        if len(cell.name.encode()) > _MOST_NAME:
            raise InvalidFileError(f"{path}: {short(cell.name)} is too long for a folder", remedy="write shorter names")
    for name, count in Counter(_folded(cell.name) for cell in cells).items():
        if count > 1:
            problem = f"{path}: {plural(count, 'cell')} would be called {name}"
            raise InvalidFileError(problem, remedy="give workloads, devices and target files other names")
    prices = {name: device.cost_per_hour for name, device in read.devices.items() if device.cost_per_hour is not None}
    return FleetPlan(path.stem, tuple(cells), read.scheduler, prices)


def _with_underscores(table: Any) -> Any:
    return {key.replace("-", "_"): value for key, value in table.items()} if isinstance(table, dict) else table


def _names_a_folder(name: str) -> bool:
    """Return whether a folder may be called so on every system."""
    is_plain = name.isprintable() and not set(name) & set('/\\:*?"<>|')
    return is_plain and bool(name) and not name.startswith((".", " ")) and not name.endswith((".", " "))


def _folded(name: str) -> str:
    """Return a name as file systems compare it that know no capitals, and write accents in one way."""
    return unicodedata.normalize("NFC", name).casefold()


def _words(path: Path, workload: str, values: Mapping[str, Any], target: str) -> tuple[CommandWord, ...]:
    """Return the command line of a workload."""
    where = f"{path}: workloads.{workload}"
    if not isinstance(model := values.get(_MODEL), str):
        raise InvalidFileError(f"{where} names no model", remedy='write model = "FILE"')
    source = _placed(path, model)
    kind = kind_of(source, VERB)
    if not is_source(source):
        kind.require(source)
    known = _flags(kind)
    words = [CommandWord(VERB), CommandWord("--target"), CommandWord(_placed(path, target), is_read=True)]
    for name, value in values.items():
        if name == _MODEL:
            continue
        if name not in known:
            raise InvalidFileError(
                f"{where}: there is no option {short(name)}", remedy=f"options are {', '.join(known)}"
            )
        words += _option_words(path, f"{where}: {name}", known[name], value)
    return (*words, CommandWord("--"), CommandWord(source, is_read=True))


def _flags(kind: Kind) -> Mapping[str, Option]:
    """Return the options of a kind that a file may give, by their flags without dashes."""
    options = options_of(kind.options[VERB])
    return {each.flags[0].lstrip("-"): each for name, each in options if name not in _OURS}


def _option_words(path: Path, where: str, option: Option, value: Any) -> Iterator[CommandWord]:
    """Yield an option as it is typed."""
    flag = CommandWord(option.flags[0])
    if option.syntax is Syntax.FLAG:
        if not isinstance(value, bool):
            raise InvalidFileError(f"{where} is {short(value)}, not true or false", remedy="correct the value")
        yield from (flag,) if value else ()
        return
    several: Sequence[Any] = value if isinstance(value, list) else [value]
    if len(several) != 1 and not option.repeatable:
        raise InvalidFileError(f"{where} is a list", remedy="give one value")
    is_read = option.file_use in (FileUse.READ, FileUse.BOTH)
    for each in several:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            raise InvalidFileError(f"{where} is {short(each)}, neither a text nor a number", remedy="correct the value")
        yield flag
        yield CommandWord(_placed(path, str(each)) if is_read else str(each), is_read=is_read)


def _placed(path: Path, text: str) -> str:
    """Return a text that may name a file beside the plan, as it is named from here."""
    beside = path.parent / text
    return str(beside) if text and beside.exists() else text
