"""Language models of three shapes at 4, 8 and 16 bits beside llama.cpp, OpenVINO GenAI and onnxruntime-genai.

    pip install 'edgeopt[cpu,rivals]'
    python benchmarks/rivals.py [--work FOLDER] [--parts tiny:4,smol:16] [--threads 1] [--seconds 30]

Each part is one `edgeopt compare MODEL --rivals ...` and says how long it took; a part whose result lies in the work
folder is shown and not measured again, so that an interrupted run goes on where it stood. Run it on a machine that does
nothing else: the last line of each table says where it was not quiet.

Shapes: `tiny` is the shipped `tiny_lm` (0.9 million weights), `large` the same made large (51 million), `smol` that of
SmolLM2-135M with random weights, whose perplexity says nothing and is left out; `half` that of Qwen2.5-0.5B. At 16 bits
ours computes in 32, as its files hold floats; the rivals hold 16.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "generation"))
from enlarged import SHIPPED, write_folder, write_large

import edgeopt
from edgeopt.errors import EdgeoptError
from edgeopt.export.export import export
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import plural

RIVALS = ("llama.cpp", "openvino-genai", "onnxruntime-genai")
BITS = (4, 8, 16)
PROMPT, ANSWER = 128, 32
BLOCKS = {4: 32, 8: 64}
"""Weights of a block of ours, as `optimize` has them."""
FIGURES = ("TTFT", "TPOT", "decode", "peak memory", "cold start")


def write_smol(folder: Path) -> None:
    """Write a folder with the shape of SmolLM2-135M; its context is shortened to 2048."""
    write_random(folder, hidden=576, inner=1536, layers=30, heads=9, kv_heads=3, vocabulary=49152)


def write_half(folder: Path) -> None:
    """Write a folder with the shape of Qwen2.5-0.5B as a Llama: its 494 million weights without their biases."""
    write_random(folder, hidden=896, inner=4864, layers=24, heads=14, kv_heads=2, vocabulary=151936)


def write_random(
    folder: Path, *, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int
) -> None:
    """Write a Llama of random weights with heads of 64 numbers and a context of 2048."""
    chance, head = np.random.default_rng(0), 64

    def drawn(*shape: int) -> np.ndarray:
        return (0.02 * chance.standard_normal(shape, np.float32)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": drawn(vocabulary, hidden), "model.norm.weight": np.ones(hidden, np.float32)}
    shapes = {"q": (heads * head, hidden), "k": (kv_heads * head, hidden), "v": (kv_heads * head, hidden)}
    shapes["o"] = (hidden, heads * head)
    for i in range(layers):
        mine = f"model.layers.{i}"
        tensors |= {f"{mine}.self_attn.{name}_proj.weight": drawn(*shape) for name, shape in shapes.items()}
        tensors |= {f"{mine}.mlp.{name}_proj.weight": drawn(inner, hidden) for name in ("gate", "up")}
        tensors[f"{mine}.mlp.down_proj.weight"] = drawn(hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{mine}.{norm}.weight"] = np.ones(hidden, np.float32)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0, "max_position_embeddings": 2048, "tie_word_embeddings": True, "bos_token_id": 0,
        "eos_token_id": 0,
    }  # fmt: skip
    write_folder(folder, tensors, config)
    file = folder / "tokenizer.json"  # with as many tokens as the table has rows; no merge makes those that are added
    values = json.loads(file.read_text("utf-8"))
    known = len(values["model"]["vocab"])
    values["model"]["vocab"] |= {f"unused{i}": i for i in range(known, vocabulary)}
    file.write_text(json.dumps(values), "utf-8")


WRITERS: Mapping[str, Callable[[Path], None] | None] = {
    "tiny": None,
    "large": write_large,
    "smol": write_smol,
    "half": write_half,
}


def model_of(work: Path, shape: str, bits: int) -> Path:
    """Return the ONNX file of a shape at so many bits, with its recipe, which names the folder of its weights."""
    place = work / f"{shape}-{bits}-bits"
    file = place / "model.onnx"
    weights = work / f"{shape}-weights"
    write = WRITERS[shape]
    if write and not weights.is_dir():  # files for the rivals are written of it: the same numbers each time
        part = weights.with_suffix(".part")  # an interrupted run leaves no folder that looks whole
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        part.rename(weights)
    if file.is_file():
        return file
    if bits == 16 and write:
        export(f"hf:{weights}", out=file)
    elif bits == 16:
        shutil.copytree(SHIPPED, place, dirs_exist_ok=True)
    else:
        original = model_of(work, shape, 16)
        made = make_weight_only(load_model(original), bits, BLOCKS[bits], tables=True).model
        shutil.copytree(original.parent, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.onnx*"))
        save_model(keep_last_logits(made).model, file)
    return file


def measured(work: Path, shape: str, bits: int, threads: int, seconds: float) -> dict[str, object]:
    """Return the comparison of one part as plain values, measured or read."""
    stored = work / "results" / f"{shape}-{bits}-{threads}.json"
    if stored.is_file():
        result: dict[str, object] = json.loads(stored.read_text("utf-8"))
        return result
    making_s = time.monotonic()
    file, began_s = model_of(work, shape, bits), time.monotonic()
    source = "" if shape == "smol" else str(SHIPPED / "held_out.txt")
    options = SideOptions(
        seconds=seconds, threads=threads, prompt_tokens=PROMPT, output_tokens=ANSWER, eval=source, rivals=RIVALS,
        rival_models=() if shape != "tiny" else tuple(f"{name}=tiny_lm" for name in RIVALS[:2]),
    )  # fmt: skip
    result = edgeopt.compare(str(file.parent), options=options).as_json()
    result["made_s"], result["took_s"] = began_s - making_s, time.monotonic() - began_s
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(result), "utf-8")
    return result


def show(shape: str, bits: int, result: Mapping[str, object]) -> None:
    """Print one part as a table of Markdown."""
    print(f"\n{shape}, {bits} bits (made in {result['made_s']:.0f} s, measured in {result['took_s']:.0f} s)\n")
    print(f"| model | {' | '.join(FIGURES)} | MiB | perplexity | same answers |\n|---|{'---|' * (len(FIGURES) + 3)}")
    for row in result["rows"]:
        figures = [row["figures"].get(name) for name in FIGURES]
        cells = [
            f"{one['value']:.4g} [{one['low']:.4g}, {one['high']:.4g}] {one['unit']}" if one else "-" for one in figures
        ]
        quality = f"{row['quality']['value']:.3f}" if row["quality"] else "-"
        cells += [f"{row['size_bytes'] / 2**20:.1f}", quality, row["more"].get("same answers", "-")]
        print(f"| {row['label']} | {' | '.join(cells)} |")
    for row in result["rows"]:
        print(f"- {row['label']}: {'; '.join(f'{name} {value}' for name, value in row['settings'].items())}")
    for note in result["notes"]:
        print(f"- {note['kind']}: {note['detail']}")
    trust = result["trust"]
    print(f"- machine: {trust['level']}" if trust else "", flush=True)


def main() -> None:
    """Measure what is not measured yet, and print a table a part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("rivals-work"))
    parser.add_argument("--parts", default=",".join(f"{shape}:{bits}" for shape in WRITERS for bits in BITS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    print(
        f"{read_environment().cpu}, {plural(given.threads, 'thread')}; prompts of {PROMPT} tokens, answers of {ANSWER}"
    )
    for part in given.parts.split(","):
        shape, _, bits = part.partition(":")
        try:
            show(shape, int(bits), measured(given.work, shape, int(bits), given.threads, given.seconds))
        except EdgeoptError as error:
            print(f"\n{part} failed: {error}", flush=True)


if __name__ == "__main__":
    main()
