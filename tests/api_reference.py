"""The page docs/api.md, made of the docstrings of what an app uses; `python tests/update_docs.py` writes it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from itertools import pairwise
from typing import Any

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Verbs": (
        "Each does what the command of the same name does. Pass `options` as a whole, or its fields by name.",
        (
            "edgeopt.report.result:Result",
            "edgeopt.report.result:ResultHead",
            "edgeopt:optimize",
            "edgeopt.optimization.options:Options",
            "edgeopt:quantize",
            "edgeopt:inspect",
            "edgeopt.report.facts:WorkloadFacts",
            "edgeopt.inspection.inspect:Inspection",
            "edgeopt.steps.quantize.inspection.view:QuantizedView",
            "edgeopt:bench",
            "edgeopt.measurement.frames.options:MeasureOptions",
            "edgeopt.measurement.frames.options:BenchOptions",
            "edgeopt.measurement.bench.result:BenchResult",
            "edgeopt:compare",
            "edgeopt:check",
            "edgeopt:run",
            "edgeopt.running.answers:RunResult",
            "edgeopt.running.live:LiveResult",
            "edgeopt.running.live:FrameAnswer",
            "edgeopt.running.writing:WrittenResult",
            "edgeopt.running.talking:TalkResult",
            "edgeopt:serve",
            "edgeopt.running.serving_thread:RunningServer",
            "edgeopt.running.serving:Served",
            "edgeopt:combine_bundles",
            "edgeopt.verbs.bundle.combine:extract_bundle",
        ),
    ),
    "In an app": (
        "A `Runtime` opens a bundle; several bundles form a `Pipeline`, or share a device under a `Scheduler`.",
        (
            "edgeopt:Runtime",
            "edgeopt:Stream",
            "edgeopt.runtime.stream:Degradation",
            "edgeopt.runtime.rollout.current:CurrentRuntime",
            "edgeopt.runtime.drift.watch:DriftWatch",
            "edgeopt.runtime.drift.sketch:Sketch",
            "edgeopt:Pipeline",
            "edgeopt:Scheduler",
            "edgeopt.runtime.schedule:ScheduledModel",
            "edgeopt.runtime.schedule:Terms",
        ),
    ),
    "Answers": (
        "What `predict` returns, by the task of the recipe. The task `tensors` returns the model's outputs by name.",
        (
            "edgeopt.tasks.detection.boxes:Detections",
            "edgeopt.tasks.instances.masks:Instances",
            "edgeopt.tasks.keypoints.poses:Poses",
            "edgeopt.tasks.classification:Classes",
            "edgeopt.tasks.segmentation:Segments",
            "edgeopt.tasks.embedding:Embedding",
            "edgeopt.tasks.image:Image",
            "edgeopt.tasks.ocr:Line",
            "edgeopt.tasks.token_classification:Spans",
            "edgeopt.tasks.token_classification:Span",
            "edgeopt.tasks.voice_activity:Activity",
            "edgeopt.runtime.pipelines:Answer",
            "edgeopt.runtime.stream:StreamResult",
            "edgeopt.runtime.drift.state:FieldDrift",
            "edgeopt.runtime.drift.state:DriftKind",
            "edgeopt.runtime.drift.state:DriftState",
        ),
    ),
    "Statistics and events": (
        "What `stats()` returns, and the events of a stream.",
        (
            "edgeopt.runtime.stats:Stats",
            "edgeopt.runtime.stats:Times",
            "edgeopt.runtime.stream:StreamStats",
            "edgeopt.runtime.stream:Event",
            "edgeopt.runtime.stream:EventKind",
        ),
    ),
    "Language models": (
        "`Runtime.generate` takes the fields of `AnswerOptions` and `Sampling` by name.",
        (
            "edgeopt.runtime.decoding.generation:AnswerOptions",
            "edgeopt.runtime.decoding.sampling:Sampling",
            "edgeopt.runtime.decoding.generation:Generation",
            "edgeopt.runtime.decoding.generation:Piece",
            "edgeopt:Sound",
        ),
    ),
    "Speech": (
        "`Runtime.transcribe` takes the fields of `SpeechOptions` by name.",
        (
            "edgeopt.runtime.decoding.speech.options:SpeechOptions",
            "edgeopt.runtime.decoding.speech.transcription:Transcription",
            "edgeopt.runtime.decoding.speech.segments:SpeechSegment",
        ),
    ),
    "Errors": (
        "A failure that you can mend is an `EdgeoptError`; any other exception is a bug.",
        ("edgeopt:EdgeoptError",),
    ),
}
"""Headings; below each what it is about, and the names of what stands there."""
_WIDTH = 110
_INTRO = """# API reference

This page is made from the docstrings (`python tests/update_docs.py`). How these parts work together:
[python.md](python.md), [runtime.md](runtime.md), [stream.md](stream.md), [pipelines.md](pipelines.md),
[schedule.md](schedule.md), [generation.md](generation.md).
"""


def api_page() -> str:
    """Return the page with every class and function of `GROUPS`."""
    parts = [_INTRO, _contents()]
    for heading, (text, names) in GROUPS.items():
        parts += [f"## {heading}\n", f"{text}\n", *(part for name in names for part in _entry(name))]
    return "\n".join(parts)


def _contents() -> str:
    rows = ["| | |", "|---|---|"]
    for heading, (_, names) in GROUPS.items():
        links = ", ".join(f"[`{short}`](#{short.lower()})" for short in (name.partition(":")[2] for name in names))
        rows.append(f"| {heading} | {links} |")
    return "\n".join(rows) + "\n"


def _entry(name: str) -> Iterator[str]:
    module, _, short = name.partition(":")
    value = getattr(import_module(module), short)
    yield f"### {short}\n"
    yield f"`from {module} import {short}`\n"
    if not inspect.isclass(value):
        yield _code(short, value)
        yield f"{_prose(inspect.getdoc(value) or '')}\n"
        return
    yield f"{_prose(inspect.getdoc(value) or '')}\n"
    if issubclass(value, Enum):
        yield _table("value", [(f"`{each.value}`", _attribute_texts(value).get(each.name, "")) for each in value])
        return
    bases = [base for base in value.__mro__[1:] if dataclasses.is_dataclass(base)]
    if bases:
        yield f"Its fields are those of `{bases[0].__name__}`, and these.\n"
    if dataclasses.is_dataclass(value):
        yield _table("field", list(_fields(value)))
    elif inspect.getdoc(value.__init__) and not hasattr(value, "load") and "__init__" in vars(value):
        yield _code(short, value.__init__)
        yield f"{_prose(inspect.getdoc(value.__init__) or '')}\n"
    yield from _members(value)


def _fields(value: type) -> Iterator[tuple[str, str]]:
    texts, own = _attribute_texts(value), vars(value).get("__annotations__", {})
    for field in dataclasses.fields(value):
        if field.name.startswith("_") or field.name not in own:
            continue
        default = "" if field.default is dataclasses.MISSING else f" = {_shown(field.default)}"
        yield f"`{field.name}: {_plain_type(str(field.type))}{default}`", texts.get(field.name, "")


def _members(value: type) -> Iterator[str]:
    """Yield the properties as a table, then every method."""
    texts = _attribute_texts(value)
    rows = [] if dataclasses.is_dataclass(value) else [(f"`{name}`", text) for name, text in texts.items() if text]
    methods: list[tuple[str, Any]] = []
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            rows.append((f"`{name}`", " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())))
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            methods.append((name, getattr(value, name)))
    if rows:
        yield _table("property", rows)
    for name, method in methods:
        is_of_class = not inspect.isfunction(vars(value)[name])
        owner = value.__name__ if is_of_class else value.__name__[:1].lower() + value.__name__[1:]
        yield f"#### {value.__name__}.{name}\n"
        yield _code(f"{owner}.{name}", method)
        yield f"{_prose(inspect.getdoc(method) or '')}\n"


def _attribute_texts(value: type) -> dict[str, str]:
    """Return the docstrings below attributes, which Python itself drops."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    bodies = [tree.body]
    bodies += [node.body for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    for body in bodies:
        for node, behind in pairwise(body):
            text = behind.value.value if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) else ""
            if name := _target(node):
                found[name] = " ".join(str(text).split())
    return {name: text for name, text in found.items() if not name.startswith("_")}


def _target(node: ast.stmt) -> str:
    target = node.target if isinstance(node, ast.AnnAssign) else None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    if isinstance(target, ast.Name):
        return target.id
    return target.attr if isinstance(target, ast.Attribute) else ""


def _code(name: str, function: Any) -> str:
    """Return a call with its types and defaults, folded where it is long."""
    signature = inspect.signature(function)
    words: list[str] = []
    is_keyword = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            is_keyword = True
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            words.append("*")
            is_keyword = True
        words.append(_parameter(parameter))
    is_class = function.__name__ == "__init__"
    returns = "" if is_class else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(words)}){returns}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"
    return f"```text\n{line}\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
    typed = "" if parameter.annotation is parameter.empty else f": {_plain_type(str(parameter.annotation))}"
    default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
    return f"{star}{parameter.name}{typed}{default}"


def _plain_type(text: str) -> str:
    """Return a type without the range that only edgeopt itself reads."""
    return re.sub(r"Annotated\[(\w+), [^][]*(?:\([^()]*\))?\]", r"\1", text)


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return repr(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}()"
    return repr(value)


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    shown = [f"| {name.replace('|', chr(92) + '|')} | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join([f"| {head} | |", "|---|---|", *shown]) + "\n"


def _prose(doc: str) -> str:
    """Return a docstring in Markdown: the parts `Args:`, `Returns:` and `Raises:` as lists."""
    lines: list[str] = []
    is_part = False
    for line in doc.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Yields):", line):
            is_part = True
            lines += [f"*{line.removesuffix(':')}*", ""]
        elif is_part and (item := re.match(r"    (\*{0,2}\w+): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif is_part and line.startswith("        ") and lines and lines[-1].startswith("- "):
            lines[-1] += f" {line.strip()}"
        elif is_part:
            lines.append(line.strip())
        else:
            lines.append(line)
    return "\n".join(lines)
