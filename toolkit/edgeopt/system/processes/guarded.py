"""Work on what other people wrote, in a child with limits of time and memory: a template, a pattern of words.

Such a text is a program. One that loops, fills the memory or crashes ends the child, never this process, and the next
question starts another child.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from edgeopt.errors import StepError
from edgeopt.system.processes.messages import Message, read_message, write_message

if TYPE_CHECKING:
    from edgeopt.system.processes.worker import Worker

_START_S = 120.0
"""Until the child has imported what it needs: on a busy board that takes seconds."""
_WAIT = 4.0
"""How much longer than it may compute a child is waited for: others may have the processor."""
_MEMORY_BYTES = 1 << 30
"""Memory bytes of address space beyond what the child has when it begins."""


class GuardError(ValueError):
    """Other people's work fails, or takes too much time or memory. One sentence."""


class Guarded:
    """A child that answers questions, started when the first is asked. Threads take turns."""

    def __init__(self, module: str, what: str) -> None:
        """Prepare.

        Args:
            module: What the child runs; it calls `serve_guarded`.
            what: How what it works on is called in errors, e.g. `the chat template`.
        """
        self._module, self._what = module, what
        self._turn = Lock()
        self._worker: Worker | None = None

    def ask(self, question: Mapping[str, Any], *, seconds: float) -> Mapping[str, Any]:
        """Return the child's answer.

        Args:
            question: Plain values.
            seconds: Of the processor; then the child is killed. It is also where four times as many have passed.

        Raises:
            GuardError: If it fails, or takes more than that or too much memory.
        """
        with self._turn:
            try:
                if self._worker is None:
                    from edgeopt.system.processes.worker import python_worker  # few texts need a child

                    self._worker = python_worker(self._module, self._what)
                    self._worker.ask(Message({"seconds": seconds}), timeout_s=_START_S)
                answer = self._worker.ask(Message({**question, "seconds": seconds}), timeout_s=_WAIT * seconds).values
            except StepError as error:
                self._end()
                raise GuardError(f"{self._what} takes more than {seconds:.0f} s, or too much memory") from error
            except BaseException:
                self._end()
                raise
        if "error" in answer:
            raise GuardError(str(answer["error"]))
        return answer

    def close(self) -> None:
        """End the child; the next question starts another."""
        with self._turn:
            self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None


def serve_guarded(
    asked: IO[bytes], answered: IO[bytes], answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> None:
    """Be the child: answer until the input closes.

    Args:
        asked: The channel of questions.
        answered: That of answers.
        answer: Answers one question; whatever it raises is told as a sentence.
    """
    is_limited = False
    while True:
        try:
            question = read_message(asked).values
        except EOFError:
            return
        if not is_limited:  # the first message is empty: everything is imported by now
            _limit_memory()
            is_limited = True
            write_message(answered, Message({}))
            continue
        _limit_time(float(question["seconds"]))
        try:
            reply: Mapping[str, Any] = answer(question)
        except MemoryError:
            reply = {"error": "it takes too much memory"}
        except RecursionError:
            reply = {"error": "it is nested too deeply"}
        except BaseException as error:  # tokenizers' panics are no Exception
            reply = {"error": str(error)[:200] or type(error).__name__}
        write_message(answered, Message(reply))


def _limit_memory() -> None:
    """Bound the address space where the system can: Linux."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_time(seconds: float) -> None:
    """Bound the processor's time for one question; it also ends a child whose parent is gone."""
    if sys.platform == "win32":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = used.ru_utime + used.ru_stime
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(spent + seconds), resource.RLIM_INFINITY))
