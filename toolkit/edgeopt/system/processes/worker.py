"""The parent's side of a worker: start it, ask it, kill it when it hangs, name the signal when it dies."""

from __future__ import annotations

import atexit
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from edgeopt.errors import StepError
from edgeopt.system.processes.interrupts import deaf_children, held_interrupts
from edgeopt.system.processes.messages import Message, read_message, write_message

_ROOT = str(Path(__file__).parents[3])
_LAST_LINES = 3
_SECONDS_TO_LEAVE, _LOOK_S = 5.0, 0.005


class WorkerDeathError(StepError):
    """A child died, or was killed because it did not answer."""

    def __init__(self, problem: str, *, remedy: str, how: str, last_line: str, signal_name: str = "") -> None:
        """Keep the parts of the message, for callers that say it in words of their own.

        Args:
            problem: The whole sentence.
            remedy: What to do.
            how: The verb of the sentence, such as `died of SIGABRT`.
            last_line: The last line of its standard error; empty: it wrote none.
            signal_name: The signal that ended it; empty: none did.
        """
        super().__init__(problem, remedy=remedy)
        self.how, self.last_line, self.signal_name = how, last_line, signal_name


class Worker:
    """One child process that answers one message with one message. Not for two threads at once."""

    def __init__(self, command: Sequence[str], what: str) -> None:
        """Start `command`; `what` names it in errors, e.g. `Qualcomm's library`."""
        self._what = what
        self._heard = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the worker
        with _begun(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._heard, env=child_environment()
        ) as process:
            self._process = process
        self._answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        weakref.finalize(self, self._heard.close)
        self._end = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def ask(self, message: Message, *, timeout_s: float) -> Message:
        """Send a message and return the answer.

        Raises:
            WorkerDeathError: If the child dies, or does not answer in time; it is killed then.
        """
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, message)
        except (OSError, ValueError):
            raise self._death() from None
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self._process.kill()
            remedy = "try again; if it hangs again, leave the step out with --skip compile"
            raise self._died(f"did not answer within {timeout_s:g} s and was killed", remedy) from None
        except BaseException:  # an interrupt: its answer would be taken for that of the next question
            self._process.kill()
            raise
        if answer is None:
            raise self._death()
        return answer

    def kill(self) -> None:
        """End the child whatever it is doing. Raises as `close`."""
        self._process.kill()
        self.close()

    def close(self) -> str:
        """End the child and return all it wrote to standard error.

        Raises:
            KeyboardInterrupt: When it is gone, if there was one in the meantime.
        """
        if self._heard.closed:
            return ""
        was_interrupted = self._end()
        said = self._read_heard()
        self._heard.close()
        if was_interrupted:
            raise KeyboardInterrupt
        return said

    def _death(self) -> WorkerDeathError:
        code = self._process.wait()
        signal_name = _signal_name(-code) if code < 0 else ""
        how = f"died of {signal_name}" if signal_name else f"ended with exit code {code}"
        remedy = "the crash is in the vendor's package, not in edgeopt: update it, or leave it out: --skip compile"
        return self._died(how, remedy, signal_name)

    def _died(self, how: str, remedy: str, signal_name: str = "") -> WorkerDeathError:
        lines = [line.strip() for line in self._read_heard().splitlines() if line.strip()]
        said = f"; it last said: {' | '.join(lines[-_LAST_LINES:])}" if lines else ""
        return WorkerDeathError(
            f"{self._what} {how}{said}",
            remedy=remedy,
            how=how,
            last_line=lines[-1] if lines else "",
            signal_name=signal_name,
        )

    def _read_heard(self) -> str:
        self._heard.seek(0)
        return self._heard.read().decode("utf-8", "replace")


def python_worker(module: str, what: str) -> Worker:
    """Start `python -m module` with this interpreter."""
    return Worker(module_command(module), what)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command of `python -m module` with this interpreter.

    With `-P`, as the current folder is the user's: without it, a file `json.py` there takes the place of Python's own.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def close_at_exit(close: Callable[[], None]) -> None:
    """End a child when this process ends; an interrupt then has nothing left to interrupt, and prints nothing."""

    def quietly() -> None:
        with suppress(KeyboardInterrupt):
            close()

    atexit.register(quietly)


def run_to_end(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a child until it ends; whatever ends this function before, an interrupt too, ends the child.

    Raises:
        subprocess.TimeoutExpired: If it takes longer than `timeout_s`.
    """
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with _begun(command, **output, text=True, encoding="utf-8", errors="replace", env=child_environment()) as process:
        stdout, stderr = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@contextmanager
def _begun(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a child, and kill it where the `with` raises; an interrupt while it starts is one there."""
    process: subprocess.Popen[Any] | None = None
    try:
        with deaf_children(), held_interrupts() as was_interrupted:  # else one while it starts would leave it alone
            process = subprocess.Popen(command, **how)
        if was_interrupted():
            raise KeyboardInterrupt
        yield process
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise


def child_environment() -> dict[str, str]:
    """Return this process's environment, with this package on the path of a child even from a checkout."""
    result = {**os.environ, "PYTHONUTF8": "1"}
    if sysconfig.get_paths()["purelib"] != _ROOT:
        result["PYTHONPATH"] = os.pathsep.join(part for part in (_ROOT, os.environ.get("PYTHONPATH", "")) if part)
    return result


def _listen(stream: IO[bytes], answers: queue.SimpleQueue[Message | None]) -> None:
    try:
        while True:
            answers.put(read_message(stream))
    except (EOFError, OSError, ValueError):
        answers.put(None)
    finally:
        stream.close()


def _end(process: subprocess.Popen[Any]) -> bool:
    """Close its input, which asks it to leave; kill it if it stays, or at an interrupt; return whether there was one.

    An exception is printed and forgotten where the interpreter ends or an object is let go.
    """
    assert process.stdin is not None
    with held_interrupts() as was_interrupted:
        try:
            process.stdin.close()
        except OSError:
            process.kill()
        left_s = monotonic() + _SECONDS_TO_LEAVE
        while process.poll() is None and monotonic() < left_s and not was_interrupted():
            sleep(_LOOK_S)
        process.kill()
        process.wait()
        return was_interrupted()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
