"""Import ONNX Runtime's transformer tools, and take back what that does to Python.

The package puts its own folder on the search path and imports its files as top-level modules, `float16`, `metrics` and
`optimizer` among them: a program that uses this library would find those in place of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import edgeopt.executors.onnxruntime  # noqa: F401, it switches telemetry off before onnxruntime is imported
from edgeopt.system.declared.optional import require

_PACKAGE = "onnxruntime.transformers"


@contextmanager
def transformer_tools(*names: str) -> Iterator[tuple[Any, ...]]:
    """Give modules of `onnxruntime.transformers`; behind the block Python is as it was before.

    Args:
        names: Of its files, without the suffix.

    Raises:
        MissingDependencyError: If onnxruntime is not installed.
    """
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield tuple(require(f"{_PACKAGE}.{name}", extra="cpu", purpose=f"its tool {name}") for name in names)
    finally:
        added = tuple(folder for folder in sys.path if folder not in path)
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name.startswith(_PACKAGE) or ("." not in name and file.startswith(added)):
                del sys.modules[name]
