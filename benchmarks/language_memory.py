"""Memory, cold start and peak of `optimize` of language models, each in fresh processes.

    pip install 'edgeopt[cpu]'
    python benchmarks/language_memory.py [--work FOLDER] [--forms fp32,w8a8,w8,w4+head] [--rounds 5] [--code FOLDER,...]
    python benchmarks/language_memory.py --optimize large:TEXT

The model has the shape of SmolLM2-135M with random weights (`write_smol` of rivals.py); its forms lie in memory as
those of `optimize` do, but without a text that blocks of 4 bits are fitted to, and are put into bundles whose prompts
run in parts, as those of `optimize` do; `+cache8` behind a form's name keeps its cache in 8 bits. Memory:
resident (RSS) after a prompt of 128 tokens and 64 of answer with one thread, and after a text that fills the context;
first of 1,000 tokens that lie side by side in the table, then of tokens from all over it, whose pages of the mapped
table are held too; the peak (VmHWM) until then. Cold start: from starting the process to its first token, and to its
end, with a warm page cache, by `Runtime.load(...).generate(...)` and by `edgeopt run --prompt`, wall and CPU, the least
of the rounds, since another program can only add. Bytecode is compiled before. `--code` names further checkouts (their
folders `toolkit`), whose processes take turns with ours.

`--optimize SHAPE:TEXT` runs `edgeopt optimize` of that shape (`large` has 51 million weights, `smol` 135, `half` 494)
judged by that text, and tells the most memory of one process, and of all together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))
from rivals import model_of

from edgeopt.executors.onnxruntime.decoder import LOGITS, cache_parts
from edgeopt.graph.files.large_constants import kept_in
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model, save_model
from edgeopt.optimization.generation.forms.kinds import with_chunks
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.runtime.decoding.selftest import record_logits
from edgeopt.steps.convert.fitting.grams import rounding_with
from edgeopt.steps.convert.kv_cache import make_integer_cache
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.environment import package_versions, read_environment

MIB = 1 << 20
HOLDING = """
import json, sys, time
import edgeopt
def told(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) // 1024
runtime = edgeopt.Runtime.load(sys.argv[1], threads=1)
model, made = runtime.language_model, {}
texts = {"short": (128, 1, 1000), "full": (model.context - 65, 1, 1000), "all over": (model.context - 65, 7919, 49000)}
for name, (prompt, stride, among) in texts.items():
    model.forget()
    text, answer = [10 + i * stride % among for i in range(prompt)], 64
    for _ in model.generate(text, most_tokens=answer, ends=False):
        pass
    time.sleep(0.5)  # huge pages are moved in a thread
    made[name], made[name + " peak"] = told("VmRSS"), told("VmHWM")
print(json.dumps(made))
"""
STARTING = """
import sys, edgeopt
print(next(iter(edgeopt.Runtime.load(sys.argv[1], threads=1).generate("import os and sys, then"))), flush=True)
"""


def make_form(work: Path, name: str) -> Path:
    """Return the bundle of a form of the model, made unless it is there."""
    original, bundle = model_of(work, "smol", 16), work / "bundles" / name
    if (bundle / "manifest.json").is_file():
        return bundle
    target, model = find_target("cpu"), load_model(original, in_place=True)
    material = DecoderMaterial(model, target, [], 1, 0, 0.02, Silence())
    file = work / "forms" / name / "model.onnx"
    with kept_in(work / ".large"):
        matrices = name.removesuffix("+cache8")
        if matrices == "w8a8":
            made = make_dynamic(model, target.rules_here).model
        elif matrices == "w8":
            made = make_weight_only(model, 8, 64, tables=True).model
        elif matrices == "w4+head":
            # zeros of their own, as blocks have that optimize fits: which integers they are costs no memory and no time
            rounding = rounding_with({})
            made = make_weight_only(
                model, 4, wide=(material.head,), wide_block=64, tables=True, rounding=rounding
            ).model
        else:
            made = model
        if name.endswith("+cache8"):  # scales as they would be of a text: which they are costs no memory and no time
            cache = cache_parts(made.inputs, made.outputs)
            ranges = {part.past: np.full(part.stored_shape(1), 4.0, np.float32) for part in cache}
            made = make_integer_cache(made, ranges).model
        save_model(keep_last_logits(made).model, file)
    for beside in ("recipe.toml", "tokenizer.json"):
        (file.parent / beside).write_bytes((original.parent / beside).read_bytes())
    weights, form = dict[str, PieceLayout](), load_model(file, in_place=True)
    data, outside = in_bundle(form, weights)
    precision = name.partition("+")[0]
    artefact = make_artefact("model.onnx", data, precision, target, 1, form.inputs, form.outputs)
    with open_language_model(file, 1)[0] as opened:
        test, numbers, limit = record_logits(opened, precision)
    artefact = replace(artefact, weights=outside, noise_limits={LOGITS: limit})
    write_bundle(
        bundle, [(artefact, data)], target, with_chunks(recipe_beside(file)), {}, package_versions(), weights=weights,
        selftest=(test, numbers),
    )  # fmt: skip
    return bundle


def environment(code: str) -> dict[str, str]:
    """Return the environment of processes of a checkout, whose bytecode is kept; empty: ours."""
    made = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    made["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "language-memory-bytecode")
    return made | ({"PYTHONPATH": code} if code else {})


def held(bundle: Path, code: str) -> dict[str, int]:
    """Return MiB of a process that answers."""
    command = [sys.executable, "-c", HOLDING, str(bundle)]
    done = subprocess.run(command, env=environment(code), capture_output=True, text=True, check=True)
    values: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return values


def started(command: Sequence[str], code: str) -> tuple[float, float, float]:
    """Return seconds of a process from its start: to what it first writes, to its end, and of the processor."""
    before, began = os.times(), time.perf_counter()
    with subprocess.Popen(command, env=environment(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        has_answered = bool(process.stdout.read(1))
        first = time.perf_counter() - began
        process.stdout.read()
    wall, after = time.perf_counter() - began, os.times()
    if process.returncode or not has_answered:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return first, wall, cpu


def show_bundles(bundles: Sequence[Path], codes: Sequence[str], rounds: int) -> None:
    """Measure bundles with each checkout in turns, and print a table.

    The API continues a text. `run` does so too, but computes a turn where a bundle came with a chat template: measure
    bundles without one.
    """
    print("| bundle | code | MiB on disk | RSS short | full | all over | peak | API: first token, end, CPU s | run |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for bundle in bundles:
        size = sum(path.stat().st_size for path in bundle.iterdir()) / MIB
        ways = {"API": ["-c", STARTING, str(bundle)], "run": ["-m", "edgeopt", "run", str(bundle)]}
        ways["run"] += ["--prompt", "import os and sys, then", "--output-tokens", "1", "--threads", "1"]
        memory = {code: held(bundle, code) for code in codes}
        times: dict[tuple[str, str], list[tuple[float, float, float]]] = {
            (code, way): [] for code in codes for way in ways
        }
        for i in range(rounds):
            for code, way in list(times)[:: 1 if i % 2 else -1]:
                times[code, way].append(started([sys.executable, *ways[way]], code))
        for code in codes:
            least = [[min(column) for column in zip(*times[code, way], strict=True)] for way in ways]
            cells = [f"{first:.2f}, {wall:.2f} ({cpu:.2f})" for first, wall, cpu in least]
            sizes = memory[code]
            print(
                f"| {bundle.name} | {Path(code).parent.name if code else 'this'} | {size:.0f} | {sizes['short']} "
                f"| {sizes['full']} | {sizes['all over']} | {sizes['all over peak']} | {' | '.join(cells)} |",
                flush=True,
            )


def show_optimize(work: Path, shape: str, text: str, code: str, limit: str) -> None:
    """Run `optimize` of a shape, and print the most memory of one process and of all together."""
    file, out = model_of(work, shape, 16), work / f"optimized-{shape}"
    command = [
        sys.executable,
        "-m",
        "edgeopt",
        "optimize",
        str(file),
        "--target",
        "cpu",
        "--eval",
        text,
        "-o",
        str(out),
    ]
    command += ["--prompt-tokens", "32", "--output-tokens", "8", "--threads", "1"]
    command += ["--time-limit", limit] if limit else []
    out.parent.mkdir(parents=True, exist_ok=True)
    log_file = out.with_suffix(".log")
    with log_file.open("wb") as log:
        child = psutil.Popen(command, env=environment(code), stdout=log, stderr=log)
    most, together, own, parts = 0, 0, 0, dict[str, tuple[int, int]]()
    while child.poll() is None:
        sizes, of_files = list[int](), list[int]()
        for process in (child, *_children(child)):
            try:
                memory = process.memory_info()
            except psutil.Error:
                continue
            sizes.append(memory.rss)
            of_files.append(getattr(memory, "shared", 0))
        most, together = max(most, *sizes, 0), max(together, sum(sizes))
        mine, part = sum(sizes) - sum(of_files), last_line(log_file)
        own = max(own, mine)
        parts[part] = max(parts.get(part, (0, 0)), (sum(sizes), mine))
        time.sleep(0.02)
    size = sum(other.stat().st_size for other in file.parent.glob("model.onnx*"))  # above 2 GB weights lie beside it
    print(
        f"optimize of {shape} ({size / MIB:.0f} MiB of floats), exit code {child.returncode}: most memory of one "
        f"process {most / MIB:.0f} MiB, {most / size:.1f} times the floats; of all together {together / MIB:.0f} MiB, "
        f"{together / size:.1f} times; without pages of files, which the system may drop, {own / MIB:.0f} MiB, "
        f"{own / size:.1f} times"
    )
    print("| MiB of all | without files | behind this line |\n|--:|--:|---|")
    for part, (whole, mine) in parts.items():
        print(f"| {whole / MIB:.0f} | {mine / MIB:.0f} | {part} |")


def last_line(log: Path) -> str:
    """Return what a process said last, without the figures of its progress."""
    with log.open("rb") as stream:
        stream.seek(max(log.stat().st_size - 2048, 0))
        lines = stream.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")


def _children(process: Any) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def main() -> None:
    """Make what is not there, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("rivals-work"))
    parser.add_argument("--forms", default="fp32,w8a8,w8,w4+head")
    parser.add_argument("--bundles", default="", help="further bundles, which another version made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--code", default="")
    parser.add_argument("--optimize", default="")
    parser.add_argument(
        "--time-limit", default="", help="of `optimize`, such as 4m; forms that it leaves out take none"
    )
    asked = parser.parse_args()
    print(f"{read_environment().cpu}, ONNX Runtime {package_versions().get('onnxruntime')}")
    if asked.optimize:
        shape, _, text = asked.optimize.partition(":")
        show_optimize(asked.work, shape, text, asked.code, asked.time_limit)
        return
    bundles = [make_form(asked.work, name) for name in asked.forms.split(",") if name]
    bundles += [Path(name) for name in asked.bundles.split(",") if name]
    show_bundles(bundles, ["", *(code for code in asked.code.split(",") if code)], asked.rounds)


if __name__ == "__main__":
    main()
