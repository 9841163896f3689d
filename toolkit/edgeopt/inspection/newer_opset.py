"""Whether what is installed here knows a model's opset."""

from __future__ import annotations

from onnx import TensorProto, defs, helper

from edgeopt.errors import InvalidFileError, MissingDependencyError, Note, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR

_SURELY_KNOWN = 21
"""Opset that edgeopt itself writes: every ONNX Runtime that it takes knows it."""


def notes_on_opset(opset: int) -> tuple[Note, ...]:
    """Return a warning where ONNX Runtime refuses models of this opset, or the package onnx does not know it.

    ONNX Runtime is asked with a model of one node: it tells its newest opset to nobody who does not exceed it.
    """
    if opset <= _SURELY_KNOWN:
        return ()
    try:
        EXECUTOR.open(_of_one_node(opset), SessionOptions(threads=1)).close()
    except InvalidFileError as error:
        return (Note(NoteKind.WARNING, error.problem, error.remedy),)
    except MissingDependencyError:
        pass
    newest = defs.onnx_opset_version()
    if opset <= newest:
        return ()
    text = f"opset {opset} is newer than {newest}, the newest that the installed onnx knows"
    return (Note(NoteKind.WARNING, text, f"export it with opset {newest} or an older one"),)


def _of_one_node(opset: int) -> bytes:
    info, other = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [info], [other])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(made.SerializeToString())
