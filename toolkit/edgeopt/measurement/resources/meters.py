"""Where this machine tells energy or power: RAPL, board sensors, battery, NVML, in that order.

Every search takes the root of the device files, and a source that is absent says why. Nothing is ever estimated from
a data sheet.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

SYSTEM = Path("/sys")
_WHOLE_BOARD = re.compile(r"(VDD_IN|POM_5V_IN|SYS5V|VIN_SYS|TOTAL)", re.IGNORECASE)
"""Labels of the rail that feeds all others on Jetson modules; the other rails must not be added to it."""
_NO_BOARD = re.compile(r"^(BAT|AC|ADP|ucsi|amdgpu|nouveau|i915|xe|nvme)")
"""hwmon devices that measure a battery, a charger, a graphics card or a disk."""
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


class MeterKind(StrEnum):
    """The quantity that a meter counts."""

    COUNTER = "counter"
    """Joules since some start."""
    POWER = "power"
    """Watts now."""


@dataclass(frozen=True, slots=True)
class Meter:
    """One source of energy or power."""

    source: str
    """`rapl`, `hwmon`, `battery` or `nvml`."""
    coverage: str
    """Part of the device that it sees, such as `whole device, from its battery`."""
    kind: MeterKind
    read: Callable[[], tuple[float, ...]]
    """Joules or watts, one a channel; raises OSError or ValueError when the sensor does not answer."""
    wraps_at_j: tuple[float, ...] = ()
    """Counters: where each channel starts again at 0; 0: it never does."""
    least_s: float = 30.0
    """The shortest run that it can judge."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a source cannot be used here."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Meters:
    """All sources, best first, and why the others are absent."""

    found: tuple[Meter, ...]
    absent: tuple[Absence, ...]

    @property
    def best(self) -> Meter | None:
        """The first that was found."""
        return self.found[0] if self.found else None

    def why_none(self) -> str:
        """Return why nothing can be measured, one reason a source."""
        return "; ".join(map(str, self.absent))


def find_meters(system: Path = SYSTEM, *, device: int = 0) -> Meters:
    """Look for every source.

    Args:
        system: Where Linux keeps its device files.
        device: Which graphics card NVML should tell of.
    """
    seen = [find_rapl(system), find_board(system), find_battery(system), find_nvml(device)]
    return Meters(
        tuple(one for one in seen if isinstance(one, Meter)), tuple(one for one in seen if isinstance(one, Absence))
    )


def _number(path: Path) -> float:
    return float(path.read_text("ascii"))


def _word(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def find_rapl(system: Path = SYSTEM) -> Meter | Absence:
    """Return the counters of all CPU packages, and of their memory where it has its own.

    Source: Linux power capping framework; energy_uj wraps at max_energy_range_uj; since CVE-2020-8694 root only.
    """
    zones = sorted((system / "class/powercap").glob("*-rapl:*"))
    named = [(zone, _word(zone / "name")) for zone in zones]
    chosen = [(zone, name) for zone, name in named if name.startswith(("package", "dram"))]
    if not chosen:
        return Absence("rapl", "the processor, or the virtual machine, offers no package counter")
    paths = [zone / "energy_uj" for zone, _ in chosen]
    try:
        wraps = tuple(_number(zone / "max_energy_range_uj") / 1e6 for zone, _ in chosen)
        read = _reader([(path,) for path in paths], 1e-6)
        read()
    except PermissionError:
        return Absence("rapl", f"{paths[0]} is readable by root only (CVE-2020-8694)")
    except (OSError, ValueError) as error:
        return Absence("rapl", str(error))
    memory = " and memory" if any(name.startswith("dram") for _, name in chosen) else ""
    return Meter("rapl", f"CPU package{memory}, not the board", MeterKind.COUNTER, read, wraps)


def _reader(channels: Sequence[tuple[Path, ...]], scale: float) -> Callable[[], tuple[float, ...]]:
    """Return a function that multiplies the numbers of each channel's files."""

    def read() -> tuple[float, ...]:
        values = []
        for paths in channels:
            value = scale
            for path in paths:
                value *= _number(path)
            values.append(value)
        return tuple(values)

    return read


def find_board(system: Path = SYSTEM) -> Meter | Absence:
    """Return the power of the board from INA sensors (voltage times current), or from a chip's power input.

    Source: Linux hwmon: in*_input mV, curr*_input mA, power*_input uW. What the carrier board draws beside the
    measured rails is not seen.
    """
    for chip in sorted((system / "class/hwmon").glob("hwmon*")):
        name = _word(chip / "name")
        rails = _rails(chip) if name.startswith("ina") else {}
        scale = 1e-6  # mV times mA
        if not rails and not _NO_BOARD.match(name):
            rails = {f"{name} {path.name}": (path,) for path in sorted(chip.glob("power[0-9]*_input"))}
        if not rails:
            continue
        whole = {label: paths for label, paths in rails.items() if _WHOLE_BOARD.search(label)}
        chosen = dict([next(iter(whole.items()))]) if whole else rails
        read = _reader(list(chosen.values()), scale)
        try:
            read()
        except (OSError, ValueError) as error:
            return Absence("hwmon", f"{name}: {error}")
        kind = "board input" if whole else "rails"
        return Meter("hwmon", f"{kind} {', '.join(chosen)} ({name})", MeterKind.POWER, read)
    return Absence("hwmon", "no sensor of board power (INA3221 or a power input)")


def _rails(chip: Path) -> dict[str, tuple[Path, ...]]:
    """Return voltage and current files by the rail's label; INA sensors sum channels in a voltage without current."""
    rails: dict[str, tuple[Path, ...]] = {}
    for current in sorted(chip.glob("curr[0-9]*_input")):
        number = re.sub(r"\D", "", current.name)
        voltage = chip / f"in{number}_input"
        label = _word(chip / f"in{number}_label") or _word(chip / f"curr{number}_label") or f"channel {number}"
        if voltage.is_file():
            rails[label] = (voltage, current)
    return rails or {path.name: (path,) for path in sorted(chip.glob("power[0-9]*_input"))}


def find_battery(system: Path = SYSTEM) -> Meter | Absence:
    """Return the power drawn from the battery that runs this machine, while it discharges.

    Source: Linux power supply class: power_now uW, or voltage_now uV times current_now uA.
    """
    supplies = sorted((system / "class/power_supply").glob("*"))
    batteries = [
        supply for supply in supplies if _word(supply / "type") == "Battery" and _word(supply / "scope") != "Device"
    ]
    if not batteries:
        return Absence("battery", _battery_elsewhere())
    battery = batteries[0]
    if (status := _word(battery / "status")) != "Discharging":
        return Absence("battery", f"{battery.name} is {status.lower() or 'in an unknown state'}; unplug the charger")
    power, product = (battery / "power_now",), (battery / "voltage_now", battery / "current_now")
    files, scale = (power, 1e-6) if power[0].is_file() else (product, 1e-12)
    signed = _reader([files], scale)
    try:
        signed()
    except (OSError, ValueError) as error:
        return Absence("battery", str(error))

    def read() -> tuple[float, ...]:  # some drivers count discharging below zero
        return tuple(abs(watts) for watts in signed())

    return Meter("battery", "whole device, from its battery", MeterKind.POWER, read, least_s=600.0)


def _battery_elsewhere() -> str:
    try:
        import psutil

        has_one = psutil.sensors_battery() is not None
    except (ImportError, AttributeError, OSError):
        has_one = False
    if has_one:
        return "this system tells the charge in whole percents only, too coarse for a run"
    return "no battery runs this machine"


def find_nvml(device: int = 0, command: Sequence[str] = _NVIDIA_SMI) -> Meter | Absence:
    """Return the energy counter of a graphics card, or its power where the driver has no counter.

    Args:
        device: Which card.
        command: What prints watts, one card a line; used where the package pynvml is not installed.

    Source: nvmlDeviceGetTotalEnergyConsumption (mJ), Volta and later; nvidia-smi power.draw (W).
    """
    try:
        return nvml_meter(import_module("pynvml"), device)
    except Exception:  # no package, no driver, no counter: each build has its own error class
        pass

    def read() -> tuple[float, ...]:
        return (parse_nvidia_smi(_ask([*command, f"--id={device}"])),)

    try:
        read()
    except (OSError, ValueError) as error:
        return Absence("nvml", f"no NVIDIA driver answers ({error})")
    return Meter("nvml", f"graphics card {device} only", MeterKind.POWER, read)


def nvml_meter(nvml: Any, device: int) -> Meter:
    """Return the energy counter that an imported pynvml reads; its own errors pass through."""
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(device)

    def read() -> tuple[float, ...]:
        return (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,)

    read()
    return Meter("nvml", f"graphics card {device} only", MeterKind.COUNTER, read, (0.0,))


def _ask(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error


def parse_nvidia_smi(text: str) -> float:
    """Return the watts of the first line.

    Raises:
        ValueError: If the card does not tell its power ("[N/A]").
    """
    return float((text.strip().splitlines() or [""])[0])
