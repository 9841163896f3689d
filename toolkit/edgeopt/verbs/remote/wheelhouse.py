"""Packages for a device without a network: its wheels are fetched here, for its system, processor and Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.report.document import CommandOutcome, Document, Value, VerdictLines
from edgeopt.report.result import PlainResult
from edgeopt.system.disk.caches import cache_folder
from edgeopt.system.disk.wheel import Wheel
from edgeopt.system.processes.worker import module_command
from edgeopt.system.text import format_bytes, plural, short

VARIABLE = "EDGEOPT_WHEELHOUSE"
"""Names a folder of wheels that `--on` takes packages from."""
PROCESSORS = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
"""Words for processors, and those of Python's wheels; ONNX Runtime has none for other processors."""
_OLDEST_GLIBC, _GLIBC = 17, (2, 36)
"""The oldest that wheels of today name (2.17); that of Debian 12, Raspberry Pi OS of 2023 and later."""
_PYTHON = re.compile(r"3\.(\d{1,3})", re.ASCII)
_LEAST_PYTHON, _MOST_PYTHON = 11, 14


@dataclass(frozen=True, slots=True)
class DevicePlatform:
    """Processor, Python and C library of a device with Linux: they decide which wheels fit."""

    processor: str
    """As Python's wheels call it: `aarch64`, `x86_64`."""
    python: str
    """Version, such as `3.11`."""
    glibc: tuple[int, int] = _GLIBC

    @property
    def tags(self) -> tuple[str, ...]:
        """Platforms of wheels that run there, the newest first.

        Source: PEP 600, manylinux_x_y; manylinux2014 is its name for 2.17.
        """
        newest = max(self.glibc[1], _OLDEST_GLIBC)
        numbered = [f"manylinux_2_{minor}_{self.processor}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
        return (*numbered, f"manylinux2014_{self.processor}", f"linux_{self.processor}")

    def __str__(self) -> str:
        return f"{self.processor}, Python {self.python}"


def read_platform(processor: str, python: str) -> DevicePlatform:
    """Return a platform from the words of a user.

    Raises:
        UnsupportedError: If there are no wheels for such a device.
    """
    known = PROCESSORS.get(processor.lower())
    if known is None:
        remedy = f"name what `uname -m` prints there: {', '.join(sorted(set(PROCESSORS.values())))}"
        raise UnsupportedError(f"there are no wheels of ONNX Runtime for {short(processor)}", remedy=remedy)
    match = _PYTHON.fullmatch(python)
    if match is None or not _LEAST_PYTHON <= int(match[1]) <= _MOST_PYTHON:
        needed = f"edgeopt needs Python 3.{_LEAST_PYTHON} to 3.{_MOST_PYTHON}"
        raise UnsupportedError(f"{needed}, not {short(python)}", remedy="name the version that is on the device")
    return DevicePlatform(known, python)


def platform_of(facts: Any) -> DevicePlatform:
    """Return the platform that a device tells of itself.

    Raises:
        UnsupportedError: If wheels for it cannot be fetched from here.
    """
    try:
        name, version = (str(each) for each in facts["libc"])
        system, processor, python = (str(facts[key]) for key in ("system", "machine", "python"))
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedError("the device does not say what it is", remedy="give it a network") from error
    if system != "linux" or name != "glibc":
        remedy = "give the device a network, or a pip.conf"
        raise UnsupportedError(
            f"no wheels are fetched for {short(system)} with {short(name or 'another libc')}", remedy=remedy
        )
    found = read_platform(processor, python)
    numbers = re.match(r"2\.(\d{1,3})(?!\d)", version, re.ASCII)
    return DevicePlatform(found.processor, found.python, (2, int(numbers[1])) if numbers else _GLIBC)


def collect_wheels(platform: DevicePlatform, wheel: Wheel, extras: Sequence[str], folder: Path) -> tuple[Path, ...]:
    """Fetch edgeopt and all that it needs on a device into a folder; return the files.

    Args:
        platform: Of the device.
        wheel: Of the running edgeopt.
        extras: Names of the extras that the device gets.
        folder: Made once there is something for it; wheels that lie in it are not fetched again.

    Raises:
        EdgeoptError: If pip is not here, or finds no wheel for the device.
    """
    if folder.exists() and not folder.is_dir():
        raise EdgeoptError(f"{folder} is no folder", remedy="name another place for the wheels")
    with tempfile.TemporaryDirectory(prefix="edgeopt-wheel-") as place:
        own, fetched = Path(place) / wheel.name, Path(place) / "fetched"
        own.write_bytes(wheel.pack())
        wanted = f"{own}[{','.join(extras)}]" if extras else str(own)
        version = platform.python.replace(".", "")
        tags = [word for tag in platform.tags for word in ("--platform", tag)]
        abis = [word for abi in (f"cp{version}", "abi3", "none") for word in ("--abi", abi)]
        command = module_command("pip", "download", "-q", "--disable-pip-version-check")
        command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", platform.python]
        command += [*abis, *tags, "--find-links", str(folder), "--dest", str(fetched), wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.returncode:
            return tuple(_kept(path, folder) for path in sorted(fetched.glob("*.whl")))
    said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    raise EdgeoptError(
        f"no wheels for {platform}: {said[-1] if said else 'pip says nothing'}",
        remedy="this machine needs pip and a network, or a folder of wheels from a machine that has both",
    )


def _kept(wheel: Path, folder: Path) -> Path:
    """Move a wheel into a folder, and return its place."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, folder / wheel.name))


def wheels_for(facts: Any, wheel: Wheel, extras: Sequence[str]) -> tuple[Path, ...]:
    """Return the wheels for a device that has no packages to install: a folder that was collected, or fetched now.

    Raises:
        EdgeoptError: If there are none.
    """
    platform = platform_of(facts)
    if named := os.environ.get(VARIABLE):
        wheels = tuple(sorted(Path(named).glob("*.whl")))
        if not wheels:
            remedy = f"edgeopt wheelhouse --for {platform.processor} --python {platform.python} --out {named}"
            raise EdgeoptError(f"{VARIABLE} names {named}, which holds no wheels", remedy=remedy)
        return wheels
    key = f"{platform.processor}-{platform.python}-{platform.glibc[1]}"
    folder = cache_folder() / "wheelhouse" / key
    for old in folder.glob("edgeopt-*.whl"):
        old.unlink(missing_ok=True)  # of another state of this installation
    return collect_wheels(platform, wheel, extras, folder)


# The lines of `edgeopt wheelhouse`.


def summarize(platform: DevicePlatform, wheels: Sequence[Path], folder: Path) -> Document:
    """Return what is shown of collected wheels."""
    size_bytes = sum(path.stat().st_size for path in wheels)
    figures = {
        "processor": platform.processor,
        "python": platform.python,
        "folder": str(folder),
        "size_bytes": size_bytes,
        "wheels": [path.name for path in wheels],
    }
    sentence = f"{plural(len(wheels), 'wheel')} for {platform} in {folder}"
    following = f"{VARIABLE}={shlex.quote(str(folder))} edgeopt doctor --on ssh://USER@HOST"
    verdict = VerdictLines(
        CommandOutcome.DONE, sentence, (Value("size", format_bytes(size_bytes)),), next_command=following
    )
    result = PlainResult(command="wheelhouse", figures=figures)
    return Document(result, str(platform), "Wheels for a device", verdict=verdict)
