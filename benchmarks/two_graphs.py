"""Two graphs over one cache beside the two forms that they are made of: first token, next tokens, memory.

    pip install edgeopt[cpu] onnxscript
    python benchmarks/two_graphs.py [--work FOLDER] [--shape large] [--pair w8a8-w4+long] [--lengths 128,512]

Shapes: `large` is the shipped `tiny_lm` made large (51 million weights), `smol` has the shape of SmolLM2-135M and
random weights. Answers of 33 tokens in turns, in an order of its own in each round, one thread; medians of processor
time. Memory is that of a fresh process behind one answer.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from generation import exported
from rivals import model_of
from same_tokens import forms_of

from edgeopt.graph.model import save_model
from edgeopt.optimization.generation.forms.kinds import CHUNK_TOKENS, SPLIT_CHUNK_TOKENS
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.prefill_graph import write_two_graphs
from edgeopt.system.machine.environment import read_environment

NEXT = 32
ASKED = AnswerOptions(most_tokens=NEXT + 1, ends=False, guesses=0)
_MEMORY = """
import sys
from pathlib import Path
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
model, _ = open_language_model(Path(sys.argv[1]), 1)
list(model.generate(list(range(5, 133)), AnswerOptions(most_tokens=16, ends=False, guesses=0)))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmRSS"].split()[0]) // 1024, model.origin.size_bytes >> 20)
"""


def written(original: Path, work: Path, pair: str) -> dict[str, Path]:
    """Return the files of both forms and of the two graphs, made unless they are there."""
    names, forms = pair.split("-"), forms_of(original)
    files = {name: work / name / "model.onnx" for name in (*names, pair)}
    for name, file in files.items():
        if file.is_file():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        more = f"chunk = {CHUNK_TOKENS}"
        if name == pair:
            both = [keep_last_logits(forms[part]()).model for part in names]
            write_two_graphs(*both, file, file.with_name("prefill.onnx"))
            more = f'chunk = {SPLIT_CHUNK_TOKENS}\nprefill = "prefill.onnx"'
        else:
            save_model(keep_last_logits(forms[name]()).model, file)
        shutil.copyfile(original.parent / "tokenizer.json", file.parent / "tokenizer.json")
        recipe = (original.parent / "recipe.toml").read_text("utf-8").replace('calib = "held_out.txt"', "")
        (file.parent / "recipe.toml").write_text(recipe.replace("[generation]", f"[generation]\n{more}"), "utf-8")
    return files


def times(model: LanguageModel, prompt: list[int]) -> tuple[float, float]:
    """Return processor time in ms until the first token, and of each next one."""
    model.forget()
    answer, began_s = model.generate(prompt, ASKED), time.process_time()
    next(answer)
    first_s = time.process_time()
    for _ in answer:
        pass
    return 1e3 * (first_s - began_s), 1e3 * (time.process_time() - first_s) / NEXT


def main() -> None:
    """Print the times of each, then memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("generation-work"))
    parser.add_argument("--shape", choices=["large", "smol"], default="large")
    parser.add_argument("--pair", default="w8a8-w4+long")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    original = exported(given.work) if given.shape == "large" else model_of(given.work, "smol", 16)
    files = written(original, given.work / f"two-graphs-{given.shape}", given.pair)
    print(f"{read_environment().cpu}, one thread", flush=True)
    models = {name: open_language_model(file, 1)[0] for name, file in files.items()}
    for length in map(int, given.lengths.split(",")):
        prompt = np.random.default_rng(0).integers(5, 1000, length).tolist()
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for number in range(given.rounds + 1):  # the first one warms up
            names = [*models][number % len(models) :] + [*models][: number % len(models)]
            for name in names[:: 1 if number % 2 else -1]:
                rows[name].append(times(models[name], prompt))
        for name, row in rows.items():
            first, following = np.median(row[1:], axis=0)
            print(f"{length:>5} tokens  {name:<14} TTFT {first:7.1f} ms  TPOT {following:6.2f} ms", flush=True)
    for model in models.values():
        model.close()
    for name, file in files.items():
        shown = subprocess.run([sys.executable, "-c", _MEMORY, str(file)], capture_output=True, text=True, check=True)
        rss, size = shown.stdout.split()
        print(f"{name:<14} {rss} MB behind an answer, {size} MiB on disk", flush=True)


if __name__ == "__main__":
    main()
