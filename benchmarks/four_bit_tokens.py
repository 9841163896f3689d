"""A token of a model in 4 bits: forms of ours in turns with llama.cpp's Q4_0, and where the time goes.

    pip install 'edgeopt[cpu,rivals,gguf]'
    python benchmarks/four_bit_tokens.py [--work FOLDER] [--forms w4+head,w4+long,w4+short] [--seconds 60] [--profile]

The model has the shape of SmolLM2-135M with random weights (`write_smol` of rivals.py): its forms are rounded without a
text, as speed hangs on no number, and `+cache8` keeps keys and values in 8 bits. All engines answer in one process on
one thread, the same prompt of 128 tokens, in turns whose order is turned round each time; ratios are medians over
rounds with their 95 % interval. `--profile` tells instead what ONNX Runtime's profiler says of each op, which adds 1 to
3 us to each node, and the bytes of weights that a token reads. `--products` times products of one row alone, with 90
matrices one after the other, which come from memory, and with the same one again and again, which stays in the cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))
from rivals import model_of

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import LOGITS, Decoder, cache_parts
from edgeopt.export.decoder.gguf.writing import write_gguf_file
from edgeopt.graph.files.in_place import mapped
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.generation.rivals import EngineRequest, _own, llama_cpp
from edgeopt.steps.convert.kv_cache import make_integer_cache
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.shortlist import make_shortlist
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.system.machine.environment import read_environment
from edgeopt.workloads.generation.rival_files import _weights_of

PROMPT, ANSWER, CONTEXT = 128, 32, 256
_LARGEST = 4.0
"""Largest number of each channel of the cache: its value costs no time."""
_PROFILED = 32
"""Tokens."""
_PRODUCTS = ((576, 1536, 90), (1536, 576, 90), (576, 49152, 3))
"""Inputs, outputs, and how many of them are larger than the cache together."""
_KINDS = ((4, 32), (4, 64), (4, 128), (8, 64))
_TIMES = 30


def form_of(work: Path, name: str) -> Path:
    """Return the file of a form, made unless it is there."""
    original, file = model_of(work, "smol", 16), work / "four-bit-tokens" / name / "model.onnx"
    if file.is_file():
        return file
    model = load_model(original, in_place=True)
    graph = Graph.from_model(model)
    head = graph.producer(graph.value(LOGITS))
    wide = (head.name or "",) if head is not None and "short" not in name else ()
    block = 32 if "head" in name else 128
    made = make_weight_only(model, 4, block, wide=wide, wide_block=64, tables=True).model
    if "short" in name:
        made = make_shortlist(made).model
    if name.endswith("+cache8"):
        cache = cache_parts(made.inputs, made.outputs)
        ranges = {part.past: np.full((1, part.heads, 1, part.head), _LARGEST, np.float32) for part in cache}
        made = make_integer_cache(made, ranges).model
    save_model(keep_last_logits(made).model, file)
    for beside in ("recipe.toml", "tokenizer.json"):
        (file.parent / beside).write_bytes((original.parent / beside).read_bytes())
    return file


def q4_0_of(work: Path) -> Path:
    """Return llama.cpp's file of the same weights, rounded by its own quantizer unless it is there."""
    folder = work / "four-bit-tokens"
    made, floats = folder / "q4_0.gguf", folder / "floats.gguf"
    if not made.is_file():
        config, weights, tokenizer = _weights_of(work / "smol-weights", None)
        write_gguf_file(config, weights, tokenizer, floats, "f32", "smol")
        llama_cpp.quantize(EngineRequest(floats, 1, CONTEXT, "q4_0", folder))
    return made


def show_turns(files: dict[str, Path], seconds: float) -> None:
    """Let all answer in turns, and print the time of a token and of a prompt of each."""
    rivals = {name: llama_cpp.RIVAL if file.suffix == ".gguf" else _own.RIVAL for name, file in files.items()}
    engines = {name: rivals[name].open(EngineRequest(file, 1, CONTEXT)) for name, file in files.items()}
    prompt = [10 + 7 * i % 1000 for i in range(PROMPT)]
    for engine in engines.values():
        engine.answer(prompt, ANSWER)
    time.sleep(2)  # a thread moves weights into huge pages
    first, next_ = ({name: list[float]() for name in engines} for _ in range(2))
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for name in list(engines)[:: -1 if number % 2 else 1]:
            at_ns = engines[name].answer(prompt, ANSWER).at_ns
            first[name].append(at_ns[0] / 1e6)
            next_[name].append((at_ns[-1] - at_ns[0]) / 1e6 / (ANSWER - 1))
        number += 1
    chance, base = np.random.default_rng(0), np.array(next_[next(iter(engines))])
    print(f"| engine | TTFT, ms | TPOT, ms | tokens over the first's, {number} rounds | MiB |\n|---|--:|--:|---|--:|")
    for name, file in files.items():
        ratios = base / np.array(next_[name])
        low, high = np.percentile(np.median(chance.choice(ratios, (2000, number)), axis=1), [2.5, 97.5])
        print(
            f"| {name} | {np.median(first[name]):.1f} | {np.median(next_[name]):.3f} "
            f"| {np.median(ratios):.3f} [{low:.3f}, {high:.3f}] | {file.stat().st_size / 2**20:.0f} |",
            flush=True,
        )


def show_profile(name: str, file: Path) -> None:
    """Print the time of each kind of node of a token, and the bytes that products read."""
    nodes = load_model(file, in_place=True).proto.graph.node
    bytes_ = dict[str, float]()
    for node in nodes:
        if node.op_type == "MatMulNBits":
            sizes = {attribute.name: attribute.i for attribute in node.attribute}
            blocks = -(-sizes["K"] // sizes["block_size"]) * sizes["N"]
            bytes_[node.name] = blocks * (sizes["block_size"] * sizes["bits"] / 8 + 8)  # a scale and a sum a block
    session = EXECUTOR.open(mapped(file), SessionOptions(threads=1, profile_to=str(file.parent / "profile")))
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), CONTEXT, shares=True)
    decoder.run(range(5, 5 + PROMPT), last=1)
    for i in range(2 * _PROFILED):
        decoder.run([7 + i])
    events = json.loads(session.end_profiling().read_text("utf-8"))
    begin = sorted(event["ts"] for event in events if event["name"] == "model_run")[-_PROFILED]
    times, counts = defaultdict[str, float](float), defaultdict[str, int](int)
    for event in events:
        if event["name"].endswith("_kernel_time") and event["ts"] >= begin:
            node = event["name"].removesuffix("_kernel_time")
            op = event["args"]["op_name"]
            kind = f"{op} of {sizes_of(nodes, node)}" if op == "MatMulNBits" else op
            times[kind] += event["dur"] / _PROFILED
            counts[kind] += 1
    print(f"\n{name}: {sum(bytes_.values()) / 1e6:.1f} MB of weights a token, {len(nodes)} nodes\n")
    print("| op | nodes | us a token |\n|---|--:|--:|")
    for kind, time_us in sorted(times.items(), key=lambda pair: -pair[1]):
        print(f"| {kind} | {counts[kind] // _PROFILED} | {time_us:.0f} |", flush=True)


def sizes_of(nodes: Sequence[object], name: str) -> str:
    """Return the size of the matrix of a product, as inputs x outputs."""
    node = next((node for node in nodes if getattr(node, "name", "") == name), None)
    sizes = {attribute.name: attribute.i for attribute in getattr(node, "attribute", ())}
    return f"{sizes.get('K', '?')} x {sizes.get('N', '?')}"


def show_products() -> None:
    """Print the time of products of one row, and how fast their blocks, scales and sums are read."""
    whole = np.ones(50 << 20, np.float32)
    times = [_timed(whole.max) for _ in range(3)]
    print(f"\nnumpy.max reads {whole.nbytes / min(times) / 1e3:.0f} GB/s\n")
    print("| matrix, bits, block | from memory, us | GB/s | in the cache, us |\n|---|--:|--:|--:|")
    for inputs, outputs, many in _PRODUCTS:
        for bits, block in _KINDS:
            if inputs % block:
                continue
            least = [_least_us(inputs, outputs, bits, block, count) for count in (many, 1)]
            read = inputs * outputs * (bits / 8 + 8 / block)
            label = f"{inputs} x {outputs}, {bits}, {block}"
            print(f"| {label} | {least[0]:.1f} | {read / least[0] / 1e3:.0f} | {least[1]:.1f} |", flush=True)


def _least_us(inputs: int, outputs: int, bits: int, block: int, count: int) -> float:
    """Return the least time of a product by `count` matrices in turns."""
    chance, times = np.random.default_rng(0), max(count, 3)
    shape, nodes, constants = (outputs, inputs // block, block * bits // 8), [], []
    sizes = {"K": inputs, "N": outputs, "bits": bits, "block_size": block, "accuracy_level": 4}
    for i in range(count):
        blocks = chance.integers(0, 256, shape, np.uint8)
        scales = chance.random(outputs * shape[1], np.float32)
        constants += [numpy_helper.from_array(blocks, f"w{i}"), numpy_helper.from_array(scales, f"s{i}")]
    for i in range(times):
        names = ["x", f"w{i % count}", f"s{i % count}"]
        nodes.append(helper.make_node("MatMulNBits", names, [f"y{i}"], domain="com.microsoft", **sizes))
    nodes.append(helper.make_node("Sum", [f"y{i}" for i in range(times)], ["out"]))
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, [1, inputs]), ("out", 1, [1, outputs]))]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = EXECUTOR.open(made.SerializeToString(), SessionOptions(threads=1))
    feed = {"x": chance.standard_normal((1, inputs), np.float32)}
    least = min(_timed(lambda: session.run(feed)) for _ in range(_TIMES)) / times
    session.close()
    return least


def _timed(call: Callable[[], object]) -> float:
    """Return the microseconds of a call."""
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e3


def main() -> None:
    """Make what is not there, measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("rivals-work"))
    parser.add_argument("--forms", default="w4+head,w4+long,w4+short,w4+short+cache8")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--products", action="store_true")
    asked = parser.parse_args()
    if asked.products:
        show_products()
        return
    files = {name: form_of(asked.work, name) for name in asked.forms.split(",")}
    print(read_environment().cpu)
    if asked.profile:
        for name, file in files.items():
            show_profile(name, file)
        return
    show_turns({"llama.cpp Q4_0": q4_0_of(asked.work), **files}, asked.seconds)


if __name__ == "__main__":
    main()
