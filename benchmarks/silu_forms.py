"""Time the ways to compute an 8-bit SiLU in ONNX Runtime's CPU provider, and count how far each is off.

Every form maps uint8 to uint8 with stock operators only:

pair     QLinearSigmoid, QLinearMul: what the quantizer of ONNX Runtime leads to.
unfused  DequantizeLinear, Sigmoid, Mul, QuantizeLinear: ONNX Runtime gives Sigmoid and Mul a DequantizeLinear each,
         so that they are no longer fused into one QuickGelu.
gelu     DequantizeLinear, QuickGelu with alpha 1, QuantizeLinear: the same function, the fusion written out.
hinges   silu(x) = relu(x) - g(|x|), and g, a bump never above 0.28, is drawn with straight lines by byte arithmetic:
         steep * min(|x|, near) - min(|x|, far). One QLinearAdd joins the parts. Within one step only where a step
         of the output is 0.03 or more, and biased there; it needs no fast exponential.

Measure on the device: ONNX Runtime has its own kernel for gelu on AVX-512 (its pull request 27690), not everywhere.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported
import onnxruntime as ort

CODES = np.arange(256)
MICROSOFT = "com.microsoft"
Graph = tuple[list[onnx.NodeProto], dict[str, NDArray[np.generic]]]


@dataclass(frozen=True, slots=True)
class Quantization:
    """The scales (real units per step) and zero points of the input x and the output y."""

    x_scale: float
    x_zero: int
    y_scale: float
    y_zero: int

    @classmethod
    def of_range(cls, low: float, high: float) -> Quantization:
        """Return the one that covers inputs from `low` (below zero) to `high` and every output they have."""
        outputs = silu(np.linspace(low, high, 9999))
        x_scale, y_scale = (high - low) / 255, float(outputs.max() - outputs.min()) / 255
        return cls(x_scale, round(-low / x_scale), y_scale, round(-float(outputs.min()) / y_scale))

    def exact(self) -> NDArray[np.float64]:
        """Return the real output, in steps, of each of the 256 inputs."""
        return np.clip(silu((CODES - self.x_zero) * self.x_scale) / self.y_scale + self.y_zero, 0, 255)


@dataclass(frozen=True, slots=True)
class Bump:
    """g(a) / y_scale = gain * (steep * clip(a, 1, near) - min(a, far) - zero), with a = |x| in input steps."""

    near: int
    far: int
    steep: int
    gain: float
    zero: int

    @classmethod
    def fitted(cls, quantization: Quantization) -> Bump:
        """Return the one with the smallest greatest error, by trying the knots and slopes that make sense."""
        x = (CODES - quantization.x_zero) * quantization.x_scale
        bump = (np.maximum(x, 0) - silu(x)) / quantization.y_scale
        nears = sorted({round(knot / quantization.x_scale) for knot in np.linspace(0.5, 1.7, 25)})
        fars = sorted({min(255, round(knot / quantization.x_scale)) for knot in np.linspace(2.5, 9, 53)})
        best, least = cls(1, 2, 2, 0.0, 1), np.inf
        for near, far, steep in itertools.product(nears, fars, range(2, 14)):
            distance = np.abs(CODES - quantization.x_zero)
            drawn = steep * np.clip(distance, 1, near) - np.minimum(distance, far)
            if drawn.min() < 1 or drawn.max() > 255:  # a byte, and so is its negative, 256 - drawn
                continue
            gain, offset = np.polyfit(drawn, bump, 1)
            zero = max(1, round(-offset / gain))
            error = float(np.abs(gain * (drawn - zero) - bump).max())
            if gain > 0 and error < least:
                best, least = cls(near, far, steep, float(gain), zero), error
        return best


def silu(x: NDArray[np.floating] | float) -> NDArray[np.float64]:
    return np.asarray(x / (1 + np.exp(-np.asarray(x))))


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """Return the nodes that `text` such as 'Mul a b -> c; Neg c -> y' describes."""
    nodes = []
    for left, right in (one.split(" -> ") for one in text.split("; ")):
        op, *inputs = left.split()
        domain = MICROSOFT if op.startswith(("Quick", "QLinear")) else ""
        nodes.append(helper.make_node(op, inputs, [right], domain=domain))
        if op == "QuickGelu":  # the default, 1.702, is another function
            nodes[-1].attribute.append(helper.make_attribute("alpha", 1.0))
    return nodes


def constants(quantization: Quantization, **more: np.generic) -> dict[str, NDArray[np.generic]]:
    scales = {"xs": np.float32(quantization.x_scale), "ys": np.float32(quantization.y_scale)}
    zeros = {"xz": np.uint8(quantization.x_zero), "yz": np.uint8(quantization.y_zero)}
    return {name: np.asarray(value) for name, value in (scales | zeros | more).items()}


def pair(quantization: Quantization) -> Graph:
    text = "QLinearSigmoid x xs xz ss sz -> s; QLinearMul x xs xz s ss sz ys yz -> y"
    return nodes_of(text), constants(quantization, ss=np.float32(1 / 256), sz=np.uint8(0))


def unfused(quantization: Quantization) -> Graph:
    text = "DequantizeLinear x xs xz -> d; Sigmoid d -> s; Mul d s -> g; QuantizeLinear g ys yz -> y"
    return nodes_of(text), constants(quantization)


def gelu(quantization: Quantization) -> Graph:
    text = "DequantizeLinear x xs xz -> d; QuickGelu d -> g; QuantizeLinear g ys yz -> y"
    return nodes_of(text), constants(quantization)


def hinges(quantization: Quantization) -> Graph:
    """Add -g as (256 - byte): a negative scale would do too, but has only a slow path on Arm."""
    bump = Bump.fitted(quantization)
    text = "Max x xz -> p; Min x xz -> m; Sub p m -> a; Clip a one near -> u; Min a far -> v; Mul u steep -> w"
    text += "; Sub v w -> b; QLinearAdd p xs xz b bs bz ys yz -> y"
    codes = {"one": 1, "near": bump.near, "far": bump.far, "steep": bump.steep, "bz": 256 - bump.zero}
    knots = {name: np.uint8(code) for name, code in codes.items()}
    return nodes_of(text), constants(quantization, bs=np.float32(bump.gain * quantization.y_scale), **knots)


FORMS = (pair, unfused, gelu, hinges)


class Bound:
    """A session of one thread with its input and output already in place."""

    def __init__(self, graph: Graph, x: NDArray[np.uint8]) -> None:
        nodes, initializers = graph
        ends = [helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, x.shape) for name in "xy"]
        weights = [numpy_helper.from_array(value, name) for name, value in initializers.items()]
        graph_proto = helper.make_graph(nodes, "silu", ends[:1], ends[1:], weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph_proto, opset_imports=opsets, ir_version=8).SerializeToString()
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self.output = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(x))
        self._binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        self._binding.bind_ortvalue_output("y", self.output)

    def mean_us(self, calls: int) -> float:
        """Return the mean time of one call."""
        start = time.perf_counter_ns()
        for _ in range(calls):
            self._session.run_with_iobinding(self._binding)
        return (time.perf_counter_ns() - start) / calls / 1e3


def median_interval(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median and the ends of its 95 % interval, from ranks: nothing is assumed of the distribution."""
    half = min(0.5, 0.98 / len(samples) ** 0.5)
    return np.asarray(np.quantile(samples, [0.5, 0.5 - half, 0.5 + half]))


def compare(shape: tuple[int, ...], quantization: Quantization, blocks: int) -> None:
    x = np.random.default_rng(0).permutation(np.resize(CODES, np.prod(shape))).astype(np.uint8).reshape(shape)
    runs = [Bound(form(quantization), x) for form in FORMS]
    calls = max(4, 2_000_000 // x.size)
    times = np.zeros((blocks, len(runs)))
    for block in range(-2, blocks):  # two rounds of warm-up; then every other round runs backwards
        for index in range(len(runs))[:: 1 if block % 2 else -1]:
            times[max(block, 0), index] = runs[index].mean_us(calls)
    real = quantization.exact()[x]
    print(f"\n{'x'.join(map(str, shape))}   us per call   times faster than pair   error in steps: greatest, rms")
    for index, form in enumerate(FORMS):
        ratio, low, high = median_interval(times[:, 0] / times[:, index])
        took, y = np.median(times[:, index]), runs[index].output.numpy()
        worst, spread = np.abs(y - np.rint(real)).max(), np.sqrt(np.mean((y - real) ** 2))
        print(f"{form.__name__:9}{took:8.1f}   {ratio:5.2f} [{low:.2f}, {high:.2f}]   {worst:2.0f}  {spread:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--low", type=float, default=-10.0, help="smallest input, below zero")
    parser.add_argument("--high", type=float, default=10.0, help="greatest input")
    parser.add_argument("--blocks", type=int, default=41, help="rounds; each times every form once")
    given = parser.parse_args()
    for shape in ((1, 104, 104, 32), (1, 104, 104, 16), (1, 52, 52, 64), (1, 26, 26, 128)):
        compare(shape, Quantization.of_range(given.low, given.high), given.blocks)


if __name__ == "__main__":
    main()
