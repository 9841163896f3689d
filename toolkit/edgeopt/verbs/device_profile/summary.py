"""The lines of a device's profile."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.errors import NoteKind
from edgeopt.report.document import Document, Section, Value, make_table
from edgeopt.system.text import plural
from edgeopt.verbs.device_profile.result import DeviceProfile, TableRow

_COLUMNS: dict[str, Callable[[TableRow], str]] = {
    "engine": lambda row: row.engine,
    "precision": lambda row: row.precision,
    "layers": lambda row: f"{row.layers:,}",
    "step": lambda row: str(row.channel_step),
    "checked": lambda row: plural(row.networks, "network"),
    "95 % of a prediction": lambda row: f"{1 / row.most_off:.2f} to {row.most_off:.2f}",
}
_READING = (
    "Layers are those of networks that ran whole. Step: channels that save time together. The last column is how far "
    "networks that were measured whole, and none of whose layers are in the table, were off their prediction."
)


def summarize(result: DeviceProfile) -> Document:
    """Return what a reader sees."""
    times = result.times
    facts = [
        Value("device", f"{times.device}, {times.architecture}, {plural(times.threads, 'thread')}"),
        Value("file", str(result.file)),
    ]
    facts += [Value("models", ", ".join(times.networks))] if times.networks else []
    notes = tuple(note for note in result.notes if note.kind is not NoteKind.INFO)
    use = f"edgeopt optimize MODEL.onnx --target {result.file}"
    sections = [
        Section(values=tuple(facts)),
        Section(table=make_table(result.rows, _COLUMNS, words=["engine", "precision"]), text=_READING),
        Section("Notes", notes=notes),
        Section(values=(Value("next", use, is_command=True),)),
    ]
    return Document(
        result,
        subject=times.device,
        title=f"Times of layers on {times.device}",
        sections=tuple(each for each in sections if each.table or each.values or each.notes),
    )
