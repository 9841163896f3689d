"""edgeopt-runner, the program that times models on a phone: where it lies once it is built, and for which phones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError, UnavailableError

VARIABLE = "EDGEOPT_ANDROID_RUNNER"
"""Names the folder with a folder for each ABI in it."""
PROGRAM = "edgeopt-runner"
_LIBRARY = "libonnxruntime.so"
_SCRIPT = "examples/cpp/runner/build_android.sh"
"""In edgeopt's repository: no wheel holds sources in C++."""
_BUILD = f"build it with {_SCRIPT} of edgeopt's repository, and set {VARIABLE} to its folder"
_MACHINES = {"arm64-v8a": 183, "armeabi-v7a": 40, "x86_64": 62, "x86": 3}
"""Machine in the head of a program, by Android's ABI (the ELF specification's e_machine)."""
_HEAD = slice(18, 20)


@dataclass(frozen=True, slots=True)
class BuiltRunner:
    """The runner for one kind of phone."""

    abi: str
    files: Mapping[str, Path]
    """Program and libraries by their names."""


def find_runner(abis: Sequence[str]) -> BuiltRunner:
    """Return the runner for a phone.

    Args:
        abis: Those of the phone, the best first.

    Raises:
        EdgeoptError: If it is not built for the phone, or lies without ONNX Runtime; the line says what to do.
    """
    named = os.environ.get(VARIABLE, "")
    if not named:
        raise UnavailableError(f"a phone runs {PROGRAM}, and {VARIABLE} does not say where it lies", remedy=_BUILD)
    folder = Path(named)
    if not folder.is_dir():
        raise UnavailableError(f"{VARIABLE} names {folder}, which is no folder", remedy=_BUILD)
    abi = next((abi for abi in abis if (folder / abi / PROGRAM).is_file()), "")
    if not abi:
        held = sorted(path.parent.name for path in folder.glob(f"*/{PROGRAM}"))
        holds = f"for {', '.join(held)}" if held else "for no phone"
        wanted = " or ".join(abis) or "a phone that tells no ABI"
        raise UnavailableError(
            f"the phone needs {PROGRAM} for {wanted}, and {folder} holds it {holds}",
            remedy=f"build it for {abis[0]}: {_SCRIPT} {folder} {abis[0]}" if abis else _BUILD,
        )
    _require_machine(folder / abi / PROGRAM, abi)
    libraries = sorted((folder / abi).glob(f"{_LIBRARY}*"))
    if not libraries:
        raise UnavailableError(
            f"{folder / abi} holds no {_LIBRARY}", remedy=f"put that of the package onnxruntime-android for {abi} there"
        )
    return BuiltRunner(abi, {PROGRAM: folder / abi / PROGRAM, **{path.name: path for path in libraries}})


def _require_machine(program: Path, abi: str) -> None:
    with program.open("rb") as file:
        head = file.read(20)
    wanted, machine = _MACHINES.get(abi), int.from_bytes(head[_HEAD], "little")
    if head[:4] != b"\x7fELF":
        raise EdgeoptError(f"{program} is no program for Android", remedy=_BUILD)
    if wanted is not None and machine != wanted:
        built = next((name for name, number in _MACHINES.items() if number == machine), f"machine {machine}")
        raise EdgeoptError(f"{program} is built for {built}, not for {abi}", remedy=_BUILD)
