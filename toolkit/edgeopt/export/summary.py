"""The result of `export` as a document."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from edgeopt.export.export import ExportResult
from edgeopt.export.likeness import OutputDrift
from edgeopt.graph.drift import LIMIT_DB
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.system.text import format_bytes, plural


def summarize(result: ExportResult) -> Document:
    """Return what a reader sees: the file, and how near each output is to the framework's."""
    values = [
        Value("from", f"{result.source} ({result.framework})"),
        Value("model", f"{format_bytes(result.size_bytes)}, {result.nodes} nodes, opset {result.opset}"),
        *(Value("input", str(spec)) for spec in result.inputs),
        *(Value("beside", str(path)) for path in result.beside),
        *map(Value.of_note, result.notes),
    ]
    columns: dict[str, Callable[[OutputDrift], str]] = {
        "output": lambda output_drift: output_drift.name,
        "shape": lambda output_drift: "x".join(map(str, output_drift.shape)) or "scalar",
        "largest difference": lambda output_drift: f"{output_drift.drift.max_abs:.2g}",
        "cosine": lambda output_drift: f"{output_drift.drift.cosine:.7f}",
        "SQNR": lambda output_drift: (
            "equal" if output_drift.drift.sqnr_db >= LIMIT_DB else f"{output_drift.drift.sqnr_db:.0f} dB"
        ),
    }
    table = Section(
        f"ONNX Runtime against {result.framework.partition(',')[0]}, the worst of {plural(result.samples, 'input')}",
        make_table(result.outputs, columns, words=["shape"]),
    )
    file = shlex.quote(str(result.file))
    sentence = f"{result.file} answers as the original does"
    asks = "SOUND.wav" if result.hears else "--prompt TEXT --image PICTURE" if result.sees else "--prompt TEXT"
    command = f"edgeopt run {file} {asks}" if result.writes else f"edgeopt optimize {file} --target cpu"
    if result.needs_recipe:
        command = f"edgeopt recipe {file}"
    verdict = VerdictLines(CommandOutcome.DONE, sentence, next_command=command)
    return Document(
        result,
        result.name,
        f"{result.name} exported",
        (Section(values=tuple(values)), table),
        verdict,
    )
