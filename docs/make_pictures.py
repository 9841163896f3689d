"""Make the pictures of README and docs from a real run: `terminal.svg` and `report.png`.

    python docs/make_pictures.py [FOLDER]

FOLDER is what `edgeopt optimize` wrote; without it the quick start runs first. Needs Chromium and a POSIX system.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
COLUMNS, LINES = 100, 60
WIDTH, HEIGHT = 1120, 1190
"""Pixels of the page that are shown."""
_LETTER, _LINE, _EDGE = 8.4, 19, 18
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_INK, _PAPER = "#d7dce2", "#14181d"
_COLOURS = {"31": "#ff8f86", "32": "#6fd39b", "33": "#f0c066", "2": "#8b949e"}
_GROUNDS = {"41": "#ff8f86", "42": "#6fd39b", "43": "#f0c066", "46": "#7fd4e8"}


def shown(command: list[str], folder: Path) -> str:
    """Return what a command prints on a terminal of `COLUMNS` columns, run in a folder."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
        os.execv(command[0], command)
    told = b""
    try:
        while more := os.read(terminal, 1 << 16):
            told += more
    except OSError:  # how Linux says that the other side has ended
        pass
    os.waitpid(child, 0)
    lines = told.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in lines).strip("\n")  # a bar is overwritten by what follows


def draw_terminal(text: str) -> str:
    """Return a screen as SVG."""
    lines = text.split("\n")
    width, height = COLUMNS * _LETTER + 2 * _EDGE, len(lines) * _LINE + 2 * _EDGE
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, '
        f'DejaVu Sans Mono, monospace" font-size="14" fill="{_INK}">',
        f'<rect width="100%" height="100%" rx="10" fill="{_PAPER}"/>',
    ]
    for number, line in enumerate(lines):
        found += _line(line, _EDGE + number * _LINE)
    return "\n".join([*found, "</svg>", ""])


def _line(line: str, top: float) -> list[str]:
    """Return the parts of a line, each in its own style and exactly as wide as its letters."""
    found, column, codes = list[str](), 0, list[str]()
    for i, part in enumerate(_SGR.split(line)):
        if i % 2:
            codes = [] if part in ("", "0") else [*codes, *part.split(";")]
            continue
        ground = next((_GROUNDS[one] for one in codes if one in _GROUNDS), "")
        colour = _PAPER if ground else next((_COLOURS[one] for one in codes if one in _COLOURS), "")
        at, wide = _EDGE + column * _LETTER, len(part) * _LETTER
        column += len(part)
        if ground:
            found.append(
                f'<rect x="{at - 3:.1f}" y="{top}" width="{wide + 6:.1f}" height="{_LINE - 1}" fill="{ground}"/>'
            )
        if part.strip():
            style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if "1" in codes else "")
            place = f'x="{at:.1f}" y="{top + 14}" textLength="{wide:.1f}" xml:space="preserve"'
            found.append(f"<text {place}{style}>{escape(part)}</text>")
    return found


def picture_page(page: Path, out: Path) -> None:
    """Write the top of a page as PNG."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("chromium is not installed")
    flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        own = [f"--user-data-dir={profile}", f"--screenshot={out}"]
        subprocess.run([chromium, *flags, *own, page.resolve().as_uri()], check=True, capture_output=True, timeout=120)


def main() -> None:
    """Make both pictures."""
    edgeopt = [sys.executable, "-m", "edgeopt"]
    with tempfile.TemporaryDirectory() as place:
        name = "out/digits_detector-cpu"
        if len(sys.argv) > 1:
            shutil.copytree(sys.argv[1], Path(place) / name)
            text = shown([*edgeopt, "report", name], Path(place))
        else:
            text = shown([*edgeopt, "optimize", "digits_detector", "--target", "cpu"], Path(place))
        (DOCS / "terminal.svg").write_text(draw_terminal(text.replace(f"{place}/", "")), "utf-8")
        picture_page(Path(place) / name / "report.html", DOCS / "report.png")


if __name__ == "__main__":
    main()
