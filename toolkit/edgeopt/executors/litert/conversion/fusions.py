"""Activations that the operator before them computes itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from edgeopt.executors.litert.conversion.network import TfliteNetwork, TfliteOperator

_FUSES = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "DIV", "MAX_POOL_2D", "AVERAGE_POOL_2D"}
    | {"TRANSPOSE_CONV"}
)
_FIELD = "fusedActivationFunction"
_LIMITERS = ("RELU", "RELU6", "RELU_N1_TO_1")


def with_activations(network: TfliteNetwork, outputs: Collection[int]) -> TfliteNetwork:
    """Return the network with limits computed by the operators before them.

    Args:
        network: Its operators in the order in which they run.
        outputs: Places of tensors that leave the model.
    """
    counts = Counter(place for operator in network.operators for place in operator.inputs)
    limits = {operator.inputs[0]: operator for operator in network.operators if operator.code in _LIMITERS}
    made, taken = list[TfliteOperator](), set[int]()
    for operator in network.operators:
        if operator.code in _LIMITERS and operator.inputs[0] in taken:
            continue
        limit = limits.get(operator.outputs[0])
        alone = counts[operator.outputs[0]] == 1 and operator.outputs[0] not in outputs
        if operator.code in _FUSES and limit is not None and alone and operator.options.get(_FIELD, "NONE") == "NONE":
            taken.add(operator.outputs[0])
            options = {**operator.options, _FIELD: limit.code}
            operator = replace(operator, outputs=limit.outputs, options=options)
        made.append(operator)
    network.operators = made
    return network
