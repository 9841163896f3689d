"""A fresh process that opens a model, runs it twice and says when each was done.

Run by `start` as a module with a request; the answer is one line of JSON. Its probes (memory, page faults) lie between
the stages and count in none of them.
"""

from __future__ import annotations

import sys
import time

ENTERED_NS = time.perf_counter_ns()  # before any other import: everything until here is the interpreter's


def main() -> int:
    """Do what the request in the arguments says; return the exit code."""
    points = [_probe("interpreter", 0, ENTERED_NS)]
    import json

    request = json.loads(sys.argv[1])
    begun = time.perf_counter_ns()
    from edgeopt import executors
    from edgeopt.errors import EdgeoptError
    from edgeopt.system.declared import registry

    writes = "prompt" in request
    executor = registry.load(executors, "onnxruntime" if writes else request["opening"]["executor"]).EXECUTOR
    reason = executor.why_unavailable()  # imports the engine
    if writes:
        import edgeopt.runtime.decoding.opening  # noqa: F401
    points.append(_probe("import", begun, time.perf_counter_ns()))
    try:
        run = _write if writes else _run
        answer: dict[str, object] = {"error": reason} if reason else {"points": points + run(request)}
    except EdgeoptError as error:
        answer = {"error": error.problem, "remedy": error.remedy}
    except Exception as error:  # an engine's own errors have no common root; the parent reports them
        answer = {"error": f"{type(error).__name__}: {error}"}
    if request["wants_peak"]:  # after the run: these imports cost memory of their own
        from edgeopt.measurement.resources.memory import peak_rss_bytes

        answer["peak_bytes"] = peak_rss_bytes()
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _run(request: dict[str, object]) -> list[dict[str, object]]:
    from pathlib import Path
    from typing import Any, cast

    from edgeopt.runtime.opening import opening_from_json

    values = cast("dict[str, Any]", request)
    opening = opening_from_json(values["opening"])
    begun = time.perf_counter_ns()
    session = opening.open(Path(values["model"]))
    points = [_probe("session", begun, time.perf_counter_ns())]
    inputs = cast("Any", _inputs(session.inputs, values["inputs"], values["shapes"]))
    for name in ("first", "second"):
        begun = time.perf_counter_ns()
        session.run(inputs)
        points.append(_probe(name, begun, time.perf_counter_ns()))
    return points


def _write(request: dict[str, object]) -> list[dict[str, object]]:
    """Open a language model, or an encoder with a decoder, and write two tokens."""
    from pathlib import Path
    from typing import Any, cast

    from edgeopt.runtime.decoding.generation import AnswerOptions
    from edgeopt.runtime.decoding.opening import open_writer

    values = cast("dict[str, Any]", request)
    begun = time.perf_counter_ns()
    opened: Any = open_writer(Path(values["model"]), values["threads"], values["entries"])
    points = [_probe("session", begun, time.perf_counter_ns())]
    prompt = values["prompt"] or _noise(opened.files.audio)
    begun = time.perf_counter_ns()
    with opened, opened.generate(prompt, AnswerOptions(2, guesses=0, ends=False)) as answer:
        for name in ("first", "second"):
            next(answer)
            points.append(_probe(name, begun, time.perf_counter_ns()))
            begun = time.perf_counter_ns()
    return points


def _noise(audio: object) -> object:
    """Return a window of noise."""
    from typing import Any, cast

    import numpy as np

    from edgeopt.graph.sound import Sound

    result = cast("Any", audio)
    return Sound((0.1 * np.random.default_rng(0).standard_normal(result.samples)).astype(np.float32), result.rate_hz)


def _inputs(specs: object, path: str, shapes: dict[str, list[int]]) -> object:
    """Return the inputs of the .npz file, else made-up ones."""
    import numpy as np

    if path:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    return made_up_inputs(specs, shapes)


def made_up_inputs(specs: object, shapes: dict[str, list[int]]) -> dict[str, object]:
    """Return random inputs in 0..1 of a fixed seed (integers: zeros, texts: empty).

    Args:
        specs: The inputs of a session.
        shapes: Of those of which the session leaves sizes free.
    """
    from typing import Any, cast

    import numpy as np

    rng = np.random.default_rng(0)
    made: dict[str, object] = {}
    for spec in cast("Any", specs):
        told = shapes.get(spec.name, spec.shape)
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in told]
        if spec.dtype in ("object", "string"):  # texts, as the engine or the graph calls them
            made[spec.name] = np.full(shape, "", object)
            continue
        is_real = np.dtype(spec.dtype).kind == "f"
        made[spec.name] = (rng.random(shape) if is_real else np.zeros(shape)).astype(spec.dtype)
    return made


def _probe(name: str, begun_ns: int, done_ns: int) -> dict[str, object]:
    return {
        "name": name,
        "begun_ns": begun_ns,
        "done_ns": done_ns,
        "rss_bytes": _rss_bytes(),
        "major_faults": _major_faults(),
    }


def _rss_bytes() -> int | None:
    import os

    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import psutil  # only where /proc is absent: the import costs memory of its own

        return int(psutil.Process().memory_info().rss)


def _major_faults() -> int | None:
    try:
        import resource
    except ImportError:  # Windows counts major and minor faults together
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


if __name__ == "__main__":
    sys.exit(main())
