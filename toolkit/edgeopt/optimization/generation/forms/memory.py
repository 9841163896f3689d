"""Whether memory holds what making forms of a language model needs."""

from __future__ import annotations

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import Model
from edgeopt.steps.convert.fitting.layer_by_layer import bytes_needed
from edgeopt.steps.convert.kept_blocks import MOST_IN_FLOATS, bytes_in_floats
from edgeopt.system.machine.memory import free_bytes
from edgeopt.system.text import format_bytes

JUDGED_COPIES = 3
"""Times the size of the weights where forms are only judged: original and form are open, and mapped on their way."""
_MADE_COPIES, _LOADED_COPIES = 3, 8
"""The same where forms are made, of weights that are mapped where they lie, and of a small model that is loaded."""
_MATRIX = 2
"""Dimensions of one."""


def require_memory(loaded: Model) -> None:
    """Raise where the original, a form beside it, and what a form is made of are larger than what is free.

    Raises:
        EdgeoptError: If so.
    """
    inputs = {
        constant.name: constant.dims[0] for constant in loaded.proto.graph.initializer if len(constant.dims) == _MATRIX
    }
    products = [node.input[1] for node in loaded.proto.graph.node if node.op_type == "MatMul"]
    floats = 2 * bytes_in_floats(loaded)
    widest = max((inputs[product] for product in products if product in inputs), default=0)
    copies = _MADE_COPIES if loaded.is_outside else _LOADED_COPIES
    in_floats = floats if floats < 2 * MOST_IN_FLOATS else 0
    require_room(copies * loaded.size_bytes + in_floats + bytes_needed(widest))


def require_room(needed_bytes: int) -> None:
    """Raise where the original and making a form of it need more memory than is free.

    Raises:
        EdgeoptError: If so.
    """
    if needed_bytes > (free := free_bytes()):
        raise EdgeoptError(
            f"the model and making a form of it need about {format_bytes(needed_bytes)}, {format_bytes(free)} are free",
            remedy="close other programs, or use a machine with more memory",
        )
