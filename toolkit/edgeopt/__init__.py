"""edgeopt makes a neural network meet a frame budget on a device, and proves it.

edgeopt.optimize("model.onnx", target="cpu", calib="pictures/")    a report, a bundle
edgeopt.bench("model.onnx")                                        stage times with intervals
edgeopt.Runtime.load("bundle").predict(frame)                      the answer for one frame
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeopt.bench_run import bench
    from edgeopt.errors import EdgeoptError
    from edgeopt.line import optimize
    from edgeopt.runtime import Runtime

__version__ = "0.1.0"
__all__ = ["EdgeoptError", "Runtime", "__version__", "bench", "optimize"]

_HOMES = {
    "EdgeoptError": "edgeopt.errors",
    "Runtime": "edgeopt.runtime",
    "bench": "edgeopt.bench_run",
    "optimize": "edgeopt.line",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a device app pays for the runtime alone."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edgeopt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
