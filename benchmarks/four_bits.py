"""Four bits: what each way of rounding a language model's matrices loses, on texts that it did not see.

    pip install edgeopt[cpu]
    python benchmarks/four_bits.py [--work FOLDER] [--parts forms,rewritten,alone] [--model FOLDER]
        [--calibration 48] [--judging 64]

Three texts apart: files of the standard library that `tiny_lm` did not learn (`models/tiny_lm/train.py`), of which the
first third calibrates, the second chooses (exponents), and the last judges. `--model` is a Hugging Face folder with
the same tokens; left out, it is `tiny_lm`.

`forms` are those of `optimize`; `rewritten` the same network rotated or scaled before it is rounded; `alone` has each
group of matrices in 4 bits with all others in float. Each line: divergence of the next token's probabilities from the
float model's in nats a token (Kullback-Leibler), the rise of perplexity with its 95 % interval over windows, and how
often the likeliest token is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported
sys.path.insert(0, str(Path(__file__).parent / "generation"))

import numpy as np
from enlarged import SHIPPED, weights_of_shipped, write_folder
from rewritten import rotated, scaled

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import cache_parts
from edgeopt.export.export import export
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.measurement.generation.perplexity import agreement_between, rise_between, score_text
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.run import Silence
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.blocks import Rounding, k_quant, to_nearest
from edgeopt.steps.convert.text_inputs import feeds_of
from edgeopt.steps.convert.weight_only import large_products, make_weight_only
from edgeopt.steps.quantize.calibration.watching import with_outputs

LENGTH, EACH = 256, 20
LEFT_OUT = ("test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo", "ensurepip")
EXPONENTS = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Judge:
    """A float model on the text that judges."""

    model: LanguageModel
    windows: Sequence[Sequence[int]]

    def told(self, other: LanguageModel) -> str:
        """Return what another model loses."""
        both = [score_text(each, self.windows) for each in (self.model, other)]
        rise = rise_between(*both)
        return (
            f"KL {1000 * self.divergence(other):6.2f}e-3  perplexity {100 * rise.value:+.2f} % "
            f"[{100 * rise.low:+.2f}, {100 * rise.high:+.2f}]  same token {agreement_between(*both):.3f}"
        )

    def divergence(self, other: LanguageModel) -> float:
        """Return the mean divergence of the next token's probabilities."""
        found = list[float]()
        for window in self.windows:
            before, after = (shares(each.logits(window)) for each in (self.model, other))
            found.append(float((np.exp(before) * (before - after)).sum(axis=-1).mean()))
        return float(np.mean(found))


def shares(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities."""
    rows = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)))


def texts_of(tokenizer: Path, counts: Sequence[int]) -> list[list[list[int]]]:
    """Return windows of each third of the files that were held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [file for file in root.rglob("*.py") if not set(file.relative_to(root).parts) & set(LEFT_OUT)]
    files = sorted(found, key=lambda file: file.relative_to(root).as_posix())[EACH - 1 :: EACH]
    encode, row = read_tokens(tokenizer).encode, list[int]()
    for file in files:
        row += [0, *encode(file.read_bytes().decode("utf-8", "replace"))]
    windows = [row[i : i + LENGTH] for i in range(0, len(row) - LENGTH, LENGTH)]
    third = len(windows) // 3
    parts = (windows[i * third : (i + 1) * third] for i in range(3))
    return [
        [part[i] for i in np.linspace(0, len(part) - 1, count).round().astype(int)]
        for part, count in zip(parts, counts, strict=True)
    ]


def exported(work: Path, name: str, weights: Mapping[str, np.ndarray], config: Mapping[str, object]) -> Model:
    """Return weights as ONNX."""
    write_folder(work / name, weights, {**config, "tie_word_embeddings": "lm_head.weight" not in weights})
    file = work / f"{name}.onnx" / "model.onnx"
    export(f"hf:{work / name}", out=file)
    return load_model(file)


def opened(work: Path, name: str, model: Model) -> LanguageModel:
    """Return a model opened with the shipped recipe."""
    folder = work / "opened" / name
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, folder / "model.onnx")
    for file in ("recipe.toml", "tokenizer.json"):
        shutil.copyfile(SHIPPED / file, folder / file)
    return open_language_model(folder / "model.onnx", threads=1)[0]


def material_of(model: Model, windows: Sequence[Sequence[int]]) -> DecoderMaterial:
    """Return what forms are made of."""
    return DecoderMaterial(model, find_device("cpu"), windows, 1, 0, 0.02, Silence())


def of_forms(work: Path, model: Model, judge: Judge, calibration: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield a line for each form, and for two roundings that see no text."""
    for name, rounding in {"to nearest": to_nearest, "k-quant": k_quant}.items():
        with opened(work, name, rounded(model, rounding)) as other:
            yield f"{name:24} {judge.told(other)}"
    material = material_of(model, calibration)
    for form in FORMS:
        if form.name == "w8" or form.precision == "w4":
            began_s = process_time()
            outcome = form.make(material)
            if not outcome.changes:
                continue
            took_s = process_time() - began_s
            with opened(work, form.name, outcome.model) as other:
                yield f"{form.name:24} {judge.told(other)}  {outcome.model.size_bytes / 1e6:.2f} MB, {took_s:.1f} s"


def rounded(model: Model, rounding: Rounding) -> Model:
    """Return a model in blocks of 32 of 4 bits, its head in 8, its table in 8."""
    head = material_of(model, []).head
    return make_weight_only(model, 4, wide=(head,), wide_block=64, rounding=rounding, tables=True).model


def fitted(model: Model, calibration: Sequence[Sequence[int]]) -> Model:
    """Return `w4+head`."""
    return next(form for form in FORMS if form.name == "w4+head").make(material_of(model, calibration)).model


def of_rewritten(
    work: Path,
    weights: Mapping[str, np.ndarray],
    config: Mapping[str, object],
    judge: Judge,
    texts: Sequence[Sequence[Sequence[int]]],
) -> Iterator[str]:
    """Yield two lines for each way to write the same network, after a check that it is the same."""
    calibration, choosing, _ = texts
    heads = int(str(config["num_key_value_heads"]))
    own = exported(work, "as-it-is", weights, config)
    seen = strengths_of(own, calibration)
    ways = {
        "as it is": own,
        "norms folded": exported(work, "folded", rotated(weights, stream=False), config),
        "stream rotated": exported(work, "rotated", rotated(weights), config),
        "stream and heads rotated": exported(work, "both", rotated(weights, heads=heads), config),
        "heads rotated": exported(work, "heads", rotated(weights, stream=False, heads=heads), config),
    }
    for kind, make in (
        ("k-quant", lambda model: rounded(model, k_quant)),
        ("fitted", lambda m: fitted(m, calibration)),
    ):
        chooser, found = Judge(judge.model, choosing[:16]), dict[float, tuple[float, Model]]()
        for exponent in EXPONENTS:
            model = exported(work, "scaled", scaled(weights, seen, exponent), config)
            with opened(work, "scaled", make(model)) as other:
                found[exponent] = chooser.divergence(other), model
        best = min(found, key=lambda exponent: found[exponent][0])
        for name, model in {**ways, f"scaled, exponent {best}": found[best][1]}.items():
            with opened(work, "float", model) as same:
                logits = [each.logits(judge.windows[0]) for each in (judge.model, same)]
            off = float(np.abs(logits[0] - logits[1]).max())
            with opened(work, "rewritten", make(model)) as other:
                yield f"{kind:8} {name:26} {judge.told(other)}  float logits off by {off:.0e}"


def strengths_of(model: Model, windows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Return the mean absolute input of each matrix under Hugging Face's names."""
    theirs = {"qkv": "self_attn.q_proj", "gate": "mlp.gate_proj", "down": "mlp.down_proj"}
    reads = dict[str, str]()
    for node in large_products(Graph.from_model(model)):
        _, number, part = (node.name or "").partition("/")[0].split(".") if "layer." in (node.name or "") else "   "
        if part in theirs and node.inputs[0] is not None:
            reads[f"model.layers.{number}.{theirs[part]}.weight"] = str(node.inputs[0].name)
    cache = cache_parts(model.inputs, model.outputs)
    session = EXECUTOR.open(with_outputs(model, list(dict.fromkeys(reads.values()))), SessionOptions(threads=1))
    sums = [
        {
            name: np.abs(array[0]).mean(axis=0)
            for name, array in session.run(feeds_of(window, cache, session.inputs)).items()
        }
        for window in windows
    ]
    return {name: np.mean([each[tensor] for each in sums], axis=0) for name, tensor in reads.items()}


def of_alone(work: Path, model: Model, judge: Judge) -> Iterator[str]:
    """Yield what each matrix loses in 4 bits, rounded without a text, beyond what all lose in 8."""
    nodes = [node.name or "" for node in large_products(Graph.from_model(model))]

    def lost(four: str) -> float:
        others = [node for node in nodes if node != four]
        made = make_weight_only(model, 4, 32, wide=others, wide_block=64, rounding=k_quant, tables=True).model
        with opened(work, "alone", made) as other:
            return judge.divergence(other)

    least, total = lost(""), 0.0
    yield f"{'all in 8 bits':24} KL {1000 * least:6.2f}e-3"
    for node in nodes:
        more = lost(node) - least
        total += more
        yield f"{node:24} KL {1000 * more:6.2f}e-3"
    yield f"{'sum':24} KL {1000 * total:6.2f}e-3"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("four-bits-work"))
    parser.add_argument("--parts", default="forms,rewritten,alone")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder with the shipped tokens")
    parser.add_argument("--calibration", type=int, default=48)
    parser.add_argument("--judging", type=int, default=64)
    given = parser.parse_args()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 128,
        "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    weights = weights_of_shipped()
    if given.model:
        from safetensors.numpy import load_file

        weights = load_file(given.model / "model.safetensors")
        config = json.loads((given.model / "config.json").read_text("utf-8"))
    texts = texts_of(SHIPPED / "tokenizer.json", (given.calibration, given.judging, given.judging))
    model = exported(given.work, "float", weights, config)
    with opened(given.work, "original", model) as original:
        judge = Judge(original, texts[2])
        print(f"perplexity {score_text(original, texts[2]).perplexity:.2f}, {len(texts[0])} windows calibrate, "
              f"{len(texts[2])} judge", flush=True)  # fmt: skip
        parts = {
            "forms": lambda: of_forms(given.work, model, judge, texts[0]),
            "rewritten": lambda: of_rewritten(given.work, weights, config, judge, texts),
            "alone": lambda: of_alone(given.work, model, judge),
        }
        for part in given.parts.split(","):
            print(part, flush=True)
            for line in parts[part]():
                print(" ", line, flush=True)


if __name__ == "__main__":
    main()
