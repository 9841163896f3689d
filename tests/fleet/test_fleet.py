"""A fleet on real Dask workers: who runs what, how often, and what is left when something in it dies."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep, time
from typing import TypeVar

import psutil
import pytest
from click.testing import CliRunner
from fixture_fleet import SCHEDULER, cluster
from fixture_models import model, numbers

from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError, UnavailableError
from edgeopt.graph.model import save_model
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.run import Silence
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.cluster.dask import version
from edgeopt.system.cluster.store import MissingFiles, machine_lock, store
from edgeopt.system.cluster.store import root as cluster_root
from edgeopt.system.declared.target import find_target
from edgeopt.system.disk import locks
from edgeopt.system.machine.processor import cpu_architecture
from edgeopt.verbs.fleet import work
from edgeopt.verbs.fleet.news import CellNews
from edgeopt.verbs.fleet.plan import read_plan
from edgeopt.verbs.fleet.result import FleetResult, read_before, result_of
from edgeopt.verbs.fleet.run import _unpack, request_of, run_fleet
from edgeopt.verbs.fleet.work import run_cell

T = TypeVar("T")
distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of sockets and loops that Dask leaves to the collector
    pytest.mark.usefixtures("root"),
]


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The folder of this machine's cells, of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Heard(Silence):
    """A listener that keeps all lines."""

    def __init__(self) -> None:
        self.lines = list[str]()
        self.done = list[int]()
        self.news = list[CellNews]()
        self.devices: Sequence[str] = ()

    def progress(self, what: str, done: int, of: int) -> None:
        self.done.append(done)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def begins(self, devices: Sequence[str]) -> None:
        self.devices = devices

    def cell_news(self, news: CellNews) -> None:
        self.news.append(news)
        if not news.line and not news.is_over:
            self.lines.append(f"{news.cell} began on {news.worker}")


def fleet_file(folder: Path, models: int, devices: Mapping[str, str]) -> Path:
    """Write a plan of small nets for devices, each with a target of its own."""
    parts = ['[options]\nrecipe = "tensors"\nsteps = "simplify"\nthreads = 1\n']
    for i in range(models):
        text = "net (float[1,3,16,16] x) => (float[1,8,16,16] y) { c = Conv<pads=[1,1,1,1]>(x, w) y = Relu(c) }"
        save_model(model(text, w=numbers(8, 3, 3, 3, seed=i)), folder / f"net{i}.onnx")
        parts.append(f'[workloads.net{i}]\nmodel = "net{i}.onnx"\n')
    parts += [f'[devices.{name}]\ntargets = ["{target}"]\n' for name, target in devices.items()]
    file = folder / "nightly.toml"
    file.write_text("\n".join(parts))
    return file


def write_target(folder: Path, name: str) -> str:
    """Write a profile of this machine's processor under another name."""
    text = f'name = "{name}"\ndevice = "cpu"\nexecutor = "onnxruntime"\ndescription = "it"\n'
    (folder / f"{name}.toml").write_text(text + 'providers = ["CPUExecutionProvider"]\nprecisions = ["fp32"]\n')
    return f"{name}.toml"


def commands() -> list[psutil.Process]:
    """Return the processes that run a cell's command of this test: others run beside it."""
    mine = str(cluster_root())
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "edgeopt.verbs.fleet.child" in (words := process.info["cmdline"] or []) and mine in " ".join(words)
    ]


def wait_for(what: Callable[[], list[T]]) -> T:
    """Return the first of what comes to be."""
    ends_s = monotonic() + 60
    while monotonic() < ends_s:
        if found := what():
            return found[0]
        sleep(0.02)
    raise AssertionError("nothing came")


def scored_cells() -> list[Path]:
    """Return the folders of cells whose original is scored: next they measure, for a second or more."""
    return [path.parents[2] for path in cluster_root().glob("cells/*/out/candidates/baseline/candidate.json")]


def written_bundles() -> Callable[[], list[Path]]:
    """Return what finds bundles that are written from now on: next comes the report."""
    since_s = time()
    files = cluster_root().glob
    return lambda: [path for path in files("cells/*/out/bundle/manifest.json") if path.stat().st_mtime > since_s]


def require_whole(result: FleetResult, count: int) -> None:
    assert len(result.cells) == count
    assert [cell.exit_code for cell in result.cells] == [0] * count, [cell.problem for cell in result.cells]
    assert all(cell.report and cell.p50_ms for cell in result.cells)
    assert result.overlaps == ()
    assert all((result.folder / "cells" / cell.name / "bundle" / "manifest.json").is_file() for cell in result.cells)
    assert not commands()


def test_each_cell_runs_once_on_a_worker_that_offers_its_device_and_alone(tmp_path, root):
    targets = {"alpha": "cpu", "beta": write_target(tmp_path, "b")}
    file, heard = fleet_file(tmp_path, 2, targets), Heard()
    with cluster("alpha", "beta", "gamma") as made:
        names = {each.worker_address: name for name, each in made.workers.items()}
        result = run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=heard)
    require_whole(result, 4)
    assert all(names[cell.run.worker] == cell.device for cell in result.cells)
    began = [line.split()[0] for line in heard.lines if " began on " in line]
    assert sorted(began) == sorted(cell.name for cell in result.cells), "each once"
    assert sorted(heard.devices) == ["alpha"] * 2 + ["beta"] * 2
    assert {(news.cell, news.device) for news in heard.news if news.line} == {
        (cell.name, cell.device) for cell in result.cells
    }
    assert [news.cell for news in heard.news if news.is_over] == [
        line.partition(":")[0] for line in heard.lines if ": PASS" in line
    ]
    assert not any("dashboard" in line for line in heard.lines), "this scheduler has none"
    assert [bundle.workload for bundle in result.bundles] == ["net0", "net1"]
    assert sorted(result.bundles[0].targets) == ["b@beta", f"{find_target('cpu').name}@alpha"]
    assert Runtime.load(result.bundles[0].folder, target="b").bundle.device == "beta"
    spans = sorted((cell.run.began_s, cell.run.ended_s) for cell in result.cells)
    assert all(first[1] <= then[0] for first, then in pairwise(spans)), "one machine measures"
    assert heard.done == sorted(heard.done)
    assert not any((root / "edgeopt" / "fleet" / "cells").iterdir()), "what was brought back is removed"
    again = Heard()
    kept = run_fleet(file, out=tmp_path / "out", resume=True, scheduler="", hears=again)
    assert all(cell.is_kept for cell in kept.cells)
    assert again.lines == ["4 cells of 4 finished before: kept"]


def test_a_worker_that_dies_in_the_middle_of_a_cell_loses_nothing(tmp_path):
    file, heard, results = fleet_file(tmp_path, 2, {"alpha": "cpu"}), Heard(), list[FleetResult]()
    asked = {"out": tmp_path / "out", "resume": False, "scheduler": "", "hears": heard}
    thread = threading.Thread(target=lambda: results.append(run_fleet(file, **asked)))
    thread.start()
    for phase in (commands, scored_cells, written_bundles):  # as it begins, measures, and writes what came of it
        wait_for(phase() if phase is written_bundles else phase)
        command = wait_for(commands)
        with suppress(psutil.NoSuchProcess):  # it may end just now
            command.parent().kill()
        command.wait(60)  # it sees its worker gone
    thread.join(120)
    (result,) = results
    require_whole(result, 2)
    made = [candidate for cell in result.cells for candidate in cell.report.candidates]
    assert BASELINE in {candidate.name for candidate in made if candidate.is_resumed}, "finished work is taken up"


def test_a_scheduler_that_is_gone_is_one_line_and_resume_runs_what_is_left_on_another(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.system.cluster.dask.CONNECT_S", 2)
    file, heard = fleet_file(tmp_path, 2, {"alpha": "cpu"}), Heard()
    with cluster("alpha") as made:

        def end_after_the_first() -> None:
            while not any("PASS" in line for line in heard.lines):
                sleep(0.05)
            made.close()

        thread = threading.Thread(target=end_after_the_first)
        thread.start()
        with pytest.raises(UnavailableError, match=r"the scheduler is gone; 1 of 2 cells are stored"):
            run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=heard)
        thread.join()
    before = [path.parent.name for path in (tmp_path / "out" / "cells").glob("*/cell.json")]
    with cluster("alpha") as restarted:
        address = restarted.scheduler_address
        result = run_fleet(file, out=tmp_path / "out", resume=True, scheduler=address, hears=Heard())
        workers = {str(nanny.worker_address) for nanny in restarted.workers.values()}
    require_whole(result, 2)
    kept, other = sorted(result.cells, key=lambda cell: not cell.is_kept)
    assert before == [kept.name]
    assert {other.run.worker} == workers


def test_two_workloads_of_one_command_run_once_and_cost_once(tmp_path):
    file = fleet_file(tmp_path, 1, {"alpha": "cpu"})
    with file.open("a", encoding="utf-8") as plan:
        plan.write('\n[workloads.twin]\nmodel = "net0.onnx"\n')
    result = run_fleet(file, out=tmp_path / "out", resume=False, scheduler="", hears=Heard())
    assert [cell.exit_code for cell in result.cells] == [0, 0]
    assert sorted(cell.is_kept for cell in result.cells) == [False, True]
    assert result.overlaps == ()


def test_a_worker_that_sees_no_file_of_ours_gets_them(tmp_path):
    (cell,) = read_plan(fleet_file(tmp_path, 1, {"alpha": "cpu"})).cells
    request = request_of(cell, version())
    away = {name: (digest, "/nowhere") for name, (digest, _) in request.files.items()}
    request = work.CellRequest(request.key, request.words, away, request.folder, is_here=True)
    missing = run_cell(request)
    assert isinstance(missing, MissingFiles)
    assert missing.digests == {digest for digest, _ in away.values()}
    (digest,) = missing.digests
    with pytest.raises(ValueError, match="another hash"):
        store(digest, b"something else")
    store(digest, (tmp_path / "net0.onnx").read_bytes())
    run = run_cell(request)
    assert not isinstance(run, MissingFiles)
    assert run.code == 0, run.lines
    (stored,) = (cluster_root() / "store").glob("*/*")
    work.forget_cell(run.key)
    assert stored.is_file()
    assert not (cluster_root() / "cells" / run.key).exists()
    os.utime(stored, (0, 0))
    work.forget_cell(run.key)
    assert not stored.exists(), "nobody used it for a month"


@pytest.mark.parametrize(("target", "shares"), [("cpu-arm64", True), ("cpu", False)])
def test_a_cell_that_times_nothing_shares_the_machine(tmp_path, monkeypatch, target, shares):
    """A cell for another processor, as for a simulated NPU, runs beside the like, not beside a timed cell."""
    if cpu_architecture() != "x86-64":
        pytest.skip("there are no times of cpu-arm64 on x86-64 alone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    request = work.CellRequest("key", ("optimize",), {}, "", is_here=True, target=target)
    with work._alone(request), open(machine_lock(), "rb+") as other:
        assert locks._is_taken(other, is_shared=True) == shares
    with work._alone(request), open(machine_lock(), "rb+") as other:
        assert not locks._is_taken(other, is_shared=False)


def test_files_are_sent_to_workers_that_ask_for_them(tmp_path, monkeypatch):
    """The worker is a thread of this process, so that it can be kept from seeing this machine's disk."""
    lay = work._lay
    monkeypatch.setattr(work, "_lay", lambda place, digest, origin: lay(place, digest, "/nowhere"))
    file, heard = fleet_file(tmp_path, 1, {"alpha": "cpu"}), Heard()
    options = {"nthreads": 1, "resources": {"alpha": 1}}
    with distributed.SpecCluster(
        workers={"alpha": {"cls": distributed.Worker, "options": options}}, scheduler=SCHEDULER
    ) as made:
        result = run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=heard)
    assert any(line.startswith("sending 1 file to ") for line in heard.lines)
    assert [cell.exit_code for cell in result.cells] == [0]


def test_files_that_do_not_stay_on_a_worker_end_the_cell_and_not_the_fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_lay", lambda *_: False)
    file, heard = fleet_file(tmp_path, 1, {"alpha": "cpu"}), Heard()
    options = {"nthreads": 1, "resources": {"alpha": 1}}
    with distributed.SpecCluster(
        workers={"alpha": {"cls": distributed.Worker, "options": options}}, scheduler=SCHEDULER
    ) as made:
        result = run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=heard)
    (cell,) = result.cells
    assert cell.exit_code == 1
    assert "do not stay there" in cell.problem
    assert sum(line.startswith("sending") for line in heard.lines) == 3


def test_a_scheduler_holds_few_cells_at_one_time_and_forgets_those_that_are_stored(tmp_path, monkeypatch):
    """Ten million cells would fill its memory, and the bundles of a night that of each worker."""
    monkeypatch.setattr(work, "_lay", lambda *_: False)
    monkeypatch.setattr("edgeopt.verbs.fleet.run._MOST_AHEAD", 0)
    monkeypatch.setattr("edgeopt.verbs.fleet.run._LEAST_AHEAD", 2)
    file, held = fleet_file(tmp_path, 8, {"alpha": "cpu"}), list[int]()
    options = {"nthreads": 1, "resources": {"alpha": 1}}
    with distributed.SpecCluster(
        workers={"alpha": {"cls": distributed.Worker, "options": options}}, scheduler=SCHEDULER
    ) as made:

        class Counting(Heard):
            def progress(self, what: str, done: int, of: int) -> None:
                super().progress(what, done, of)
                held.append(len(made.scheduler.tasks))

        heard = Counting()
        result = run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=heard)
    assert [cell.exit_code for cell in result.cells] == [1] * 8
    assert heard.done == list(range(9))
    assert max(held) <= 4, "two ahead, and two that are about to be forgotten"


def test_a_file_that_changed_since_the_fleet_began_is_one_line(tmp_path, monkeypatch):
    lay = work._lay

    def change(place: Path, digest: str, origin: str) -> bool:
        (tmp_path / "net0.onnx").write_bytes(b"something else")
        return lay(place, digest, origin)

    monkeypatch.setattr(work, "_lay", change)
    file = fleet_file(tmp_path, 1, {"alpha": "cpu"})
    options = {"nthreads": 1, "resources": {"alpha": 1}}
    with (
        distributed.SpecCluster(
            workers={"alpha": {"cls": distributed.Worker, "options": options}}, scheduler=SCHEDULER
        ) as made,
        pytest.raises(InvalidFileError, match="changed since it was first read"),
    ):
        run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=Heard())


def test_a_device_that_no_worker_offers_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.verbs.fleet.cluster._WORKERS_S", 0.5)
    file = fleet_file(tmp_path, 1, {"beta": "cpu"})
    with cluster("alpha") as made, pytest.raises(UnavailableError, match=r"no worker of tcp://.* offers beta") as said:
        run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=Heard())
    assert '--resources "beta=1"' in said.value.remedy


def test_of_many_missing_devices_a_line_names_some(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.verbs.fleet.cluster._WORKERS_S", 0.1)
    file = fleet_file(tmp_path, 1, {f"d{i}": "cpu" for i in range(500)})
    with cluster("alpha") as made, pytest.raises(UnavailableError, match=r"offers d0, .*, d9 and 490 others"):
        run_fleet(file, out=tmp_path / "out", resume=False, scheduler=made.scheduler_address, hears=Heard())


def test_no_scheduler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.system.cluster.dask.CONNECT_S", 1)
    file = fleet_file(tmp_path, 1, {"alpha": "cpu"})
    with pytest.raises(UnavailableError, match="no scheduler answers at"):
        run_fleet(file, out=tmp_path / "out", resume=False, scheduler="tcp://127.0.0.1:1", hears=Heard())


@pytest.mark.parametrize(
    "words", [b"", b"HTTP/1.1 400 Bad\r\n\r\n", b"\xff" * 4096, (1).to_bytes(8, "little") + b"\0" * 99]
)
def test_what_answers_in_place_of_a_scheduler_is_one_line(tmp_path, monkeypatch, words):
    monkeypatch.setattr("edgeopt.system.cluster.dask.CONNECT_S", 1)
    file = fleet_file(tmp_path, 1, {"alpha": "cpu"})
    held = []

    def speak() -> None:
        with suppress(OSError):
            while True:
                held.append(listening.accept()[0])
                held[-1].sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=speak, daemon=True).start()
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="no scheduler answers at"):
            run_fleet(file, out=tmp_path / "out", resume=False, scheduler=address, hears=Heard())
        listening.shutdown(socket.SHUT_RDWR)
    for each in held:
        each.close()


@pytest.mark.parametrize(
    ("names", "cut", "problem"),
    [(("report.json",), 30, ""), (("../x",), None, "nobody asked for"), (("a/../../x",), None, "")],
)
def test_a_result_that_is_none_fails_its_cell_and_writes_nothing_elsewhere(tmp_path, names, cut, problem):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    ran = work.CellRun("k", 0, "tcp://w:1", "m", "p", 0.0, 0.0, 1.0, (), packed.getvalue()[:cut])
    assert problem in _unpack(ran, "cell", tmp_path / "cells" / "cell") != ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_cell_that_fails_is_told_and_the_others_go_on(tmp_path):
    file = fleet_file(tmp_path, 2, {"alpha": "cpu"})
    (tmp_path / "net0.onnx").write_bytes(b"no model")
    shown = CliRunner().invoke(cli, ["fleet", str(file), "-o", str(tmp_path / "out"), "--json"])
    assert shown.exit_code == 1, shown.output
    failed, passed = json.loads(shown.stdout)["cells"]
    assert (failed["exit_code"], passed["exit_code"]) == (1, 0)
    assert failed["problem"]
    assert "Traceback" not in shown.output
    assert read_before(tmp_path / "out")["net1-alpha-cpu"]["p50_ms"] == passed["p50_ms"]
    again = Heard()
    fleet_file(tmp_path, 2, {"alpha": "cpu"})  # the model is mended
    result = run_fleet(file, out=tmp_path / "out", resume=True, scheduler="", hears=again)
    assert [(cell.exit_code, cell.is_kept) for cell in result.cells] == [(0, False), (0, True)]
    assert result.changes() == ("net0-alpha-cpu ends with 0, was 1",)


def test_a_cell_that_failed_is_run_again(tmp_path):
    (cell,) = read_plan(fleet_file(tmp_path, 1, {"alpha": "cpu"})).cells
    request = request_of(cell, version())
    words = tuple("nonsense" if word == "tensors" else word for word in request.words)
    run = run_cell(work.CellRequest("failing", words, request.files, request.folder, is_here=True))
    assert not isinstance(run, MissingFiles)
    assert (run.code, run.is_finished) == (1, False)
    assert result_of(("a", "b", "c", "d"), tmp_path, run).problem.startswith("no recipe named 'nonsense'")
