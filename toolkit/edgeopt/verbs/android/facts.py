"""Facts of a phone: its processor, its software, and how warm and how charged it is."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.system.machine.core_kinds import fast_cores, numbers_of
from edgeopt.system.machine.environment import Environment, Fact, Use, read_environment
from edgeopt.system.machine.processor import Processor
from edgeopt.system.text import format_bytes, printable, shorten

_PROPERTIES = {
    "abis": "ro.product.cpu.abilist",
    "maker": "ro.product.manufacturer",
    "model": "ro.product.model",
    "soc_maker": "ro.soc.manufacturer",
    "soc": "ro.soc.model",
    "board": "ro.board.platform",
    "android": "ro.build.version.release",
    "api": "ro.build.version.sdk",
    "build": "ro.build.fingerprint",
}
"""Properties of Android that are asked for, by their names here."""
_CORE_FILES = ("cpu_capacity", "cpufreq/cpuinfo_max_freq", "cpufreq/scaling_max_freq", "topology/thread_siblings_list")
_QUESTIONS = (
    *(f'echo "{name}=$(getprop {key})"' for name, key in _PROPERTIES.items()),
    'echo "kernel=$(uname -r)"',
    'echo "flags=$(grep -m1 -iE "^(features|flags)" /proc/cpuinfo)"',
    'echo "hardware=$(grep -m1 -E "^(Hardware|model name)" /proc/cpuinfo)"',
    'echo "memory=$(grep MemTotal: /proc/meminfo)"',
    'echo "allowed=$(grep Cpus_allowed_list: /proc/self/status)"',
    "echo \"governor=$(cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor | sort -u | tr '\\n' ' ')\"",
    *(
        f'for f in /sys/devices/system/cpu/cpu[0-9]*/{name}; do [ -r "$f" ] && echo "$f=$(cat "$f")"; done'
        for name in _CORE_FILES
    ),
)
_STATE_QUESTIONS = (
    "dumpsys battery | sed 's/^ */battery./;s/: /=/'",
    'echo "heat=$(dumpsys thermalservice | grep -m1 -i "thermal status")"',
    'echo "saver=$(settings get global low_power)"',
)
ASK = f"{{ {'; '.join((*_QUESTIONS, *_STATE_QUESTIONS))}; }} 2>/dev/null; true"
"""The command whose answer `PhoneFacts` reads."""
ASK_STATE = f"{{ {'; '.join(_STATE_QUESTIONS)}; }} 2>/dev/null; true"
"""The command whose answer `PhoneState` reads."""
_DEVICES = "/sys/devices/"
_LONGEST_OF_CORE = 32
"""Digits of what a file of a core tells: a clock in kHz has seven."""
_DIGITS = 3
"""Digits of the number of a core: there are no more than a thousand."""
_CORE_FILE = re.compile(rf"{_DEVICES}system/cpu/cpu([0-9]{{1,{_DIGITS}}})/(?:{'|'.join(_CORE_FILES)})")
"""Names of files that are believed: whoever answers writes nowhere else."""
_ARCHITECTURES = {"arm64-v8a": "arm64", "armeabi-v7a": "arm", "x86_64": "x86-64", "x86": "x86"}
"""The words of targets for those of Android."""
_HEAT = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
"""Thermal status, from 0 on (android.os.PowerManager)."""
_LOW_PERCENT = 20
_HELD_SHARE = 0.97
"""A core whose ceiling is below this share of its highest clock is held back."""
_NOTABLE = ("asimddp", "i8mm", "sve", "bf16", "avx2", "avx512_vnni", "avx_vnni")
_LONGEST = 80


def _read(answer: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in answer.decode("utf-8", "replace").splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


@dataclass(frozen=True, slots=True)
class PhoneState:
    """How warm and how charged a phone is, at one moment."""

    level_percent: int | None
    is_charging: bool | None
    battery_c: float | None
    thermal_status: int | None
    """As `android.os.PowerManager` counts it: from 1 on the phone slows itself down."""
    is_saving: bool
    """Whether it saves its battery."""

    @classmethod
    def read(cls, values: Mapping[str, str]) -> PhoneState:
        """Return what a phone tells of itself."""
        powered = [values.get(f"battery.{kind} powered") for kind in ("AC", "USB", "Wireless", "Dock")]
        tenths = _number(values.get("battery.temperature"))
        return cls(
            level_percent=_number(values.get("battery.level")),
            is_charging="true" in powered if any(powered) else None,
            battery_c=None if tenths is None else tenths / 10,
            thermal_status=_number(values.get("heat", "").rpartition(":")[2]),
            is_saving=values.get("saver") == "1",
        )

    def __str__(self) -> str:
        parts = []
        if self.level_percent is not None:
            charging = {True: ", charging", False: ", not charging", None: ""}[self.is_charging]
            parts.append(f"battery {self.level_percent} %{charging}")
        if self.battery_c is not None:
            parts.append(f"battery at {self.battery_c:.0f} C")
        if self.thermal_status is not None:
            parts.append(f"thermal status {self.heat}")
        return ", ".join(parts) or "nothing of battery and heat is told"

    @property
    def heat(self) -> str:
        """Android's word for how much heat slows the phone."""
        status = self.thermal_status or 0
        return _HEAT[status] if 0 <= status < len(_HEAT) else str(status)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "level_percent": self.level_percent,
            "is_charging": self.is_charging,
            "battery_c": self.battery_c,
            "thermal_status": self.thermal_status,
            "is_saving": self.is_saving,
        }


def state_in(answer: bytes) -> PhoneState:
    """Return what a phone answers to `ASK_STATE`."""
    return PhoneState.read(_read(answer))


def notes_on_state(before: PhoneState | None, after: PhoneState | None) -> tuple[Note, ...]:
    """Return what of a phone's state makes figures of another moment differ; None: it was gone by then."""
    if before is None:
        return ()
    notes = []
    if before.is_saving:
        notes.append(Note(NoteKind.WARNING, "the phone saves its battery, which slows it", "switch battery saver off"))
    if before.level_percent is not None and before.level_percent < _LOW_PERCENT and not before.is_charging:
        text = f"the phone's battery is at {before.level_percent} %, where phones slow down"
        notes.append(Note(NoteKind.WARNING, text, "charge it first"))
    statuses = [state.thermal_status or 0 for state in (before, after) if state is not None]
    if max(statuses) > 0:
        worst = max((state for state in (before, after) if state), key=lambda state: state.thermal_status or 0)
        text = f"heat slows the phone: its thermal status is {worst.heat}"
        notes.append(Note(NoteKind.WARNING, text, "let it cool, or measure with --minutes what it sustains"))
    return tuple(notes)


class PhoneFacts:
    """Facts that stay as they are while a phone runs."""

    def __init__(self, answer: bytes) -> None:
        """Take what a phone answers to `ASK`."""
        self._values = {key: shorten(printable(value), 4096) for key, value in _read(answer).items()}
        self.state = PhoneState.read(self._values)
        self._code = {key: fact for key, fact in read_environment().facts.items() if key.startswith("code.")}

    def _text(self, name: str) -> str:
        return shorten(self._values.get(name, ""), _LONGEST)

    @property
    def abis(self) -> tuple[str, ...]:
        """The interfaces that its programs are compiled for, the best first."""
        named = self._values.get("abis", "").split(",")
        return tuple(abi for abi in named if re.fullmatch(r"[A-Za-z0-9_-]{1,32}", abi))  # each becomes a folder's name

    @property
    def name(self) -> str:
        """Its maker and model."""
        return " ".join(filter(None, (self._text("maker"), self._text("model")))) or "a phone"

    @property
    def system(self) -> str:
        """Its Android."""
        return f"Android {self._text('android') or '?'} (API {self._text('api') or '?'})"

    @property
    def chip(self) -> str:
        """The name of its processor."""
        named = " ".join(filter(None, (self._text("soc_maker"), self._text("soc"))))
        return named or self._text("hardware").partition(":")[2].strip() or self._text("board") or "unknown processor"

    @cached_property
    def processor(self) -> Processor:
        """Its processor, as targets look at it."""
        first = self.abis[0] if self.abis else ""
        flags = self._values.get("flags", "").partition(":")[2].split()
        return Processor(_ARCHITECTURES.get(first, first), frozenset(flags))

    @cached_property
    def _usable(self) -> tuple[int, ...]:
        """Logical cores that a program of the shell may use."""
        listed = self._values.get("allowed", "").partition(":")[2].strip()
        # a list such as 0-999999999 would be made number by number
        plausible = re.fullmatch(rf"(?:[0-9]{{1,{_DIGITS}}}[,-]?)*", listed)
        allowed = numbers_of(listed) if plausible else set()
        known = {int(match[1]) for path in self._values if (match := _CORE_FILE.fullmatch(path))}
        return tuple(sorted(allowed & known or allowed or known or {0}))

    @cached_property
    def fast_cores(self) -> int:
        """Physical cores of the fastest kind, at least one."""
        with tempfile.TemporaryDirectory(prefix="edgeopt-cores-") as folder:
            for path, value in self._values.items():
                if _CORE_FILE.fullmatch(path) and len(value) <= _LONGEST_OF_CORE:
                    file = Path(folder, path.removeprefix(_DEVICES))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(value, "utf-8")
            return fast_cores(self._usable, Path(folder)) or len(self._usable)

    @property
    def cores(self) -> int:
        """Physical cores that a program of the shell may use."""
        siblings = {
            self._values.get(f"{_DEVICES}system/cpu/cpu{core}/topology/thread_siblings_list", str(core))
            for core in self._usable
        }
        return len(siblings)

    @property
    def logical_cores(self) -> int:
        """Logical cores that a program of the shell may use."""
        return len(self._usable)

    def _khz(self, file: str) -> list[int]:
        values = [self._values.get(f"{_DEVICES}system/cpu/cpu{core}/cpufreq/{file}", "") for core in self._usable]
        return [int(value) for value in values if value.isdecimal() and len(value) <= _LONGEST_OF_CORE]

    @property
    def notes(self) -> tuple[Note, ...]:
        """Cores that are held below their highest clock before anything runs."""
        highest, ceilings = max(self._khz("cpuinfo_max_freq"), default=0), self._khz("scaling_max_freq")
        if not highest or not ceilings or max(ceilings) >= _HELD_SHARE * highest:
            return ()
        text = f"the phone holds its fastest core to {max(ceilings) / 1e6:.2f} of {highest / 1e6:.2f} GHz"
        return (Note(NoteKind.WARNING, text, "heat or a power mode does that: let it cool"),)

    def environment(
        self, engine: Mapping[str, Any], subject: Mapping[str, Any], info: Mapping[str, Any]
    ) -> Environment:
        """Return what figures of this phone depend on.

        Args:
            engine: Facts of the runner and its engine.
            subject: Facts of model and session.
            info: What refuses no comparison.
        """
        memory = _number(self._values.get("memory", "").partition(":")[2].split("kB")[0])
        machine: dict[str, Any] = {
            "cpu.model": self.chip,
            "cpu.architecture": self.processor.architecture,
            "cpu.instructions": [flag for flag in _NOTABLE if flag in self.processor.flags],
            "cpu.flags": " ".join(sorted(self.processor.flags)),
            "cpu.cores": self.cores,
            "cpu.core_max_khz": self._khz("cpuinfo_max_freq"),
            "cpu.governor": self._text("governor").split(),
            "memory.total_mib": None if memory is None else memory // 1024,
            "system.name": self.system,
            "system.kernel": self._text("kernel"),
            "system.board": self.name,
            **engine,
        }
        moment = {"phone.build": self._text("build"), "cpu.limit_khz": self._khz("scaling_max_freq"), **info}
        facts = {
            key: Fact(use, value, "" if value is not None else "the phone does not tell")
            for use, values in (
                (Use.CRITICAL, machine),
                (Use.SUBJECT, subject),
                (Use.INFORMATIONAL, moment),
            )
            for key, value in values.items()
        }
        return Environment(self._code | facts)

    def require_free(self, needed_bytes: int, free_kib: int | None) -> None:
        """Raise where a phone has no room.

        Raises:
            EdgeoptError: If so.
        """
        if free_kib is not None and needed_bytes > free_kib * 1024:
            free = format_bytes(free_kib * 1024)
            raise EdgeoptError(
                f"{self.name} has no room: {format_bytes(needed_bytes)} are needed and {free} are free",
                remedy="free space on it, or remove /data/local/tmp/edgeopt there",
            )


def _number(text: str | None) -> int | None:
    try:
        return int(float((text or "").strip()))
    except (ValueError, OverflowError):
        return None
