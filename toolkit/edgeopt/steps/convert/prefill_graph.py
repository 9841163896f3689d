"""Two forms of a decoder as two graphs over one cache: one computes prompts into it, the other tokens behind them.

The graph of prompts gives no logits, so that it has no head, and of the last layer what its keys and values need. All
large weights lie in one file, those that both graphs read once. An engine maps it into memory: what both read there are
the same pages, and of what it packs for itself no second copy stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import onnx

from edgeopt.executors.onnxruntime.decoder import IDS, LAST, LOGITS
from edgeopt.graph.files.outside import ALIGNED_BYTES, LEAST_BYTES
from edgeopt.graph.files.outside_weights import bytes_of_tensor, place_outside
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.model import Model, weights_beside
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.system.disk.files import open_beside

_MICROSOFT = "com.microsoft"


def write_two_graphs(prompts: Model, tokens: Model, file: Path, prefill: Path) -> None:
    """Write two forms of a decoder as two graphs over one cache.

    Args:
        prompts: The form that computes prompts.
        tokens: The form that computes each token behind them.
        file: Of the graph of tokens; the weights of both lie beside it.
        prefill: Of the graph of prompts, in the same folder.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    made = make_token_graph(tokens)
    write_together([(made, file), (make_prefill_graph(prompts, made), prefill)], weights_beside(file))


def make_token_graph(model: Model) -> Model:
    """Return a decoder whose tables are looked up as they are stored: nothing of them is laid out anew in memory."""
    graph = Graph.from_model(model)
    for node in graph.nodes("GatherBlockQuantized", domain=_MICROSOFT):
        _look_up_flat(graph, node)
    graph.remove_unused()
    made = graph.to_model()
    return keep_last_logits(made).model if LAST in model.optional_inputs else made


def make_prefill_graph(model: Model, tokens: Model) -> Model:
    """Return the graph that computes prompts.

    Args:
        model: A decoder: the form that computes prompts.
        tokens: Of `make_token_graph`: the form that computes tokens, whose embedding both read.
    """
    graph, other = Graph.from_model(model), Graph.from_model(tokens)
    logits = next(value for value in graph.outputs if value.name == LOGITS)
    graph.drop_output(logits)
    graph.remove_unused()
    _share_table(graph, other)
    graph.remove_unused()
    for value in graph.inputs:
        graph.drop_input(value)
    return graph.to_model()


def write_together(models: Sequence[tuple[Model, Path]], weights: Path) -> None:
    """Write models whose large weights lie in one file beside them; equal ones lie there once.

    Args:
        models: Each with its file, all in one folder.
        weights: The file of their weights, in the same folder.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    places, end = dict[bytes, int](), 0
    written = list[tuple[Path, onnx.ModelProto]]()
    with open_beside(weights) as file:
        for model, path in models:
            proto = onnx.ModelProto()
            proto.CopyFrom(model.proto)
            for tensor in proto.graph.initializer:
                data = bytes_of_tensor(tensor)
                if len(data) < LEAST_BYTES:
                    continue
                digest = hashlib.sha256(data).digest()
                if digest not in places:
                    places[digest] = -(-end // ALIGNED_BYTES) * ALIGNED_BYTES
                    file.write(bytes(places[digest] - end))
                    file.write(data)
                    end = places[digest] + len(data)
                place_outside(tensor, weights.name, places[digest], len(data))
            written.append((path, proto))
    for path, proto in written:
        with open_beside(path) as file:
            file.write(proto.SerializeToString(deterministic=True))


def _look_up_flat(graph: Graph, node: Node) -> None:
    """Store the integers of a table with the shape in which they are looked up, in place of a change of shape."""
    reshape = graph.producer(node.inputs[0], "Reshape")
    blocks = graph.constant(reshape.inputs[0]) if reshape is not None else None
    if blocks is not None:
        graph.set_input(node, 0, graph.add_initializer(f"{node.name}_table", blocks.reshape(len(blocks), -1)))


def _share_table(graph: Graph, other: Graph) -> None:
    """Let the look-up of tokens read the other graph's table, where that one is stored in blocks."""
    mine, theirs = _look_up(graph), _look_up(other)
    if mine is None or theirs is None or theirs.op_type != "GatherBlockQuantized":
        return
    inputs = list[Value | None]()
    for value in theirs.inputs:
        stored = other.constant(value)
        if value is not None and stored is not None:
            inputs.append(graph.add_initializer(str(value.name), stored))
        else:  # the tokens; what is left out stays left out
            inputs.append(mine.inputs[1] if value is not None else None)
    attributes = {name: theirs.attributes[name].value for name in theirs.attributes}
    made = graph.insert(theirs.op_type, inputs, attributes, domain=_MICROSOFT, name="shared_table")
    graph.replace(mine.outputs[0], made.outputs[0])


def _look_up(graph: Graph) -> Node | None:
    """Return what looks up the rows of tokens in a constant table; None: nothing does."""
    for node in (*graph.nodes("Gather"), *graph.nodes("GatherBlockQuantized", domain=_MICROSOFT)):
        ids = node.inputs[1]
        if ids is not None and ids.name == IDS:
            return node
    return None
