"""The standard output closed, full, or read by somebody who has read enough: no traceback, and the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgeopt.recipes.recipe import find_recipe
from edgeopt.system.processes.quiet import quiet_natives

FULL = Path("/dev/full")
SHOWN = [["models"], ["--help"]]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and /dev are POSIX's")


def edgeopt(*arguments: str, **streams: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeopt", *arguments]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(command, text=True, check=False, **given)  # type: ignore[call-overload]


def without_reader() -> int:
    """Return the end of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("arguments", SHOWN, ids=" ".join)
@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_has_read_enough_is_no_error(arguments, buffered):
    done = edgeopt(*arguments, stdout=without_reader(), env=os.environ | {"PYTHONUNBUFFERED": buffered})
    assert (done.returncode, done.stderr) == (0, "")


def test_the_exit_code_is_the_results_though_nobody_reads_it():
    code = (
        "import sys; from edgeopt.cli._output import show; from edgeopt.cli.targets import list_targets;"
        "show(list_targets([]), 'terminal'); sys.exit(2)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=without_reader(), stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", SHOWN, ids=" ".join)
def test_a_full_disk_is_an_error_in_two_lines(arguments):
    with FULL.open("w") as full:
        done = edgeopt(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("error: what is printed or stored could not be written: No space left")
    assert len(done.stderr.splitlines()) == 2


def test_closed_streams_are_like_the_null_device():
    shell = f'"{sys.executable}" -m edgeopt models --json >&- 2>&-; echo $?'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("end", ["gone", "full"])
def test_work_goes_on_though_its_progress_cannot_be_shown(end, tmp_path):
    if end == "full" and not FULL.exists():
        pytest.skip("this system has no /dev/full")
    stderr = without_reader() if end == "gone" else os.open(FULL, os.O_WRONLY)
    done = edgeopt("recipe", "digits_detector", "--out", str(tmp_path / "recipe.toml"), stderr=stderr)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "recipe.toml").exists()
    assert edgeopt("bench", "nothing-of-this-name", stderr=stderr).returncode == 1


def test_a_file_that_is_opened_later_gets_no_number_of_a_closed_stream(tmp_path):
    code = (
        "from edgeopt.cli._streams import open_closed_streams; open_closed_streams();"
        f"file = open({str(tmp_path / 'kept')!r}, 'w'); import sys; sys.exit(file.fileno() < 3)"
    )
    done = subprocess.run(["sh", "-c", f'"{sys.executable}" -c "{code}" >&- 2>&-'], capture_output=True, check=False)
    assert done.returncode == 0


def test_a_damaged_picture_is_told_in_edgeopts_words_alone(tmp_path):
    """Libjpeg prints a line of its own each time that such a picture is decoded, libpng too."""
    picture = sorted((find_recipe("digits_detector").folder / "calib").glob("*.jpg"))[0].read_bytes()
    (tmp_path / "odd.jpg").write_bytes(picture[:700] + b"\x00\xff\xd8junk" + picture[700:])
    written = cv2.imencode(".png", np.full((64, 64, 3), 7, np.uint8))[1].tobytes()
    (tmp_path / "odd.png").write_bytes(written[:-20] + bytes([written[-20] ^ 255]) + written[-19:])
    told = ""
    for name in ("odd.jpg", "odd.png"):
        done = edgeopt("recipe", "digits_detector", "-o", f"{name}.toml", "--picture", name, cwd=tmp_path)
        told += done.stdout + done.stderr
    assert "libpng" not in told
    assert "Corrupt JPEG" not in told
    assert "none of 1 file" in told


def test_an_app_keeps_its_standard_error(capfd):
    with quiet_natives():
        os.write(2, b"of the app")
    assert capfd.readouterr().err == "of the app"
