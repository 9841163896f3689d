"""A headless Chromium (or Chrome, or Edge) with a profile of its own, that opens one address."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from edgeopt.errors import EdgeoptError, Missing, UnavailableError
from edgeopt.system.disk.locks import lock_folder
from edgeopt.system.processes.programs import add_program, drop_program

PROGRAM_VARIABLE = "EDGEOPT_BROWSER"
REMEDY = f"install Chromium, Chrome or Edge (Debian: apt install chromium), or name its program in {PROGRAM_VARIABLE}"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome", "msedge")
_MAC = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
_WINDOWS = (r"Google\Chrome\Application\chrome.exe", r"Microsoft\Edge\Application\msedge.exe")
_FLAGS = (
    "--headless=new",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",  # nothing is looked up or reported
    "--disable-background-timer-throttling",  # a page that nobody sees runs as one that is seen
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-dev-shm-usage",  # containers have 64 MB there
    "--mute-audio",
)
WASM, WEBGPU, WEBGPU_SOFTWARE = "wasm", "webgpu", "webgpu in software"
_BY_KIND = {
    WASM: ("--disable-gpu",),
    WEBGPU: ("--enable-unsafe-webgpu", "--enable-features=Vulkan"),
    WEBGPU_SOFTWARE: ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"),
}
"""Chromium on Linux keeps WebGPU behind a flag and takes the GPU through Vulkan; SwiftShader computes its numbers."""
_START = """<!doctype html>
<meta charset="utf-8">
<script>
  // edgeopt may have ended while the browser started: an address that does not answer would stay open for ever
  const alive = new URL("alive", {address});
  fetch(alive, {{ mode: "no-cors" }}).then(() => location.replace({address}), () => window.close());
</script>
"""
_NOISE = (":ERROR:", ":WARNING:", "unexpected operator")
"""Parts of lines about a desktop that is not there, and of a fault of Debian's launcher."""
_SECONDS_TO_LEAVE = 5.0
_FOLDER = "edgeopt-browser-"
_SECONDS_OF_A_START = 60.0
"""A folder that is younger may be one that is about to be held."""


def find_program() -> str | Missing:
    """Return the browser's program, or why there is none."""
    if named := os.environ.get(PROGRAM_VARIABLE):
        return shutil.which(named) or Missing(f"{PROGRAM_VARIABLE}={named} is no program", REMEDY)
    for name in _NAMES:
        if program := shutil.which(name):
            return program
    for path in _usual_places():
        if path.is_file():
            return str(path)
    return Missing("no Chromium, Chrome or Edge is installed", REMEDY)


def _usual_places() -> list[Path]:
    """Return where installers put browsers on systems on which no command names them."""
    if sys.platform == "darwin":
        return [Path(path) for path in _MAC]
    roots = [os.environ.get(name) for name in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA")]
    return [Path(root) / path for root in roots if root for path in _WINDOWS] if sys.platform == "win32" else []


class Chromium:
    """A browser that runs until it is closed, or until its page closes itself."""

    def __init__(self, address: str, kind: str) -> None:
        """Start it.

        Args:
            address: What it opens. Other users of this machine read command lines and not files: the address, which
                holds a secret, stands in a file.
            kind: `WASM`, `WEBGPU` or `WEBGPU_SOFTWARE`.

        Raises:
            UnavailableError: If no browser is installed, or it does not start.
        """
        program = find_program()
        if isinstance(program, Missing):
            raise UnavailableError(program.reason, remedy=program.remedy)
        sweep(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._held = lock_folder(folder, held="another browser uses", remedy="set TMPDIR to another folder")
        start = folder / "start.html"
        start.write_text(_START.format(address=json.dumps(address)), encoding="utf-8")
        flags = [*_FLAGS, *_BY_KIND[kind], f"--user-data-dir={folder / 'profile'}"]
        if sys.platform != "win32" and os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium refuses to run as root with one
        self._said = (folder / "said.txt").open("wb")
        try:
            self._process = subprocess.Popen(
                [program, *flags, start.as_uri()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,  # Ctrl+C is for us: the page leaves when this process does
            )
        except OSError as error:
            self._said.close()
            self._held.close()
            self._folder.cleanup()
            raise UnavailableError(f"{program} does not start: {error.strerror}", remedy=REMEDY) from error
        add_program(self._process.pid)

    def has_ended(self) -> bool:
        """Return whether the program runs no more."""
        return self._process.poll() is not None

    def last_line(self) -> str:
        """Return what it last wrote to standard error, but for what it always reports of the desktop that it misses."""
        try:
            text = (Path(self._folder.name) / "said.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it was closed, and its folder went with it
            return ""
        said = [line.strip() for line in text.splitlines() if line.strip() and not any(map(line.count, _NOISE))]
        return said[-1] if said else ""

    def close(self) -> None:
        """End the program and all its children, and remove the profile."""
        drop_program(self._process.pid)
        if not self.has_ended():
            self._process.terminate()
            try:
                self._process.wait(_SECONDS_TO_LEAVE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):  # its children write into the profile until they have left
                os.killpg(self._process.pid, signal.SIGKILL)
        self._said.close()
        self._held.close()
        self._folder.cleanup()


def sweep(folder: Path) -> None:
    """Remove the profiles of this user whose process ended without removing them, as by SIGKILL."""
    for path in folder.glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError, EdgeoptError):  # another process removes it too, or holds it
            if not _may_be_left(path):
                continue
            with lock_folder(path, held="another browser uses", remedy=""):
                if not _is_used(path / "profile"):
                    shutil.rmtree(path, ignore_errors=True)


def _may_be_left(path: Path) -> bool:
    """Return whether a path is a folder of this user's, made some time ago."""
    facts = path.lstat()
    is_mine = sys.platform == "win32" or facts.st_uid == os.geteuid()
    return stat.S_ISDIR(facts.st_mode) and is_mine and time.time() - facts.st_mtime > _SECONDS_OF_A_START


def _is_used(profile: Path) -> bool:
    """Return whether a Chromium uses a profile still: a link in it names machine and process until that ends."""
    try:
        host, _, number = os.readlink(profile / "SingletonLock").rpartition("-")
    except OSError:
        return False
    return host != socket.gethostname() or not number.isdecimal() or psutil.pid_exists(int(number))
