"""Requirements of NVIDIA's providers: machine, driver and libraries, and which of them is missing.

ONNX Runtime says so on standard error only, and runs on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from edgeopt.executors.onnxruntime.providers import CUDA, TENSORRT

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_LIBRARIES = {CUDA: "onnxruntime_providers_cuda", TENSORRT: "onnxruntime_providers_tensorrt"}
_LOAD = """
import contextlib, ctypes, io, os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime
with contextlib.redirect_stdout(io.StringIO()):
    getattr(onnxruntime, "preload_dlls", lambda: None)()
ctypes.CDLL(sys.argv[1])
"""
"""In a process of its own: a provider that is loaded past ONNX Runtime is broken for it afterwards."""
_ABSENT = ("cannot open shared object file", "Could not find module")


def why_no_driver(provider: str) -> str:
    """Return what is said of NVIDIA's driver where it is missing; empty for providers that need none."""
    if provider not in _LIBRARIES:
        return ""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"there is no NVIDIA driver ({_DRIVER})"
    return ""


def preload_libraries(ort: Any, provider: str) -> None:
    """Load the CUDA and cuDNN that pip installed: they are on no search path. What is missing shows later."""
    if provider in _LIBRARIES and hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def why_not_loaded(provider: str, folder: Path) -> str:
    """Return which library keeps a provider from being loaded; empty if none does, or the provider has none.

    Args:
        provider: Its name.
        folder: Where ONNX Runtime keeps its own libraries.
    """
    if provider not in _LIBRARIES:
        return ""
    name = _LIBRARIES[provider]
    return missing_library(folder / (f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so"))


@cache
def missing_library(path: Path) -> str:
    """Return the first library that another one lacks, in the loader's words; empty if it lacks none."""
    tried = subprocess.run([sys.executable, "-c", _LOAD, str(path)], capture_output=True, text=True, timeout=120)
    said = (tried.stderr.strip().splitlines() or [""])[-1].removeprefix("OSError: ")
    return said.split(":")[0] + " is missing" if any(word in said for word in _ABSENT) else ""
