"""Frames answered by real Dask workers are those of one process, to the last bit, whatever ends in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.executors import Session
from edgeopt.measurement.accuracy.cluster import chunk, section
from edgeopt.measurement.accuracy.cluster import pool as pools
from edgeopt.measurement.accuracy.cluster.address import ClusterAddress, read_cluster_address
from edgeopt.measurement.accuracy.cluster.chunk import answer_chunk, stop_run
from edgeopt.measurement.accuracy.cluster.job import (
    AnsweredFrames,
    AnswerJob,
    CannotAnswer,
    FrameFiles,
    MachineTaken,
    SentFile,
    digest_of,
)
from edgeopt.measurement.accuracy.cluster.likeness import WorkerFacts, why_unlike, worker_facts
from edgeopt.measurement.accuracy.cluster.pool import ClusterPool
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, open_labelled
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.measurement.opening.given import open_given
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.opening import Opening, opening_for
from edgeopt.system.cluster.store import MissingFiles, machine_lock, store
from edgeopt.system.declared.target import find_target
from edgeopt.system.disk.locks import hold
from edgeopt.tasks import Task, make_task

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of sockets and loops that Dask leaves to the collector
    pytest.mark.usefixtures("root"),
]
LESS = "import edgeopt.system.machine.processor as it\nit._flags = lambda: (frozenset({'sse2', 'asimd'}), None)\n"
"""Code that a worker loads first, which gives it another processor."""
OTHERWISE = """
import numpy as np
from edgeopt.runtime.opening import Opening

class Off:
    def __init__(self, session):
        self.session = session

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, inputs):
        return {name: np.nextafter(value, np.float32(9)) for name, value in self.session.run(inputs).items()}

Opening.open = lambda opening, source, opened=Opening.open: Off(opened(opening, source))
"""
"""Code that a worker loads first, which makes its numbers differ in the last bit."""
BLIND = """
import edgeopt.measurement.accuracy.cluster.chunk as it

it.read_stored = lambda digest, origin, read=it.read_stored: read(digest, "/nowhere")
"""
"""Code that a worker loads first, which hides this machine's files, so that it is sent them."""
UNABLE = """
from edgeopt.errors import UnavailableError
from edgeopt.runtime.opening import Opening

def refuse(opening, source):
    raise UnavailableError("no engine", remedy="install it")

Opening.open = refuse
"""
"""Code that a worker loads first, which takes its engine away."""
LYING = """
from dataclasses import replace
import edgeopt.measurement.accuracy.cluster.chunk as it
from edgeopt.system.cluster.store import MissingFiles

def lie(job, frames, answer_chunk=it.answer_chunk):
    answer = answer_chunk(job, frames)
    return {lie}

it.answer_chunk = lie
"""
"""Code that a worker loads first, which makes it say what is not so."""
LIES = {
    "replace(answer, answers=answer.answers[:-1])": "it answers . of . frames?",
    "MissingFiles(answer.worker, frozenset({'0' * 64}))": "it asks for files that nobody speaks of",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[Path]:
    """The folder of this machine's workers, of these tests alone; nothing is too little to be sent."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        for name in ("_WORTH_S", "_WORTH_OWN_S", "_WORTH_OPEN_S"):
            patch.setattr(pools, name, 0.0)
        yield folder


@pytest.fixture(scope="module")
def two(root, tmp_path_factory) -> Iterator[Any]:
    """A cluster of two workers that compute as this process does."""
    with cluster(tmp_path_factory.mktemp("two"), "", "") as made:
        yield made


@contextmanager
def cluster(folder: Path, *preloads: str) -> Iterator[Any]:
    """Run a scheduler and a worker for each text of Python, which that loads first."""
    options = {"nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
    workers = {}
    for i, text in enumerate(preloads):
        file = folder / f"preload{i}.py"
        file.write_text(text or "pass\n")
        workers[i] = {"cls": distributed.Nanny, "options": {**options, "name": i, "preload": [str(file)]}}
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"dashboard": False, "dashboard_address": "127.0.0.1:0", "port": 0},
    }
    with (
        # Dask would set OMP_NUM_THREADS and MALLOC_TRIM_THRESHOLD_ in this process, and so in all that it starts later.
        dask.config.set({"distributed.nanny.pre-spawn-environ": {}}),
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL) as made,
    ):
        yield made


class Subject:
    """The shipped detector of digits, open, with its labelled pictures."""

    def __init__(self) -> None:
        given = open_given("digits_detector", "cpu", None)
        self.recipe, self.model = given.recipe, given.model
        self.labelled: LabelledFrames = open_labelled(self.recipe.folder / "eval" / "instances.json")
        self.opening: Opening = opening_for(find_target("cpu"), "fp32", 1)
        self.session: Session = self.opening.open(self.model.source)
        specs = self.model.inputs, self.model.outputs
        self.task: Task = make_task(self.recipe, *specs, evaluating=True)
        self.runnable = Runnable(self.opening, self.model.source, self.recipe, *specs)
        self.expected = digest_of(answers(self.session, self.task, self.labelled.frames))

    def answered(self, pool: ClusterPool, frames: Frames | None = None, tell: Callable[..., None] | None = None) -> str:
        """Return the digest of what a pool answers."""
        frames = frames or self.labelled.frames
        return digest_of(pool.answers(self.runnable, self.session, self.task, frames, tell, "evaluate"))


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject()


@pytest.fixture
def elsewhere(monkeypatch) -> None:
    """Fail where this process answers more than the first frame."""

    def here(*_: object) -> list[Any]:
        raise AssertionError("answered here")

    monkeypatch.setattr(pools, "answers", here)


def test_answers_of_workers_are_those_of_this_process_and_models_follow_each_other(two, subject, elsewhere):
    said, done, frames = list[str](), list[int](), subject.labelled.frames
    packed = replace(frames, read=lambda i: frames.read(i))
    with ClusterPool(read_cluster_address(two.scheduler_address), said.append) as pool:
        assert subject.answered(pool, tell=lambda _, n, of: done.append(n)) == subject.expected
        assert subject.answered(pool, packed) == subject.expected, "samples that are no files of pictures"
        with pool.expecting({"second": lambda: subject.runnable, "third": lambda: None}, frames):
            first = pool.answers(subject.runnable, subject.session, subject.task, frames, None, "first")
            second = pool.answers(subject.runnable, subject.session, subject.task, frames, None, "second")
        assert digest_of(first) == digest_of(second) == subject.expected
    assert done == sorted(set(done))
    assert done[-1] == len(frames)
    assert said == [f"cluster: 2 workers of {two.scheduler_address}"]


def test_workers_of_this_machine_answer_and_are_gone_before_anything_is_timed(subject, elsewhere):
    said, before = list[str](), {child.pid for child in psutil.Process().children()}
    with ClusterPool(ClusterAddress(count=2), said.append) as pool:
        require_held(machine_lock())
        assert subject.answered(pool) == subject.expected
        require_held(machine_lock())
        assert {child.pid for child in psutil.Process().children()} <= before
    assert said == ["cluster: 2 workers of this machine"]


def require_held(lock: Path) -> None:
    """Fail where nobody holds a file alone."""

    class TakenError(Exception):
        pass

    def leave() -> None:
        raise TakenError

    with pytest.raises(TakenError), hold(lock, is_shared=True, on_wait=leave):
        pass


def test_a_worker_that_is_killed_in_the_middle_costs_one_line(two, subject, elsewhere):
    said = list[str]()
    with (
        distributed.Client(two) as client,
        ClusterPool(read_cluster_address(two.scheduler_address), said.append) as pool,
    ):
        victim, process = next(iter(client.run(os.getpid).items()))

        def kill(what: str, done: int, of: int) -> None:
            nonlocal process
            if process and done > 8:
                os.kill(process, 9)
                process = 0

        assert subject.answered(pool, tell=kill) == subject.expected
    assert process == 0
    assert [line for line in said if "ended" in line] == [
        f"cluster: the worker {victim} ended; others go on with its part"
    ]


def test_a_scheduler_that_is_lost_costs_one_line_and_the_rest_is_done_here(tmp_path, subject, monkeypatch):
    monkeypatch.setattr("edgeopt.system.cluster.dask.CONNECT_S", 1)
    said = list[str]()
    with (
        cluster(tmp_path, "") as made,
        ClusterPool(read_cluster_address(made.scheduler_address), said.append) as pool,
    ):

        def close(what: str, done: int, of: int) -> None:
            if done > 8 and made.status.name == "running":
                made.close()

        assert subject.answered(pool, tell=close) == subject.expected
        assert subject.answered(pool) == subject.expected, "and nobody asks it again"
    assert len(said) == 2
    assert said[1].startswith("cluster: the scheduler is gone")


def test_workers_that_compute_otherwise_are_left_out_and_files_are_sent_to_the_one_that_does_not_see_them(
    tmp_path, subject, elsewhere
):
    said = list[str]()
    with (
        cluster(tmp_path, LESS, OTHERWISE, UNABLE, BLIND) as made,
        ClusterPool(read_cluster_address(made.scheduler_address), said.append) as pool,
    ):
        assert subject.answered(pool) == subject.expected
        addresses = {name: worker.worker_address for name, worker in made.workers.items()}
    lines = [line for line in said if "left out" in line]
    assert any(line.startswith(f"cluster: {addresses[0]} is left out: its processor lacks ") for line in lines)
    assert f"cluster: {addresses[1]} is left out: it makes other numbers of the first frame" in lines
    assert any(line.startswith(f"cluster: {addresses[2]} is left out: it cannot answer: no engine") for line in lines)
    assert len(lines) == 3


def waiting_for(file: str) -> Callable[[], None]:
    """Return what computes for somebody else until a file is there; workers know no module of tests."""

    def wait() -> None:
        import time
        from pathlib import Path

        while not Path(file).exists():
            time.sleep(0.02)

    return wait


def test_a_worker_that_is_busy_is_left_out(tmp_path, two, subject, elsewhere):
    said, file = list[str](), tmp_path / "end"
    with distributed.Client(two) as client:
        first, *_ = client.run(os.getpid)
        busy = client.submit(waiting_for(str(file)), workers=[first], pure=False)
        while not client.run(worker_facts)[first].tasks:
            sleep(0.02)
        with ClusterPool(read_cluster_address(two.scheduler_address), said.append) as pool:
            assert subject.answered(pool) == subject.expected
        file.touch()
        busy.result()
    assert f"cluster: {first} is left out: it computes for somebody else" in said


def test_a_part_that_is_late_goes_to_a_worker_that_has_nothing_to_do(tmp_path, two, subject, elsewhere, monkeypatch):
    monkeypatch.setattr(section, "_LATE_S", 1.0)
    file, busy = tmp_path / "end", list[Any]()
    with distributed.Client(two) as client:
        first, *_ = client.run(os.getpid)

        def interpose(what: str, done: int, of: int) -> None:
            if done > 1 and not busy:
                busy.append(client.submit(waiting_for(str(file)), workers=[first], priority=10, pure=False))

        with ClusterPool(read_cluster_address(two.scheduler_address), lambda _: None) as pool:
            assert subject.answered(pool, tell=interpose) == subject.expected
        assert busy[0].status == "pending"
        file.touch()
        busy[0].result()


def test_workers_that_lie_are_left_out_and_nothing_of_theirs_counts(tmp_path, subject, elsewhere):
    said = list[str]()
    lying = [LYING.format(lie=lie) for lie in LIES]
    with (
        cluster(tmp_path, "", *lying) as made,
        ClusterPool(read_cluster_address(made.scheduler_address), said.append) as pool,
    ):
        assert subject.answered(pool) == subject.expected
        addresses = [worker.worker_address for worker in made.workers.values()]
    lines = [line for line in said if "left out" in line]
    assert lines
    known = dict(zip(addresses[1:], LIES.values(), strict=True))  # which of them has a part to answer is chance
    parts = [re.fullmatch(r"cluster: (\S+) is left out: (.*)", line) for line in lines]
    assert all(part and re.fullmatch(known[part[1]], part[2]) for part in parts)


def test_a_cluster_of_which_nobody_computes_alike_is_refused_before_anything_is_done(tmp_path):
    said = list[str]()
    with (
        cluster(tmp_path, LESS) as made,
        pytest.raises(UnavailableError, match=r"no worker of tcp://.* computes as this machine does"),
        ClusterPool(read_cluster_address(made.scheduler_address), said.append),
    ):
        pass
    assert "its processor lacks" in said[0]


def test_what_is_interrupted_computes_no_more(two, subject):
    with (
        distributed.Client(two) as client,
        ClusterPool(read_cluster_address(two.scheduler_address), lambda _: None) as pool,
    ):

        def interrupt(what: str, done: int, of: int) -> None:
            if done > 8:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            subject.answered(pool, tell=interrupt)
        until_s = monotonic() + 30  # what a worker had begun ends behind the sample at hand
        while any(sum(running.values()) for running in client.run(lambda: dict(chunk._running)).values()):
            assert monotonic() < until_s
            sleep(0.05)
        assert not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def job_of(subject: Subject, origin: str = "") -> tuple[AnswerJob, FrameFiles]:
    """Return a job and a part of its frames, whose files lie here or nowhere."""
    frames = subject.labelled.frames
    data = [frames.read.path(i).read_bytes() for i in range(2)]
    files = [
        SentFile(hashlib.sha256(each).hexdigest(), origin or str(frames.read.path(i))) for i, each in enumerate(data)
    ]
    model = SentFile(
        hashlib.sha256(subject.model.data).hexdigest(), origin or str(subject.recipe.folder / "model.onnx")
    )
    first, second = (FrameFiles((frames.names[i],), (files[i],), "picture", is_packed=False) for i in range(2))
    specs = subject.model.inputs, subject.model.outputs
    made = AnswerJob("run", 0, model, subject.opening, subject.recipe, *specs, True, first, is_own=False)
    return made, second


def test_a_worker_without_our_disk_asks_for_files_and_a_machine_that_measures_answers_nothing(
    tmp_path, subject, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made, part = job_of(subject, "/nowhere")
    missing = answer_chunk(made, part)
    assert isinstance(missing, MissingFiles)
    assert missing.digests == {made.model.digest, made.first.files[0].digest, part.files[0].digest}
    here, there = job_of(subject)
    for file in (here.model, *here.first.files, *there.files):
        store(file.digest, Path(file.origin).read_bytes())
    with hold(machine_lock()):
        assert isinstance(answer_chunk(made, part), MachineTaken)
    answered = answer_chunk(made, part)
    assert isinstance(answered, AnsweredFrames)
    (expected,) = answers(subject.session, subject.task, subject.labelled.frames.select([1]))
    assert digest_of([*answered.answers]) == digest_of([expected])
    asyncio.run(stop_run("run"))
    stopped = answer_chunk(made, part)
    chunk._stopped.clear()
    assert stopped == CannotAnswer("", "nobody waits for the answers")


def test_what_costs_little_stays_here_and_is_said(subject, monkeypatch):
    monkeypatch.setattr(pools, "_WORTH_OWN_S", 1e6)
    said = list[str]()
    with ClusterPool(ClusterAddress(count=2), said.append) as pool:
        assert subject.answered(pool) == subject.expected
    assert said == ["cluster: what takes less than 1e+06 s is answered here"]


def test_a_stream_is_answered_here_since_each_frame_needs_the_one_before(subject):
    with ClusterPool(ClusterAddress(count=2), lambda _: None) as pool:
        frames = replace(subject.labelled.frames, states={"state": "next"})
        assert not pools._is_sent(subject.runnable, frames)
        assert pool._stretch is None


def test_workers_are_alike_only_where_all_that_computes_is():
    mine = worker_facts()
    assert why_unlike(mine, mine) == ""
    assert "lacks" in why_unlike(replace(mine, flags=mine.flags | {"amx_tile"}), mine)
    assert "which this one lacks" in why_unlike(mine, replace(mine, flags=mine.flags | {"amx_tile"}))
    assert why_unlike(mine, replace(mine, packages={**mine.packages, "numpy": "0"})).startswith("it has numpy 0,")
    assert why_unlike(mine, replace(mine, edgeopt="0.0.1-ab")).startswith("it has edgeopt 0.0.1-ab")
    assert "and this is" in why_unlike(mine, replace(mine, architecture="riscv64"))
    assert "ModuleNotFoundError" in why_unlike(mine, ModuleNotFoundError("edgeopt"))
    assert isinstance(mine, WorkerFacts)


@pytest.mark.parametrize("text", ["tcp://lab:8786", "tls://10.0.0.1:8786", "lab:8786", "tcp://[::1]:8786"])
def test_a_scheduler_is_named_by_its_address(text):
    assert read_cluster_address(text) == ClusterAddress(text)


def test_workers_of_this_machine_are_named_by_their_number(monkeypatch):
    monkeypatch.setattr("edgeopt.measurement.accuracy.cluster.address.logical_cores", lambda: 8)
    assert read_cluster_address("local:3").workers(4) == 3
    assert [read_cluster_address("local").workers(threads) for threads in (1, 4, 16)] == [8, 2, 1]


@pytest.mark.parametrize("text", ["nonsense", "local:0", "local:", "local:two", "tcp://lab", " "])
def test_what_is_no_address_is_one_line(text):
    with pytest.raises(EdgeoptError, match="is no cluster"):
        read_cluster_address(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits_detector", "-t", "cpu", "--cluster", "tcp://127.0.0.1:1"), "no scheduler answers at"),
        (("digits_detector", "-t", "cpu", "--cluster", "nonsense"), "'nonsense' is no cluster"),
        (("tiny_lm", "-t", "cpu", "--cluster", "local:2"), "--cluster is for a single model of frames"),
        (
            ("digits_detector", "-t", "cpu", "--on", "ssh://a@b", "--cluster", "local"),
            "leave --on out, or --cluster",
        ),
    ],
)
def test_a_command_that_cannot_use_the_cluster_is_refused_in_one_line(words, said, monkeypatch, tmp_path):
    monkeypatch.setattr("edgeopt.system.cluster.dask.CONNECT_S", 1)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["optimize", *words])
    assert shown.exit_code == 1
    assert said in shown.output
    assert "Traceback" not in shown.output
    assert not list(tmp_path.glob("out/*"))
