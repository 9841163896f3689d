"""edgeopt makes a neural network meet a frame budget on a device, and proves it.

edgeopt.optimize("model.onnx", target="cpu", calib="pictures/")    a report, a bundle
edgeopt.quantize("model.onnx", calib="pictures/")                  the step quantize alone: one INT8 file
edgeopt.inspect("model.onnx")                                      what it is, and where a device runs its nodes
edgeopt.bench("model.onnx")                                        stage times with intervals
edgeopt.compare("a.onnx", "b.onnx")                                what is faster, proven
edgeopt.check("model.onnx", baseline="baseline.json")              the regression gate
edgeopt.run("bundle", "pictures/").answers                         the answers to a source, or to a prompt
edgeopt.serve("bundle", port=8000)                                 a server, until its `with` ends
edgeopt.combine_bundles(["cpu", "npu"], "all")                     one bundle for several targets
edgeopt.Runtime.load("bundle").predict(frame)                      the answer for one frame
edgeopt.Stream(runtime, "rtsp://camera/stream", budget_ms=33)      the answers for frames that keep coming
edgeopt.Pipeline.load("bundle", stages={"lookup": find})           several models, the app's functions between them
edgeopt.Scheduler({"find": ScheduledModel("bundle")})               several models and streams on one device
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeopt.errors import EdgeoptError
    from edgeopt.graph.sound import Sound
    from edgeopt.optimization.one_step.quantize import quantize
    from edgeopt.runtime.pipelines.pipeline import Pipeline
    from edgeopt.runtime.runtime import Runtime
    from edgeopt.runtime.schedule.scheduler import Scheduler
    from edgeopt.runtime.stream.stream import Stream
    from edgeopt.verbs.bench import bench
    from edgeopt.verbs.bundle.combine import combine_bundles
    from edgeopt.verbs.check import check
    from edgeopt.verbs.compare import compare
    from edgeopt.verbs.inspect import inspect
    from edgeopt.verbs.optimize import optimize
    from edgeopt.verbs.run import run
    from edgeopt.verbs.serve import serve

# Threads of NumPy's OpenBLAS turn on the spot for 2^26 ticks after each import and product: 0.1 s of a core that the
# engine needs while a model is opened. 2^16 ticks bridge products that follow each other. Read when NumPy is imported.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

__version__ = "0.1.0"
__all__ = [
    "EdgeoptError",
    "Pipeline",
    "Runtime",
    "Scheduler",
    "Sound",
    "Stream",
    "__version__",
    "bench",
    "check",
    "combine_bundles",
    "compare",
    "inspect",
    "optimize",
    "quantize",
    "run",
    "serve",
]

_HOMES = {
    "EdgeoptError": "edgeopt.errors",
    "Pipeline": "edgeopt.runtime.pipelines",
    "Runtime": "edgeopt.runtime",
    "Scheduler": "edgeopt.runtime.schedule",
    "Sound": "edgeopt.graph.sound",
    "Stream": "edgeopt.runtime.stream",
    "bench": "edgeopt.verbs.bench",
    "check": "edgeopt.verbs.check",
    "combine_bundles": "edgeopt.verbs.bundle.combine",
    "compare": "edgeopt.verbs.compare",
    "inspect": "edgeopt.verbs.inspect",
    "optimize": "edgeopt.verbs.optimize",
    "quantize": "edgeopt.optimization.one_step.quantize",
    "run": "edgeopt.verbs.run",
    "serve": "edgeopt.verbs.serve",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a device app pays for the runtime alone."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edgeopt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, imported or not, for shells and notebooks that complete them."""
    return sorted({*globals(), *__all__})
