"""Failures of ONNX Runtime as a user can read them: which node, and why; no place in its source."""

from __future__ import annotations

import re
from pathlib import Path

from edgeopt.errors import InvalidFileError, UnavailableError, UnsupportedError
from edgeopt.executors.onnxruntime.providers import CPU, refusing_provider

_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
"""A number and a name for what the rest of a message says in words; errors inside errors have their own."""
_WHILE = "Non-zero status code returned while running "
_PLACE = re.compile(r"(?P<folders>\S*[/\\])?[\w.+-]+\.(?:h|hpp|cuh?|cc|cpp|inc):\d+ ")
"""A file of ONNX Runtime's source and a line; the function follows, whole behind a path, else its name alone."""
_CUDA_PLACE = re.compile(r" ?;? GPU=-?\d+ ?; hostname=\S* ?; file=\S* ?; line=\d+ ?; expr=[^;]*;?")
"""How CUDA's and TensorRT's errors end."""
_QUALIFIERS = ("const", "volatile", "noexcept", "mutable", "&", "&&", "[with")
_MOST_WORDS = 6
"""Most words of a type that a function returns."""
_UNMET = " was false."
"""Words behind a condition in C++ that did not hold."""
_RUN_NODE = re.compile(r"^(\w+) node\. Name:'([^']*)' Status Message: ")
_UNNAMED = re.compile(r"Node \(\) Op \((\w+)\)")
_NEWEST = re.compile(r"official support for domain ai\.onnx\S* is till opset (\d+)")
_UNKNOWN_OP = re.compile(r"com\.microsoft:(?P<op>\w+)\(-?\d+\) is not a registered function/op")
_UNKNOWN_ATTRIBUTE = re.compile(r"Unrecognized attribute: (?P<attribute>\w+) for operator (?P<op>\w+)")
_SINCE = {"CausalConvWithState": "1.30", "LinearAttention": "1.30", "GatedRMSNorm": "1.31", "QMoE": "1.31"}
"""The first ONNX Runtime that has an op as edgeopt writes it: tried with mixtures and hybrids, from 1.24 on."""
_NO_KERNEL = "Could not find an implementation for"
_MODEL_FAULTS = ("InvalidProtobuf", "InvalidGraph", "NoModel", "NoSuchFile")
"""Errors of ONNX Runtime that no provider has a part in."""


def said(error: Exception) -> str:
    """Return the message in one line, the node first, without places in ONNX Runtime's source."""
    text = _STATUS.sub("", " ".join(str(error).split())).removeprefix(_WHILE)
    node = _RUN_NODE.match(text)
    reason = without_places(text[node.end() :] if node else text)
    if not node:
        return reason
    return f"{node[1]} node {repr(node[2]) if node[2] else 'without a name'}: {reason}"


def without_places(text: str) -> str:
    """Return a message without the files, lines, functions and conditions of the source it came from."""
    text = _CUDA_PLACE.sub("", text)
    while place := _PLACE.search(text):
        behind = text[place.end() :]
        behind = _behind_signature(behind) if place["folders"] else behind.partition(" ")[2] or behind
        _, unmet, reason = behind.partition(_UNMET)
        if unmet and reason.strip():
            behind = reason.strip()
        text = text[: place.start()] + behind
    return text


def _behind_signature(text: str) -> str:
    """Return what follows the signature of a function in C++, as compilers write it out.

    Its last word ends with `)`, and what qualifies it may follow: `const`, `[with T = float]`. Visual C++ writes the
    name alone.
    """
    words = _words(text)
    ends = (i for i, word in enumerate(words[:_MOST_WORDS]) if word.endswith(")") or "<lambda(" in word)
    end = next(ends, None)
    if end is None:
        return " ".join(words[1:]) if words and "::" in words[0] else text
    rest = words[end + 1 :]
    while rest and rest[0].startswith(_QUALIFIERS):
        rest = rest[1:]
    return " ".join(rest)


def _words(text: str) -> list[str]:
    """Return a text in words; spaces inside brackets part none."""
    words, depth, begin = list[str](), 0, 0
    for i, letter in enumerate(text):
        if letter in "(<[":
            depth += 1
        elif letter in ")>]" and depth and text[i - 1 : i + 1] != "->":
            depth -= 1
        elif letter == " " and not depth:
            words.append(text[begin:i])
            begin = i + 1
    return [*words, text[begin:]]


def not_run(error: Exception, *, has_free_sizes: bool) -> UnsupportedError:
    """Return what the user can act on where a run failed: also how sizes are given that the model leaves free."""
    given = " (--shape gives those that the model leaves free)" if has_free_sizes else ""
    return UnsupportedError(
        f"ONNX Runtime does not run the model on these inputs: {said(error)}",
        remedy=f"check the numbers and the shapes of the inputs{given}",
    )


def not_opened(
    error: Exception, source: bytes | Path, providers: tuple[str, ...]
) -> UnavailableError | InvalidFileError:
    """Return what the user can act on where a model was not opened.

    Args:
        error: ONNX Runtime's.
        source: The model that it was given.
        providers: Asked for, the first one first.
    """
    reason = said(error)
    if providers[0] != CPU and type(error).__name__ not in _MODEL_FAULTS:
        return refusing_provider(providers[0], reason)
    if newest := _NEWEST.search(reason):
        problem = f"ONNX Runtime refuses the model: its opset is newer than {newest[1]}, the newest that this one knows"
        return InvalidFileError(problem, remedy=f"export it with opset {newest[1]} or an older one")
    if older := _older(reason):
        return older
    if unnamed := _UNNAMED.search(reason):
        reason = reason.replace(unnamed[0], _which(unnamed[1], source))
    remedy = "check it with edgeopt inspect"
    if _NO_KERNEL in reason:
        remedy = "it has this op in other types only: export the model in float32"
    return InvalidFileError(f"ONNX Runtime refuses the model: {reason}", remedy=remedy)


def _older(reason: str) -> UnavailableError | None:
    """Return that this ONNX Runtime is older than an op of the model that edgeopt writes; None: it is not."""
    unknown = _UNKNOWN_OP.search(reason) or _UNKNOWN_ATTRIBUTE.search(reason)
    if unknown is None or unknown["op"] not in _SINCE:
        return None
    import onnxruntime

    op, version = unknown["op"], onnxruntime.__version__
    since = _SINCE[op]
    problem = f"ONNX Runtime {version} is too old: the model has the op {op}, which needs {since}"
    return UnavailableError(problem, remedy=f"install onnxruntime {since} or newer")


def _which(op: str, source: bytes | Path) -> str:
    """Return words for a node without a name: what it makes, if it is the only one of its op."""
    try:
        import onnx  # a device has none

        given = source if isinstance(source, bytes) else source.read_bytes()
        nodes = [node for node in onnx.ModelProto.FromString(given).graph.node if node.op_type == op and not node.name]
    except (ImportError, OSError):
        nodes = []
    made = [node.output[0] for node in nodes if node.output]
    if not made:
        return f"a {op} node without a name:"
    if len(made) == 1:
        return f"the {op} node that makes {made[0]!r}:"
    return f"one of {len(made)} {op} nodes without a name (the first makes {made[0]!r}):"
