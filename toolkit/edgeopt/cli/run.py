"""`edgeopt run`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from edgeopt.cli._options import threads_option
from edgeopt.cli._output import show_line
from edgeopt.cli._values import Whole
from edgeopt.errors import EdgeoptError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--draw", type=click.Path(path_type=Path), help="Write each frame with its answer drawn into this folder."
)
@click.option("--limit", type=Whole(min=1), help="Stop after so many frames.")
@threads_option("as measured")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each frame.")
def run(
    *, bundle: Path, source: Path, draw: Path | None, limit: int | None, threads: int | None, as_json: bool
) -> None:
    """Run BUNDLE on SOURCE, and print an answer for each frame.

    SOURCE is a picture, a folder of pictures, a video or an .npz.
    """
    from edgeopt.recipes.feeding import fed
    from edgeopt.recipes.frames import open_frames
    from edgeopt.report.contact_sheet import write_sheet
    from edgeopt.runtime.runtime import Runtime

    runtime = Runtime.load(bundle, threads=threads)
    task = runtime.task
    frames = fed(open_frames(source), runtime.bundle.recipe, runtime.session.inputs)
    for note in (*runtime.notes, *frames.notes):
        show_line(f"{note.kind}: {note}", err=True)
    if draw and (frames.tensors is not None or not task.is_drawable):
        raise EdgeoptError(f"tensors cannot be drawn ({source})", remedy="leave --draw out, or pass --json")
    drawings = _drawings(draw, source, frames.names) if draw else ()
    for i in range(min(len(frames), limit or len(frames))):
        frame = frames.read(i)
        answer = runtime.predict(frame)
        name, problem = frames.names[i], "" if task.count(answer) else runtime.why_no_answer(frame)
        if as_json:
            told = {"problem": problem} if problem else task.as_json(answer)
            click.echo(json.dumps({"frame": name, **told}, allow_nan=False))
        else:
            show_line(f"{name}: {f'no answer: {problem}' if problem else task.as_text(answer)}")
        if draw:
            write_sheet(drawings[i], {drawings[i].stem: [task.draw(frames.picture(i), answer)]})


def _drawings(folder: Path, source: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """Return a file of its own for each frame, none of them a picture of the source."""
    from edgeopt.system.files import require_writable

    if folder.resolve() in (source.resolve(), source.resolve().parent):
        raise EdgeoptError(f"{folder} holds the pictures themselves", remedy="choose another folder with --draw")
    require_writable(folder / "drawing.png")
    stems = Counter(Path(name).stem for name in names)
    return tuple(folder / f"{Path(name).stem if stems[Path(name).stem] == 1 else name}.png" for name in names)


INTERRUPTED = "the answers so far were printed, and drawn if asked for"
COMMAND = run
