"""SIGTERM, as docker, systemd and a CI's limit send it, ends every command as Ctrl-C does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgeopt.system.processes.interrupts import held_interrupts
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import Worker, run_to_end

CALIB = str(Path(__file__).parents[2] / "models" / "digits_detector" / "calib")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="which signals a process hears is read from /proc")


def hears_termination(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    assert mask
    return bool(int(mask[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "digits_detector", "-t", "cpu", "--seconds", "90"],
        ["compare", "digits_detector", "digits_detector", "-t", "cpu", "--seconds", "90"],
        ["quantize", "digits_detector", "-t", "cpu", "-o", "int8.onnx"],
        ["serve", "tiny_lm", "--port", "0"],
        ["optimize", "digits_detector", "-t", "cpu"],
        ["prune", "digits_detector", "-t", "cpu"],
        ["check", "digits_detector", "--update", "-b", "baseline.json"],
        ["recipe", "digits_detector", "-o", "mine.toml"],
        ["finetune", "digits_detector", "--teacher", "digits_detector", "--data", CALIB],
        ["export", "torch:signal:pause", "--input", "x=1x3x8x8"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_ends_with_a_line_and_the_code_of_ctrl_c(arguments, tmp_path):
    command = [sys.executable, "-m", "edgeopt", *arguments]
    # a shell hands on SIGINT as ignored to jobs in its background: SIGTERM must not depend on it
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        until = time.monotonic() + 60
        while not hears_termination(process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)  # the command's own file is being imported, or it has begun
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    # CPython ends itself by SIGINT, which shells tell as 130 too, where an interrupt came while a dataclass was made
    assert process.returncode in (130, -signal.SIGINT), said
    assert re.fullmatch(r"(?s)(.*\n)?interrupted: .*\n", said), said
    assert "Traceback" not in said


ANSWER = ["tiny_lm", "--output-tokens", "1000000", "--context-shift"]


@pytest.mark.parametrize(
    ("arguments", "sent", "left"),
    [
        ([*ANSWER, "--prompt", "import os"], "", "; interrupted"),
        ([*ANSWER, "--chat"], "import os\n", "1 answer, .*, interrupted"),
        (["digits_detector", CALIB, "--fps", "1"], "", "answered until it was interrupted"),
    ],
    ids=["prompt", "chat", "pictures"],
)
def test_an_answer_that_is_cut_short_ends_with_its_summary_and_the_code_of_ctrl_c(arguments, sent, left):
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "edgeopt", "run", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(sent)
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert re.search(left, " ".join((said + out).split()))


@pytest.mark.parametrize("later_s", [0.0, 0.001, 0.003, 0.01, 0.1])
def test_a_process_that_is_started_when_the_signal_comes_is_ended_too(later_s):
    """An interrupt between the start of a command and its first line leaves no process behind."""

    def run_and_signal():
        threading.Timer(later_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
        run_to_end([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=60)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = {one.pid for one in psutil.Process().children()}
    try:
        with pytest.raises(KeyboardInterrupt):
            run_and_signal()
        assert {one.pid for one in psutil.Process().children()} == known
    finally:
        signal.signal(signal.SIGTERM, before)


CHILD = """
import sys, time, signal
from edgeopt.system.processes.messages import Message, read_message, write_message
for _ in range(2):
    asked = read_message(sys.stdin.buffer)
    time.sleep(asked.values["wait"])
    write_message(sys.stdout.buffer, Message({}, asked.arrays))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_hears_no_signal_that_its_group_gets(number):
    child = Worker([sys.executable, "-c", CHILD], "the child")
    try:
        child.ask(Message({"wait": 0}), timeout_s=20)
        os.kill(child.pid, number)
        answer = child.ask(Message({"wait": 0.1}, {"a": np.arange(3)}), timeout_s=20)
    finally:
        child.kill()
    assert answer.arrays["a"].tolist() == [0, 1, 2]


def test_an_interrupted_question_ends_its_child():
    """Its answer would be taken for that of the next question."""
    child = Worker([sys.executable, "-c", CHILD], "the child")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            child.ask(Message({"wait": 60}), timeout_s=120)
        child.close()
        assert not Path(f"/proc/{child.pid}").exists()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        child.kill()


STAYS = "import sys, time; sys.stdin.buffer.read(); time.sleep(600)"


def test_an_interrupt_while_a_child_leaves_is_heard_when_it_is_gone():
    child = Worker([sys.executable, "-c", STAYS], "the child")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            child.close()
        assert not Path(f"/proc/{child.pid}").exists()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_a_child_leaves_at_the_end_of_the_program_prints_nothing():
    code = f"""
import os, signal, sys, threading
from edgeopt.system.processes.worker import Worker, close_at_exit
signal.signal(signal.SIGINT, signal.default_int_handler)
stays = [Worker([sys.executable, "-c", {STAYS!r}], "the child") for _ in range(2)]
close_at_exit(stays[0].close)
interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
interrupt.daemon = True  # the program does not wait for it
interrupt.start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


BUSY = """
import sys, time
from edgeopt.system.processes.messages import replies_apart, serve_messages
serve_messages(replies_apart(), {"work": lambda _: time.sleep(600)})
"""


def test_a_child_at_work_ends_with_a_parent_that_was_killed():
    code = f"""
import os, signal, sys, threading
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import Worker
child = Worker([sys.executable, "-c", {BUSY!r}], "the child")
print(child.pid, flush=True)
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
child.ask(Message({{"do": "work"}}), timeout_s=600)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    child = psutil.Process(int(done.stdout)) if psutil.pid_exists(int(done.stdout)) else None
    if child is not None:
        child.wait(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_are_held_back_and_the_second_ends_at_once(number):
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        for one in before:
            signal.signal(one, signal.default_int_handler)
        with held_interrupts() as was_interrupted:
            assert not was_interrupted()
            os.kill(os.getpid(), number)
            assert was_interrupted()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
