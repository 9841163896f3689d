"""Progress and tables on a terminal; without one, plain lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from edgeopt.errors import Note, NoteKind
from edgeopt.pipeline.candidate import Candidate
from edgeopt.pipeline.result import Report, shown_stages, table_columns, table_rows
from edgeopt.system.text import format_bytes, printable

_PLAIN_WIDTH = 240  # columns of a pipe or a file: nothing is cut there


class Screen:
    """Listens to long work; a bar where the output is a terminal, one line a candidate elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
        self._out = Console(soft_wrap=True, width=wide)
        self._err = Console(stderr=True, soft_wrap=True)
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
            disable=quiet or not self._err.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, what: str, done: int, of: int) -> None:
        """Show how far a long piece of work is."""
        task = self._tasks.get(what)
        if task is None:
            task = self._tasks[what] = self._bar.add_task(printable(what), total=of)
        self._bar.update(task, completed=done, total=of)
        if done >= of:
            self._bar.remove_task(self._tasks.pop(what))

    def say(self, text: str) -> None:
        """Print one line."""
        if not self._quiet:
            self._err.print(printable(text), highlight=False, markup=False)

    def candidate(self, one: Candidate) -> None:
        """Print one line a candidate."""
        score = f"{one.score.metric} {one.score.value:.4f}" if one.score else ""
        score += f" ({one.simulated.value:.4f} with the device's numbers)" if one.simulated else ""
        speed = f"{one.speed} {one.speed.verdict}" if one.speed else ""
        frame = one.latency.frame if one.latency else None
        time = f"frame p50 {frame.p50_ms:.2f} ms" if frame and frame.p50_ms is not None else ""
        parts = [part for part in (format_bytes(one.size_bytes), score, speed, time, one.placement, one.unfit) if part]
        self.say(f"{one.name:<14} {'  '.join(parts)}{'  (from disk)' if one.notes and _resumed(one) else ''}")

    def show_report(self, report: Report) -> None:
        """Print the table, the choice and the verdict."""
        columns = table_columns(report)
        rows = [(*row[:-1], row[-1].split("refused: ")[0]) for row in table_rows(report)]
        first = columns.index("speed") + 1
        stages = range(first, first + len(shown_stages(report)))
        whole = [*range(len(columns))]
        if self._width(columns, rows, whole) <= self._out.width:
            parts = [whole]
        else:  # narrow tables are read, a wide table is wrapped into noise
            speed = [first - 1, *(i for i in whole[:-1] if i >= stages.stop)]
            parts = [[i for i in whole if i not in (*speed, *stages)], [0, *speed], [0, *stages]]
        for part in parts:
            self._out.print(_table(columns, rows, part, report.chosen))
        for one in report.candidates:
            if one.refused:
                self._plain(f"{one.name} not chosen: {one.refused}")
        for note, whose in _all_notes(report).items():
            self._plain(f"{note.kind}: {whose}{note}")
        self._plain(f"times in ms, p50 / p99 of single frames; calibrated on {report.calibrated_on}")
        self._plain(f"chosen   {report.reason}")
        if report.trust:
            self._plain(f"machine  {report.trust}")
        self._plain(f"verdict  {report.verdict_line}")
        self._plain(f"bundle   {report.bundle}")
        self._plain(f"report   {report.folder / 'report.md'}")

    def _width(self, columns: Sequence[str], rows: Sequence[Sequence[str]], part: Sequence[int]) -> int:
        return sum(max(len(columns[i]), *(len(row[i]) for row in rows)) + 2 for i in part)

    def _plain(self, text: str) -> None:
        self._out.print(printable(text), highlight=False, markup=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], part: Sequence[int], chosen: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in part:
        table.add_column(
            Text(printable(columns[i])), justify="left" if i in (0, len(columns) - 1) else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(printable(row[i])) for i in part), style="green" if row[0] == chosen else "")
    return table


def _resumed(one: Candidate) -> bool:
    return any(note.detail == "taken up from disk" for note in one.notes)


def _all_notes(report: Report) -> dict[Note, str]:
    """Return what is worth a line, and the candidates whose it is, empty for the run's own."""
    names: dict[Note, list[str]] = {note: [] for note in report.notes}
    for one in report.candidates:
        for note in dict.fromkeys(one.notes):
            if note not in report.notes:
                names.setdefault(note, []).append(one.name)
    return {
        note: f"{', '.join(found)}: " if found else ""
        for note, found in names.items()
        if note.kind is not NoteKind.INFO
    }
