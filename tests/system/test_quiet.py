"""The lines of another package are dropped; those of other threads are shown meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from edgeopt.system.processes.quiet import quiet_thread


def test_one_thread_is_quiet_and_another_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet_thread():
        print("dropped")
        print("dropped", file=sys.stderr)
        other = threading.Thread(target=lambda: print("heard", file=sys.stderr))
        other.start()
        other.join()
    print("after")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("after\n", "heard\n")


def test_two_that_overlap_leave_both_threads_heard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back afterwards
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with quiet_thread():
            print("dropped")
            inside.set()
            leave.wait(10)
        print("second")

    other = threading.Thread(target=second)
    with quiet_thread():
        other.start()
        assert inside.wait(10)
    leave.set()
    other.join()
    print("first")
    assert capsys.readouterr().out.splitlines() == ["second", "first"]


CAPTURED = """
import ctypes, os, sys, threading
from edgeopt.system.processes.quiet import captured_natives
library = ctypes.CDLL(None)
library.puts(b"before")
with captured_natives(("chatter",)) as lines:
    library.puts(b"chatter of a library")
    print("from Python", flush=True)
library.puts(b"behind")
library.fflush(None)
print(sorted(lines))
"""


PARTS = """
import os
from edgeopt.system.processes.quiet import captured_natives
write = os.write
os.write = lambda number, data: write(number, data[:3])  # a pipe that is nearly full
with captured_natives(("chatter",)) as lines:
    write(1, b"12%\\r34%\\r\\xff\\x0b\\nchatter of a library\\nno chatter\\ntok")
write(1, b"en\\nchatter behind\\n")
with captured_natives(("chatter",)):
    write(1, b"chatter that goes on")
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows writes other line ends")
def test_what_others_print_meanwhile_is_shown_byte_by_byte():
    shown = subprocess.run([sys.executable, "-c", PARTS], capture_output=True, check=True).stdout
    assert shown == b"12%\r34%\r\xff\x0b\nno chatter\ntoken\nchatter behind\nchatter that goes on"


READING = """
import ctypes, os, threading, time
from edgeopt.system.processes.quiet import captured_natives
library = ctypes.CDLL(None)
threading.Thread(target=library.getchar, daemon=True).start()
time.sleep(0.3)  # it holds the lock of the standard input
with captured_natives(("chatter",)):
    library.puts(b"chatter")
    library.puts(b"shown")
os._exit(0)
"""


@pytest.mark.skipif(os.name != "posix", reason="C's own library is found by another name")
def test_a_thread_that_waits_for_input_holds_nobody_up():
    begun = subprocess.Popen([sys.executable, "-c", READING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert begun.wait(60) == 0
        assert begun.stdout is not None
        assert begun.stdout.read() == b"shown\n"
    finally:
        begun.kill()
        begun.communicate()


@pytest.mark.skipif(os.name != "posix", reason="C's own library is found by another name")
def test_what_c_prints_to_the_standard_output_is_held_back_and_the_rest_comes_through():
    shown = subprocess.run([sys.executable, "-c", CAPTURED], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [
        "before",
        "from Python",
        "behind",
        "['chatter of a library', 'from Python']",
    ]
