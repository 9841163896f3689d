"""Memory, cold start and peak of `optimize` of language models, each in fresh processes.

    pip install 'edgeopt[cpu]'
    python benchmarks/language_memory.py [--work FOLDER] [--forms fp32,w8a8,w8,w4+head] [--rounds 5] [--code FOLDER,...]
    python benchmarks/language_memory.py --optimize large:TEXT

The model has the shape of SmolLM2-135M with random weights (`write_smol` of rivals.py); its forms lie in memory as
those of `optimize` do, but without a text that blocks of 4 bits are fitted to, and are put into bundles. Memory:
resident (RSS) after a prompt of 128 tokens and 64 of answer with one thread, and after a text that fills the context;
the peak (VmHWM) until then. Cold start: from starting the process to its first token with a warm page cache, by
`Runtime.load(...).generate(...)` and by `edgeopt run --prompt`, wall and CPU, the least of the rounds, since another
program can only add. Bytecode is compiled before. `--code` names further checkouts (their folders `toolkit`), whose
processes take turns with ours.

`--optimize SHAPE:TEXT` runs `edgeopt optimize` of that shape (`large` has 51 million weights, `smol` 135) judged by
that text, and tells the most memory of one process, and of all together.
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

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from rivals import model_of

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.files.large_constants import kept_in
from edgeopt.graph.files.outside import PieceLayout
from edgeopt.graph.model import load_model, save_model
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.decoding.opening import open_language_model, recipe_beside
from edgeopt.runtime.decoding.selftest import record_logits
from edgeopt.steps.convert.fitting.grams import rounding_with
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
for name, prompt, answer in (("short", 128, 64), ("full", model.context - 65, 64)):
    model.forget()
    text = [10 + i % 1000 for i in range(prompt)]
    for _ in model.generate(text, most_tokens=answer, ends=False):
        pass
    time.sleep(0.5)  # huge pages are moved in a thread
    made[name], made[name + " peak"] = told("VmRSS"), told("VmHWM")
print(json.dumps(made))
"""
STARTING = """
import sys, edgeopt
next(iter(edgeopt.Runtime.load(sys.argv[1], threads=1).generate("import os and sys, then")))
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
        if name == "w8a8":
            made = make_dynamic(model, target.rules_here).model
        elif name == "w8":
            made = make_weight_only(model, 8, 64, tables=True).model
        elif name == "w4+head":
            # zeros of their own, as blocks have that optimize fits: which integers they are costs no memory and no time
            rounding = rounding_with({})
            made = make_weight_only(
                model, 4, wide=(material.head,), wide_block=64, tables=True, rounding=rounding
            ).model
        else:
            made = model
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
        bundle, [(artefact, data)], target, recipe_beside(file), {}, package_versions(), weights=weights,
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


def started(command: Sequence[str], code: str) -> tuple[float, float]:
    """Return wall and CPU seconds of a process from its start to its end, which its first token is."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, env=environment(code), capture_output=True, check=True)
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, cpu


def show_bundles(bundles: Sequence[Path], codes: Sequence[str], rounds: int) -> None:
    """Measure bundles with each checkout in turns, and print a table."""
    print("| bundle | code | MiB on disk | RSS short | RSS full | peak | start API s (CPU) | start run s (CPU) |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for bundle in bundles:
        size = sum(path.stat().st_size for path in bundle.iterdir()) / MIB
        ways = {"API": ["-c", STARTING, str(bundle)], "run": ["-m", "edgeopt", "run", str(bundle)]}
        ways["run"] += ["--prompt", "import os and sys, then", "--output-tokens", "1", "--threads", "1"]
        memory = {code: held(bundle, code) for code in codes}
        times: dict[tuple[str, str], list[tuple[float, float]]] = {(code, way): [] for code in codes for way in ways}
        for i in range(rounds):
            for code, way in list(times)[:: 1 if i % 2 else -1]:
                times[code, way].append(started([sys.executable, *ways[way]], code))
        for code in codes:
            least = [[min(column) for column in zip(*times[code, way], strict=True)] for way in ways]
            cells = [f"{wall:.2f} ({cpu:.2f})" for wall, cpu in least]
            sizes = memory[code]
            print(
                f"| {bundle.name} | {Path(code).parent.name if code else 'this'} | {size:.0f} | {sizes['short']} "
                f"| {sizes['full']} | {sizes['full peak']} | {' | '.join(cells)} |",
                flush=True,
            )


def show_optimize(work: Path, shape: str, text: str, code: str) -> None:
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
    child = psutil.Popen(command, env=environment(code), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most, together = 0, 0
    while child.poll() is None:
        sizes = list[int]()
        for process in (child, *_children(child)):
            try:
                sizes.append(process.memory_info().rss)
            except psutil.Error:
                continue
        most, together = max(most, *sizes, 0), max(together, sum(sizes))
        time.sleep(0.02)
    size = file.stat().st_size
    print(
        f"optimize of {shape} ({size / MIB:.0f} MiB of floats), exit code {child.returncode}: most memory of one "
        f"process {most / MIB:.0f} MiB, {most / size:.1f} times the floats; of all together {together / MIB:.0f} MiB, "
        f"{together / size:.1f} times"
    )


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
    asked = parser.parse_args()
    print(f"{read_environment().cpu}, ONNX Runtime {package_versions().get('onnxruntime')}")
    if asked.optimize:
        shape, _, text = asked.optimize.partition(":")
        show_optimize(asked.work, shape, text, asked.code)
        return
    bundles = [make_form(asked.work, name) for name in asked.forms.split(",") if name]
    bundles += [Path(name) for name in asked.bundles.split(",") if name]
    show_bundles(bundles, ["", *(code for code in asked.code.split(",") if code)], asked.rounds)


if __name__ == "__main__":
    main()
