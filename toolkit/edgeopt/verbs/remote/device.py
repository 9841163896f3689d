"""A device that commands run on: what is there, what it still needs, and what is sent to it."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.system.disk.wheel import Wheel
from edgeopt.system.machine.processor import Processor, architecture_of
from edgeopt.system.text import format_bytes, plural
from edgeopt.verbs.remote.ssh import Connection, LostError, unknown_answer
from edgeopt.verbs.remote.wheelhouse import VARIABLE, wheels_for

Tell = Callable[[str, int, int], None]
NO_PACKAGES = "pip installs no"
"""As the device's side has it: how the failure begins where a device gets no packages."""
_SIDE = Path(__file__).with_name("_device_side.py")
_SPARE_BYTES = 1 << 30
"""Free bytes that an environment with ONNX Runtime and OpenCV needs while it is made (600 MB, seen), and some more."""
_SETUP = """
set -e
umask 077
root="${XDG_CACHE_HOME:-$HOME/.cache}/edgeopt/remote"
mkdir -p "$root"
chmod 700 "$root"
cat > "$root/$1.$$"
if [ "$(wc -c < "$root/$1.$$")" -ne "$2" ]; then
  rm "$root/$1.$$"
  exit 255
fi
mv "$root/$1.$$" "$root/$1"
for python in python3 python3.14 python3.13 python3.12 python3.11; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
    printf 'edgeopt-device:%s\\n%s\\n' "$(command -v "$python")" "$root/$1"
    exit
  fi
done
echo "edgeopt-device:there is no Python 3.11 or later -> install one, such as python3.11" >&2
exit 3
"""


class Device:
    """One device behind a connection."""

    def __init__(self, connection: Connection) -> None:
        """Put the device's side of edgeopt there, one file.

        Raises:
            UnavailableError: If the device cannot be reached.
            EdgeoptError: If it has no POSIX shell or no Python that is new enough.
        """
        self.connection = connection
        source = _SIDE.read_bytes()
        name = f"side-{hashlib.sha256(source).hexdigest()[:16]}.py"
        setup = ["sh", "-c", _SETUP, "sh", name, str(len(source))]
        printed = connection.call(setup, source).decode(errors="replace").split("\n")
        if len(printed) < 2:
            raise EdgeoptError(f"{connection.address} has no POSIX shell", remedy="take a device with Linux or macOS")
        self._command = [printed[0], printed[1]]
        self._facts: Any = None

    def command(self, name: str, *words: str) -> list[str]:
        """Return the command line of a function of the device's side."""
        return [*self._command, name, *words]

    def ask(self, name: str, *words: str, sent: bytes = b"") -> Any:
        """Return the answer of a function of the device's side; None where it has none.

        Raises:
            EdgeoptError: If it fails, or the device cannot be reached.
        """
        answer = self.connection.call(self.command(name, *words), sent)
        try:
            return json.loads(answer) if answer.strip() else None
        except (ValueError, RecursionError) as error:
            raise unknown_answer(self.connection.address) from error

    def ask_table(self, keys: Mapping[str, type], name: str, *words: str, sent: bytes = b"") -> dict[str, Any]:
        """Return the answer of a function of the device's side that is a table of such values.

        Raises:
            EdgeoptError: As `ask`, or if it is none.
        """
        answer = self.ask(name, *words, sent=sent)
        if not isinstance(answer, dict) or any(type(answer.get(key)) is not kind for key, kind in keys.items()):
            raise unknown_answer(self.connection.address)
        return answer

    @property
    def machine(self) -> str:
        """The device's processor, as `uname -m` prints it there."""
        return str(self.facts.get("machine", "")) if isinstance(self.facts, dict) else ""

    @property
    def facts(self) -> Any:
        """Python, system, processor and C library, as the device tells them: not believed unseen."""
        if self._facts is None:
            self._facts = self.ask("facts")
        return self._facts

    @property
    def processor(self) -> Processor | None:
        """The device's processor; None where its system tells no instructions of it."""
        flags = self.facts.get("flags") if isinstance(self.facts, dict) else None
        if not isinstance(flags, list) or not flags:
            return None
        return Processor(architecture_of(self.machine), frozenset(map(str, flags)))

    def prepare(self, wheel: Wheel, extras: Sequence[str], tell: Tell) -> str:
        """Make the environment of a wheel unless it is there, and return its key.

        Raises:
            EdgeoptError: If it cannot be made; the line says why.
        """
        key = f"{wheel.key}-{'-'.join(extras)}"
        status = self.ask_table({"ready": bool, "free_bytes": int}, "status", key)
        if not status["ready"]:
            if status["free_bytes"] < _SPARE_BYTES:
                free = f"{format_bytes(status['free_bytes'])} are free"
                remedy = f"free {format_bytes(_SPARE_BYTES)} in ~/.cache"
                raise EdgeoptError(f"{self.connection.address} has no room for edgeopt: {free}", remedy=remedy)
            tell(f"install edgeopt on {self.connection.address.host}", 0, 1)
            self._install(key, wheel, extras, tell)
            tell(f"install edgeopt on {self.connection.address.host}", 1, 1)
        return key

    def _install(self, key: str, wheel: Wheel, extras: Sequence[str], tell: Tell) -> None:
        """Let the device install from its index; where it gets nothing there, from wheels that are fetched here."""
        packed = wheel.pack()
        words = (key, wheel.name, hashlib.sha256(packed).hexdigest(), ",".join(extras))
        is_named = bool(os.environ.get(VARIABLE))
        try:
            if not is_named:
                self.ask("prepare", *words, sent=packed)
                return
        except LostError:
            raise
        except EdgeoptError as error:
            if NO_PACKAGES not in error.problem:
                raise
            without_index = error
        try:
            wheels = wheels_for(self.facts, wheel, extras)
        except EdgeoptError as error:
            if is_named:
                raise
            problem = f"{without_index.problem}; and from here: {error.problem}"
            raise EdgeoptError(problem, remedy=error.remedy) from error
        files = {path.name: path for path in wheels if path.name != wheel.name}
        hashes = self.send(files, tell)
        self.ask("prepare", *words, json.dumps(hashes), sent=packed)

    def send(self, files: Mapping[str, Path], tell: Tell) -> dict[str, str]:
        """Send the files that the device has not yet, and return the hash of each.

        Args:
            files: By their names in the mirror.
            tell: Hears how many bytes were sent.

        Raises:
            EdgeoptError: If a file cannot be read here or changes, or the device has no room.
        """
        hashes = {name: sha256_of(path) for name, path in files.items()}
        absent = self.ask("missing", sent=json.dumps(sorted(set(hashes.values()))).encode())
        if not isinstance(absent, list) or not set(map(type, absent)) <= {str}:
            raise unknown_answer(self.connection.address)
        lacking = frozenset(absent)
        sent = {digest: files[name] for name, digest in hashes.items() if digest in lacking}
        if not sent:
            return hashes
        size = sum(path.stat().st_size for path in sent.values())
        what = f"send {plural(len(sent), 'file')}, {format_bytes(size)}"
        process = self.connection.start(self.command("store"))
        done = 0
        try:
            with tarfile.open(fileobj=process.sent, mode="w|") as archive:
                for digest, path in sent.items():
                    _add(archive, digest, path)
                    done += path.stat().st_size
                    tell(what, done, size)
        except BrokenPipeError:
            pass  # the device ended; its own words say why
        except BaseException:
            process.abandon()
            raise
        self.connection.require_success(*process.end())
        return hashes


def _add(archive: tarfile.TarFile, digest: str, path: Path) -> None:
    entry = tarfile.TarInfo(digest)
    with path.open("rb") as file:
        entry.size = path.stat().st_size
        try:
            archive.addfile(entry, file)
        except BrokenPipeError:
            raise
        except OSError as error:  # tarfile's word for a file that ends early
            raise InvalidFileError(f"{path} changed while it was sent: {error}", remedy="try again") from error
