"""Nodes and weights of a decoder's graph in the making, and the parts that several kinds of decoders have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgeopt.executors.onnxruntime.image_rows import AXES, IMAGE_PLACES, IMAGE_ROWS, IMAGE_SHIFTS, WITH_IMAGES
from edgeopt.export.decoder.packed import PackedMatrix, keeps_halves, packed_of, side_by_side
from edgeopt.export.decoder.positions import Positions
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.graph.files.large_constants import proto_of

MICROSOFT = "com.microsoft"


class NodeWriter:
    """Nodes and constants as they come; each kind of decoder adds its own."""

    def __init__(self, weights: NamedTensors, hidden: int) -> None:
        """Begin without a node.

        Args:
            weights: Read as they are needed.
            hidden: Numbers of a token.
        """
        self._weights, self._hidden = weights, hidden
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[TensorProto] = []
        self._packed = PackedNodes(self._constant, self._node)

    def _constant(self, name: str, array: NDArray[Any] | TensorProto) -> str:
        self._constants.append(array if isinstance(array, TensorProto) else proto_of(array, name))
        return name

    def _node(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        self._outputs(op, inputs, [output], domain, **attributes)
        return output

    def _outputs(self, op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str, **attributes: Any) -> None:
        node = helper.make_node(op, inputs, outputs, name=f"{outputs[0]}/{op}", domain=domain, **attributes)
        self._nodes.append(node)

    def _product(self, x: str, theirs: Sequence[str], sides: Sequence[int], inputs: int, mine: str) -> str:
        """Return x times the matrices side by side, and their biases where there are any."""
        packed = side_by_side(self._stored(theirs, sides, inputs))
        if packed is not None:
            made = self._packed.product(x, packed, mine)
        else:
            shapes = zip(theirs, sides, strict=True)
            parts = [self._weights.read(f"{name}.weight", (side, inputs)) for name, side in shapes]
            if keeps_halves(self._weights):
                made = self._packed.product_of_halves(x, np.concatenate(parts), f"{mine}.half", mine)
            else:
                weight = self._constant(f"{mine}.weight", np.ascontiguousarray(np.concatenate(parts).T))
                made = self._node("MatMul", [x, weight], mine)
        if f"{theirs[0]}.bias" not in self._weights:
            return made
        biases = [self._weights.read(f"{name}.bias", (side,)) for name, side in zip(theirs, sides, strict=True)]
        return self._node("Add", [made, self._constant(f"{mine}.bias", np.concatenate(biases))], f"{mine}.biased")

    def _stored(self, theirs: Sequence[str], sides: Sequence[int], inputs: int) -> list[PackedMatrix | None]:
        shapes = zip(theirs, sides, strict=True)
        return [packed_of(self._weights, f"{name}.weight", (side, inputs)) for name, side in shapes]

    def _gated(self, x: str, theirs: str, sides: tuple[int, int], mine: str, names: Sequence[str] = ()) -> str:
        """Return down(silu(gate(x)) * up(x)).

        Args:
            x: (batch, sequence, hidden).
            theirs: What the names of the three matrices begin with.
            sides: Numbers of a token, and neurons.
            mine: What the names of the nodes begin with.
            names: Of gate, up and down; empty: as Llama has them.
        """
        gate_name, up_name, down_name = names or ("gate_proj", "up_proj", "down_proj")
        hidden, inner = sides
        gate = self._product(x, [f"{theirs}.{gate_name}"], [inner], hidden, f"{mine}.gate")
        up = self._product(x, [f"{theirs}.{up_name}"], [inner], hidden, f"{mine}.up")
        opened = self._node("Sigmoid", [gate], f"{mine}.sigmoid")
        passed = self._node("Mul", [gate, opened], f"{mine}.silu")
        neurons = self._node("Mul", [passed, up], f"{mine}.inner")
        return self._product(neurons, [f"{theirs}.{down_name}"], [hidden], inner, f"{mine}.down")

    def _first_norm(self, x: str, theirs: str, epsilon: float) -> str:
        """Return the norm before the first layer; the others come with a sum before them."""
        self._constant("epsilon", np.array(epsilon, np.float32))
        self._constant("two", np.array(2, np.float32))
        self._constant("last_axis", np.array([-1], np.int64))
        return self._normal(x, self._read_as(f"{theirs}.weight"), "layer.0.normal")

    def _normal(self, x: str, scale: str, mine: str, epsilon: str = "epsilon") -> str:
        """Return x over its root mean square, times its scale, in ops of ONNX, which ONNX Runtime fuses into one."""
        power = self._node("Pow", [x, "two"], f"{mine}.squares")
        mean = self._node("ReduceMean", [power, "last_axis"], f"{mine}.mean", keepdims=1)
        root = self._node("Sqrt", [self._node("Add", [mean, epsilon], f"{mine}.above_zero")], f"{mine}.root")
        return self._node("Mul", [self._node("Div", [x, root], f"{mine}.unit"), scale], mine)

    def _added(
        self, x: str, more: str, theirs: str, epsilon: float, mine: str, *, is_last: bool = False
    ) -> tuple[str, str]:
        """Return the sum and its norm; behind the last layer nobody reads the sum."""
        outputs = [f"{mine}.normal", "", "", f"{mine}.sum"][: 1 if is_last else 4]
        inputs = [x, more, self._read_as(f"{theirs}.weight")]
        self._outputs("SkipSimplifiedLayerNormalization", inputs, outputs, MICROSOFT, epsilon=epsilon)
        return f"{mine}.sum", outputs[0]

    def _read_as(self, name: str, shape: tuple[int, ...] = ()) -> str:
        """Return weights as a constant under their own name; no shape: as many as a token has numbers."""
        return self._constant(name, self._weights.read(name, shape or (self._hidden,)))

    def _repeated(self, x: str, heads: int, head: int, times: int, mine: str) -> str:
        """Return each head of (batch, sequence, heads * head) so many times, one after the other."""
        if times == 1:
            return x
        apart = self._shaped(x, [0, 0, heads, 1, head], f"{mine}.apart")
        shape = self._constant(f"{mine}.times", np.array([1, 1, 1, times, 1], np.int64))
        return self._shaped(self._node("Expand", [apart, shape], f"{mine}.every"), [0, 0, heads * times * head], mine)

    def _shaped(self, x: str, shape: Sequence[int], mine: str) -> str:
        return self._node("Reshape", [x, self._constant(f"{mine}.shape", np.array(shape, np.int64))], mine)


class PictureNodes(NodeWriter):
    """Parts of a decoder that sees: rows of pictures among its embeddings, and positions on three axes."""

    def _image_ports(self, hidden: int, deep: int, *, turns: bool) -> list[onnx.ValueInfoProto]:
        """Return the inputs of pictures; `deep`: layers that get more of each row, `turns`: positions are on axes."""
        rows = float_port(IMAGE_ROWS, ["image_rows", hidden * (1 + deep)])
        ports = [rows, int_port(IMAGE_PLACES, ["image_batch", "image_tokens"])]
        return [*ports, int_port(IMAGE_SHIFTS, [AXES, "image_batch", "image_tokens"])] if turns else ports

    def _with_images(self, embedded: str, deep: int) -> str:
        """Return embeddings with rows of pictures at their places; a place below 0 has none."""
        zero = self._constant("no_place", np.array(0, np.int64))
        place = self._node("Max", [IMAGE_PLACES, zero], "image_place")
        row = self._node("Gather", [IMAGE_ROWS, place], "image_row")
        is_text = self._node("Less", [IMAGE_PLACES, zero], "is_text")
        each = self._node("Unsqueeze", [is_text, "last_axis"], "is_text_row")
        rows = [row] if not deep else [f"image_row.{part}" for part in range(1 + deep)]
        if deep:
            self._outputs("Split", [row], rows, "", axis=-1, num_outputs=len(rows))
            nothing = self._constant("nothing", np.array(0, np.float32))
            for part, name in enumerate(rows[1:]):
                self._node("Where", [each, nothing, name], f"deep_row.{part}")
        return self._node("Where", [each, embedded, rows[0]], WITH_IMAGES)

    def _angles_of_run(self, turning: Positions, head: int, context: int) -> None:
        """Write cosines and sines of the tokens of this run, whose positions turn on three axes: a row a token.

        No table of positions holds them, as the pairs of one head turn by different positions. So each layer turns its
        queries and keys by `RotaryEmbedding`, which looks tokens up by their number in the run.
        """
        first, one = self._constant("zero", np.array(0, np.int64)), self._constant("a_token", np.array(1, np.int64))
        of_row = self._constant("of_row", np.array([1], np.int64))
        shape = self._node("Shape", ["input_ids"], "ids_shape")
        length = self._node("Gather", [shape, one], "run_length", axis=0)
        # rows that are filled up hold fewer tokens than a run has, and begin at 0
        past = self._node("Max", [self._node("Sub", ["held", length], "held_before"), first], "places_before")
        steps = self._node("Range", [first, length, one], "steps")
        column = self._node("Unsqueeze", [past, of_row], "places_before_row")
        places = self._node("Add", [column, steps], "text_places")
        positions = self._node("Add", [places, IMAGE_SHIFTS], "axis_positions")
        tables, order = turning.tables_by_axis(head, context, AXES)
        parts: dict[str, list[str]] = {"cos": [], "sin": []}
        for axis, pair in enumerate(tables):
            number = self._constant(f"axis_{axis}", np.array(axis, np.int64))
            mine = self._node("Gather", [positions, number], f"positions_{axis}", axis=0)
            for name, table in zip(parts, pair, strict=True):
                rows = self._constant(f"{name}_cache_{axis}", np.ascontiguousarray(table))
                parts[name].append(self._node("Gather", [rows, mine], f"{name}_{axis}", axis=0))
        rows_shape = self._constant("angles_shape", np.array([-1, len(order)], np.int64))
        in_order = self._constant("pairs", np.array(order, np.int64))
        for name, each in parts.items():
            joined = self._node("Concat", each, f"{name}_by_axis", axis=-1)
            if order != sorted(order):
                joined = self._node("Gather", [joined, in_order], f"{name}_by_pair", axis=-1)
            self._node("Reshape", [joined, rows_shape], f"{name}_of_run")
        count = self._node("Size", ["input_ids"], "run_tokens")
        numbers = self._node("Range", [first, count, one], "run_numbers")
        self._node("Reshape", [numbers, shape], "run_places")

    def _turned(self, x: str, heads: int) -> str:
        """Return (batch, sequence, heads * head) with each pair turned by its position."""
        inputs = [x, "run_places", "cos_of_run", "sin_of_run"]
        return self._node("RotaryEmbedding", inputs, f"{x}.turned", MICROSOFT, interleaved=0, num_heads=heads)


def int_port(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """Return an input of whole numbers."""
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def float_port(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    """Return an input or output of floats."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


# The nodes of a decoder whose matrices lie in blocks: products, and rows that are looked up.
#
# Source: com.microsoft.MatMulNBits and com.microsoft.GatherBlockQuantized of ONNX Runtime 1.32 (specification).

_MICROSOFT = "com.microsoft"
_LOWER_HALF = 0xFFFF
_IN_FLOATS = 1
"""`accuracy_level` with which a kernel leaves its inputs in floats."""


class PackedNodes:
    """Writes nodes, and what several of them share only once."""

    def __init__(self, constant: Callable[[str, Any], str], node: Callable[..., str]) -> None:
        """Write into a graph.

        Args:
            constant: Adds a constant, an array or a tensor of ONNX, under a name, which it returns.
            node: Adds a node of an op, inputs, an output, a domain and attributes, and returns the output.
        """
        self._constant, self._node = constant, node
        self._written = set[str]()
        self._made = dict[tuple[str, str], str]()
        self._stored = dict[int, tuple[PackedMatrix, list[str]]]()

    def product(self, x: str, matrix: PackedMatrix, mine: str) -> str:
        """Return x times a matrix.

        Args:
            x: (batch, sequence, inputs).
            matrix: Its constants are written once, however often it is read.
            mine: Name of the product.
        """
        blocks = matrix.blocks
        if matrix.order is not None:
            x = self._ordered(x, matrix.order, mine)
        sizes = {"K": matrix.inputs, "N": matrix.outputs, "bits": blocks.bits, "block_size": blocks.block}
        inputs = [x, *self._constants(matrix, mine)]
        if matrix.low is None:
            return self._node("MatMulNBits", inputs, mine, _MICROSOFT, **sizes, accuracy_level=_IN_FLOATS)
        made = self._node("MatMulNBits", inputs, f"{mine}.steps", _MICROSOFT, **sizes, accuracy_level=_IN_FLOATS)
        low = self._constant(f"{mine}.low", np.ascontiguousarray(matrix.low.T))
        sums = self._sums(x, blocks.block, matrix.low.shape[1])
        return self._node("Add", [made, self._node("MatMul", [sums, low], f"{mine}.rest")], mine)

    def lookup(self, matrix: PackedMatrix, ids: str, mine: str) -> str:
        """Return the rows that ids name, (batch, sequence, inputs) in floats.

        Args:
            matrix: A row for each token, its inputs in order and a multiple of its blocks.
            ids: (batch, sequence).
            mine: Name of the rows.
        """
        blocks = matrix.blocks
        data, *rest = self._constants(matrix, mine)
        shape = self._constant(f"{mine}.shape", np.array([matrix.outputs, -1], np.int64))
        flat = self._node("Reshape", [data, shape], f"{mine}.table")
        sizes = {"bits": blocks.bits, "block_size": blocks.block, "quantize_axis": 1, "gather_axis": 0}
        inputs = [flat, ids, *rest]
        if matrix.low is None:
            return self._node("GatherBlockQuantized", inputs, mine, _MICROSOFT, **sizes)
        steps = self._node("GatherBlockQuantized", inputs, f"{mine}.steps", _MICROSOFT, **sizes)
        low = self._constant(f"{mine}.low", matrix.low[..., None])
        apart = self._reshaped(steps, [0, 0, matrix.low.shape[1], blocks.block], f"{mine}.apart")
        total = self._node("Add", [apart, self._node("Gather", [low, ids], f"{mine}.rest")], f"{mine}.total")
        return self._reshaped(total, [0, 0, matrix.inputs], mine)

    def product_of_halves(self, x: str, rows: NDArray[np.float32], stored: str, mine: str) -> str:
        """Return x times a matrix in floats, which the file keeps in 16 bits where they hold it exactly.

        Args:
            x: (batch, sequence, inputs).
            rows: (outputs, inputs).
            stored: Name of its constant, which is written once.
            mine: Name of the product.
        """
        if not self._halves(rows, stored):
            return self._node("MatMul", [x, self._constant(f"{mine}.weight", np.ascontiguousarray(rows.T))], mine)
        wide = self._node("Cast", [stored], f"{mine}.rows", to=TensorProto.FLOAT)
        return self._node("MatMul", [x, self._node("Transpose", [wide], f"{mine}.columns", perm=[1, 0])], mine)

    def lookup_of_halves(self, rows: NDArray[np.float32], stored: str, ids: str, mine: str) -> str:
        """Return the rows that ids name, of a table in floats, as `product_of_halves` keeps it."""
        if not self._halves(rows, stored):
            return self._node("Gather", [self._constant(stored, rows), ids], mine)
        return self._node("Cast", [self._node("Gather", [stored, ids], f"{mine}.half")], mine, to=TensorProto.FLOAT)

    def _halves(self, rows: NDArray[np.float32], stored: str) -> bool:
        """Write floats in 16 bits, unless they are there already; return whether 16 bits hold them."""
        if stored in self._written:
            return True
        with np.errstate(over="ignore"):
            half = rows.astype(np.float16)
        if np.array_equal(half.astype(np.float32), rows):
            self._constant(stored, half)
        elif not (rows.view(np.uint32) & _LOWER_HALF).any():
            upper = proto_of((rows.view(np.uint32) >> 16).astype("<u2"), stored)
            upper.data_type = TensorProto.BFLOAT16
            self._constant(stored, upper)
        else:
            return False
        self._written.add(stored)
        return True

    def _constants(self, matrix: PackedMatrix, mine: str) -> list[str]:
        if id(matrix) not in self._stored:
            blocks = matrix.blocks
            names = [
                self._constant(f"{mine}.weight", blocks.packed()),
                self._constant(f"{mine}.scale", blocks.scale),
            ]
            zero = blocks.packed_zero()
            if zero is not None:
                names.append(self._constant(f"{mine}.zero", zero))
            self._stored[id(matrix)] = matrix, names  # held, so that no other gets its id
        return self._stored[id(matrix)][1]

    def _ordered(self, x: str, order: NDArray[np.int64], mine: str) -> str:
        key = x, f"order {order.tobytes().hex()}"
        if key not in self._made:
            places = self._constant(f"{mine}.order", order)
            self._made[key] = self._node("Gather", [x, places], f"{mine}.ordered", axis=2)
        return self._made[key]

    def _sums(self, x: str, block: int, count: int) -> str:
        """Return the sum of each block of x, (batch, sequence, blocks)."""
        key = x, f"sums of {block}"
        if key not in self._made:
            apart = self._reshaped(x, [0, 0, count, block], f"{x}.by_{block}")
            axes = self._constant(f"{x}.last_of_{block}", np.array([-1], np.int64))
            self._made[key] = self._node("ReduceSum", [apart, axes], f"{x}.sums_of_{block}", keepdims=0)
        return self._made[key]

    def _reshaped(self, x: str, shape: list[int], mine: str) -> str:
        sides = self._constant(f"{mine}.sides", np.array(shape, np.int64))
        return self._node("Reshape", [x, sides], mine)
