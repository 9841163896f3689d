"""The cost of a fleet as it grows: the client, the scheduler and what lies on disk, with the real code of each.

    python benchmarks/scale.py disk plan page                      # no cluster
    python benchmarks/scale.py idle cells held sent                # a scheduler, workers, TLS
    python benchmarks/scale.py idle --workers 10 30 100 --plain    # without TLS

Scheduler and workers are processes of Dask's distributed; many workers share a process, since what is measured is the
scheduler. A cell runs as ever (its files are laid, its output is packed, sent, stored and forgotten) except for its
command: a worker repeats the lines and the files of one real `edgeopt optimize` that ran before. All times are CPU time
of a process, which does not depend on neighbours' load as wall time does. A message is one write or read of a
connection at the scheduler: distributed packs several small ones together.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Silence
from edgeopt.report.formats import Paper, render, write_pages
from edgeopt.system.cluster import dask as dask_cluster
from edgeopt.system.cluster.store import MissingFiles, root, send, store
from edgeopt.system.disk.wheel import make_wheel
from edgeopt.verbs.fleet import work
from edgeopt.verbs.fleet.news import CellNews
from edgeopt.verbs.fleet.plan import read_plan
from edgeopt.verbs.fleet.result import RESULT, CellResult, FleetResult
from edgeopt.verbs.fleet.run import _kept, requests_of, run_fleet
from edgeopt.verbs.fleet.summary import summarize

PICTURES, PICTURE_BYTES = 128, 160_000
"""Files of one workload's calibration, as large as COCO's pictures are."""
SETTLE_S = 4.0
"""Seconds until new workers are known everywhere and heartbeats have taken their pace."""


class QuietFleet(Silence):
    """A listener of a fleet that keeps quiet."""

    def begins(self, devices: Sequence[str]) -> None:
        """Ignore it."""

    def cell_news(self, news: CellNews) -> None:
        """Ignore it."""


@dataclass(frozen=True)
class Recording:
    """Output and files of one real cell."""

    lines: tuple[str, ...]
    out: Path
    cpu_s: float


def cpu_s(process: psutil.Process | None = None) -> float:
    """Return the CPU time of a process, of this one without."""
    if process is None:
        return time.process_time()
    times = process.cpu_times()
    return times.user + times.system


def rss_mb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


def show(**values: object) -> None:
    """Print one row, and write it out at once: a long run may be cut."""
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in values.items()}
    print("  ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items()), flush=True)


def slope(rows: Sequence[tuple[float, float]]) -> str:
    """Return what one more costs, and the exponent with which the cost grows (1: in proportion)."""
    x, y = np.array(rows, float).T
    each, fixed = np.polyfit(x, y, 1)
    power = np.polyfit(np.log(x), np.log(np.maximum(y, 1e-9)), 1)[0]
    return f"fit {fixed:.3g} + {each:.3g} n; power {power:.2f}"


# --- a plan, and a recorded cell


def write_plan(folder: Path, devices: int, workloads: int = 1, *, on: bool = True) -> Path:
    """Write a plan of the shipped detector with pictures of calibration."""
    pictures = folder / "pictures"
    if not pictures.exists():
        pictures.mkdir(parents=True)
        for i in range(PICTURES):
            (pictures / f"{i:012d}.jpg").write_bytes(np.random.default_rng(i).bytes(PICTURE_BYTES))
    parts = ['[options]\ntime-limit = "60s"\ncalib = "pictures"\n']
    parts += [f'[workloads.w{i}]\nmodel = "digits_detector"\nbudget = "{i + 1}ms"\n' for i in range(workloads)]
    place = 'on = "ssh://board"\n' if on else ""  # else only one cell of this machine would run at a time
    parts += [f"[devices.d{i}]\n{place}" for i in range(devices)]
    file = folder / f"nightly-{devices}-{workloads}.toml"
    file.write_text("\n".join(parts))
    return file


def record(folder: Path, stored: Path | None) -> Recording:
    """Run one real cell, or take up the one that an earlier run stored."""
    stored = stored or folder / "recorded"
    said = stored / "said.json"
    if not said.is_file():
        (stored / "files" / "work").mkdir(parents=True)
        lines, teller = list[str](), work._teller
        work._teller = lambda _: lines.append
        words = ("optimize", "--target", "cpu", "--time-limit", "60s", "--", "digits_detector")
        before = psutil.Process().cpu_times()
        code, last = work._run(work.CellRequest("it", words, {}, "work", False), stored / "out", stored / "files", ())
        after = psutil.Process().cpu_times()
        work._teller = teller
        if not (stored / "out" / "report.json").is_file():
            raise SystemExit(f"edgeopt optimize ended with {code}: {last}")
        used = after.children_user + after.children_system - before.children_user - before.children_system
        said.write_text(json.dumps({"lines": lines, "cpu_s": used, "code": code}))
    values = json.loads(said.read_text())
    return Recording(tuple(values["lines"]), stored / "out", values["cpu_s"])


# --- without a cluster


def disk(folder: Path, recording: Recording) -> None:
    """Sizes of what one cell makes, and of what a device gets."""
    packed = work._packed(recording.out)
    begun = cpu_s()
    wheel = make_wheel()
    wheel_s = cpu_s() - begun
    whole = sum(path.stat().st_size for path in recording.out.rglob("*") if path.is_file())
    show(what="one cell", lines_told=len(recording.lines), command_cpu_s=recording.cpu_s, candidates_bytes=whole)
    show(what="its result message", bytes=len(packed))
    place = unpacked(packed, folder / "unpacked")
    sizes = {path.relative_to(place).as_posix(): path.stat().st_size for path in place.rglob("*") if path.is_file()}
    show(what="its stored folder", files=len(sizes), bytes=sum(sizes.values()))
    show(what="its largest files", **dict(sorted(sizes.items(), key=lambda item: -item[1])[:6]))
    show(what="edgeopt's wheel", bytes=len(wheel.data), cpu_s_to_make=wheel_s)
    plan = read_plan(write_plan(folder, 1))
    begun = cpu_s()
    request = requests_of(plan.cells, "1")[plan.cells[0].name]
    mb = PICTURES * PICTURE_BYTES / 1e6
    show(what="hashing", mb=mb, files=len(request.files), cpu_s=cpu_s() - begun)
    show(what="one request", files=len(request.files), pickled_bytes=pickled(request))


def pickled(value: object) -> int:
    from distributed.protocol import dumps
    from distributed.protocol.serialize import ToPickle

    return sum(len(frame) for frame in dumps(ToPickle(value)))


def unpacked(packed: bytes, place: Path) -> Path:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
    return place


def plan(folder: Path, _: Recording, most: int = 100_000) -> None:
    """Time and memory to read a plan and to make all requests, as the fleet grows."""
    sizes = [count for count in (100, 1_000, 10_000, 100_000) if count <= most]
    read, made = list[tuple[float, float]](), list[tuple[float, float]]()
    for count in sizes:
        file = write_plan(folder, count)
        memory, begun = rss_mb(), cpu_s()
        cells = read_plan(file).cells
        read.append((count, cpu_s() - begun))
        begun = cpu_s()
        requests = requests_of(cells, "1")
        made.append((count, cpu_s() - begun))
        show(
            what="plan",
            cells=count,
            file_kb=file.stat().st_size / 1e3,
            read_cpu_s=read[-1][1],
            requests_cpu_s=made[-1][1],
            rss_mb_more=rss_mb() - memory,
        )
        del cells, requests
    show(what="read", fit=slope(read))
    show(what="requests", fit=slope(made))


def page(folder: Path, recording: Recording) -> None:
    """Measure --resume with finished cells, their memory, and the table and pages of many cells."""
    count = 300
    file = write_plan(folder, count)
    cells = read_plan(file)
    requests = requests_of(cells.cells, "1")
    packed, out = work._packed(recording.out), folder / "out"
    for cell in cells.cells:
        place = unpacked(packed, out / "cells" / cell.name)
        run = work.CellRun(requests[cell.name].key, 0, "tcp://w", "m", "cpu", 0.0, 0.0, 1.0, recording.lines[-12:])
        values = {name: getattr(run, name) for name in run.__dataclass_fields__} | {"packed": ""}
        (place / "cell.json").write_text(json.dumps(values))
    memory, begun = rss_mb(), cpu_s()
    kept = _kept(cells, out, requests)
    assert len(kept) == count, "every cell is kept"
    used = cpu_s() - begun
    show(what="resume", cells=count, cpu_ms_a_cell=1e3 * used / count, rss_kb_a_cell=1e3 * (rss_mb() - memory) / count)
    report, rows = read_report(out / "cells" / cells.cells[0].name, ModelReport), dict[str, list[tuple[float, float]]]()
    for size in (100, 1_000, 10_000):
        ran = tuple(made_cell(i, report) for i in range(size))
        result = FleetResult("nightly", out, ran, {cell.name: {"p50_ms": 1.0, "score": 0.5} for cell in ran})
        times = {
            "overlaps": timed(lambda result=result: result.overlaps),
            "summarize": timed(lambda result=result: summarize(result)),
            "terminal": timed(lambda result=result: render(summarize(result), "terminal", Paper(80))),
            "pages": timed(lambda result=result: write_pages(summarize(result), out, RESULT)),
        }
        for name, used in times.items():
            rows.setdefault(name, []).append((size, used))
        sizes = {f"{kind}_kb": (out / f"{RESULT}.{kind}").stat().st_size / 1e3 for kind in ("json", "md", "html")}
        show(what="page", rows=size, **{f"{name}_cpu_s": used for name, used in times.items()}, **sizes)
    for name, points in rows.items():
        show(what=name, fit=slope(points))


def made_cell(i: int, report: Any) -> CellResult:
    """Return a cell that ended, ten to a device, one after the other."""
    run = work.CellRun("k", 0, "tcp://w", "m", "cpu", 0.0, 60.0 * i, 60.0 * i + 60, ())
    return CellResult(f"w{i % 10}-d{i // 10}-cpu", f"w{i % 10}", f"d{i // 10}", "cpu", run, report, "")


def timed(action: Callable[[], object]) -> float:
    begun = cpu_s()
    action()
    return cpu_s() - begun


def forget(folder: Path, _: Recording) -> None:
    """Time the work of a worker after each cell: it looks for what nobody used for a month."""
    rows = []
    for count in (100, 1_000, 10_000):
        shutil.rmtree(root(), ignore_errors=True)
        for i in range(count):
            store(hashlib.sha256(data := str(i).encode()).hexdigest(), data)
        rows.append((count, timed(lambda: [work.forget_cell("none") for _ in range(5)]) / 5))
        show(what="forget", stored_files=count, cpu_ms=1e3 * rows[-1][1])
    shutil.rmtree(root(), ignore_errors=True)
    show(what="forget", fit=slope(rows))


def scrape(folder: Path, recording: Recording) -> None:
    """Measure the bytes of one model's counters on the wire, and the cost of reading them on both sides together."""
    from urllib.request import urlopen

    from edgeopt.runtime.runtime import Runtime
    from edgeopt.runtime.stats.exporters import export

    with Runtime.load(recording.out / "bundle") as runtime:
        for _ in range(40):
            runtime.predict(np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8))
        with export("prometheus", {"door": runtime.stats}, "127.0.0.1:0") as page:
            address = str(page.address)
            address = address if address.startswith("http") else f"http://{address}"
            size = len(urlopen(address).read())
            begun = cpu_s()
            for _ in range(50):
                urlopen(address).read()
            show(what="scrape", bytes=size, device_and_scraper_cpu_ms=1e3 * (cpu_s() - begun) / 50)


# --- processes of a cluster


def scheduler_process(pipe: Any, security: Any) -> None:
    """Run a scheduler that counts what passes its connections."""
    import asyncio

    from distributed import Scheduler
    from distributed.comm import tcp

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    counts = {"read": 0, "written": 0, "bytes_read": 0, "bytes_written": 0, "accepted": 0, "opened": 0}
    read, write, connect = tcp.from_frames, tcp.TCP.write, tcp.BaseTCPConnector.connect
    handle = tcp.BaseTCPListener._handle_stream

    async def counting_read(frames: Any, *args: Any, **kwargs: Any) -> Any:
        counts["read"] += 1
        counts["bytes_read"] += sum(memoryview(frame).nbytes for frame in frames)
        return await read(frames, *args, **kwargs)

    async def counting_write(self: Any, *args: Any, **kwargs: Any) -> int:
        size: int = await write(self, *args, **kwargs)
        counts["written"] += 1
        counts["bytes_written"] += size
        return size

    async def counting_connect(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts["opened"] += 1
        return await connect(self, *args, **kwargs)

    async def counting_handle(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts["accepted"] += 1
        return await handle(self, *args, **kwargs)

    tcp.from_frames, tcp.TCP.write = counting_read, counting_write
    tcp.BaseTCPConnector.connect, tcp.BaseTCPListener._handle_stream = counting_connect, counting_handle

    async def serve() -> None:
        options = {"security": security, "protocol": "tls"} if security else {}
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False, **options) as scheduler:
            me = psutil.Process()
            pipe.send(scheduler.address)
            while True:
                await asyncio.sleep(0.02)
                if pipe.poll():
                    if pipe.recv() == "end":
                        return
                    facts = {"cpu_s": cpu_s(me), "rss_mb": me.memory_info().rss / 1e6, "fds": me.num_fds()}
                    facts |= {"tasks": len(scheduler.tasks), "workers": len(scheduler.workers)}
                    pipe.send(counts | facts)

    asyncio.run(serve())


def worker_process(address: str, names: list[str], security: Any, recording: Recording, seconds: float) -> None:
    """Run workers whose cells repeat the recorded one."""
    import asyncio

    from distributed import Worker

    logging.getLogger("distributed").setLevel(logging.CRITICAL)

    def played(request: work.CellRequest, out: Path, *_: object) -> tuple[int, tuple[str, ...]]:
        tell = work._teller(request.key)
        for line in recording.lines:
            tell(line)
        shutil.copytree(recording.out, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*work._LEFT_OUT))
        time.sleep(seconds)
        return 0, recording.lines[-12:]

    known = dask_cluster.version()
    work._run, dask_cluster.version = played, lambda: known  # one device makes its wheel once, and not a hundred

    async def serve() -> None:
        options = {"security": security, "protocol": "tls"} if security else {}
        with tempfile.TemporaryDirectory() as place:
            workers = [
                Worker(
                    address,
                    nthreads=1,
                    name=name,
                    resources={name: 1},
                    memory_limit=0,
                    local_directory=place,
                    host="127.0.0.1",
                    dashboard=False,
                    **options,
                )
                for name in names
            ]
            await asyncio.gather(*workers)
            await asyncio.gather(*(worker.finished() for worker in workers))

    asyncio.run(serve())


class Cluster:
    """A scheduler and workers in processes of their own."""

    def __init__(self, address: str, pipe: Any, security: Any) -> None:
        self.address, self.pipe, self.security = address, pipe, security
        self.empty = self.facts()

    def facts(self) -> dict[str, float]:
        """Return what the scheduler counted so far."""
        self.pipe.send("facts")
        facts: dict[str, float] = self.pipe.recv()
        return facts

    def client(self) -> Any:
        """Return a client of it."""
        import distributed

        return distributed.Client(self.address, security=self.security, timeout=60)


@contextmanager
def cluster(workers: int, recording: Recording, *, plain: bool, seconds: float = 0.0) -> Iterator[Cluster]:
    """Run a scheduler and so many workers, `d0` to `dN`."""
    import distributed

    security = None if plain else distributed.Security.temporary()
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    leader = spawn.Process(target=scheduler_process, args=(other, security), daemon=True)
    leader.start()
    made = Cluster(pipe.recv(), pipe, security)
    names = [f"d{i}" for i in range(workers)]
    crew = spawn.Process(target=worker_process, args=(made.address, names, security, recording, seconds), daemon=True)
    crew.start()
    try:
        while made.facts()["workers"] < workers:
            time.sleep(0.2)
        yield made
    finally:
        crew.kill()
        pipe.send("end")
        leader.join(10)
        leader.kill()


def between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}


# --- with a cluster


def idle(folder: Path, recording: Recording, *, workers: Sequence[int], plain: bool, seconds: float = 12.0) -> None:
    """Measure the cost of idle workers for a scheduler."""
    rows, memory, files = list[tuple[float, float]](), list[tuple[float, float]](), list[tuple[float, float]]()
    for count in workers:
        with cluster(count, recording, plain=plain) as made:
            joined = made.facts()
            time.sleep(SETTLE_S)
            before, begun = made.facts(), time.monotonic()
            time.sleep(seconds)
            after, took_s = made.facts(), time.monotonic() - begun
        used = between(before, after)
        rows.append((count, used["cpu_s"] / took_s))
        memory.append((count, after["rss_mb"]))
        files.append((count, after["fds"]))
        show(
            what="idle",
            workers=count,
            cpu_share=rows[-1][1],
            messages_a_s=(used["read"] + used["written"]) / took_s,
            bytes_a_s=(used["bytes_read"] + used["bytes_written"]) / took_s,
            rss_mb=after["rss_mb"],
            fds=after["fds"],
            handshakes=joined["accepted"] + joined["opened"],
            joining_cpu_s=joined["cpu_s"] - made.empty["cpu_s"],
        )
    for name, points in {"cpu share": rows, "rss MB": memory, "fds": files}.items():
        show(what=name, fit=slope(points))


def cells(folder: Path, recording: Recording, *, workers: Sequence[int], plain: bool) -> None:
    """Measure the cost of cells for scheduler and client beyond heartbeats, with the real client."""
    scheduler, rows = list[tuple[float, float]](), []
    runs = [(count, 4) for count in workers] + [(workers[0], 16)]
    for count, each in runs:
        file = write_plan(folder, count, each)
        with cluster(count, recording, plain=plain) as made, connected(made):
            time.sleep(SETTLE_S)
            resting, started = made.facts(), time.monotonic()
            time.sleep(SETTLE_S)
            before, begun = made.facts(), cpu_s()
            rest_s, started = time.monotonic() - started, time.monotonic()
            beats = {name: value / rest_s for name, value in between(resting, before).items()}
            result = run_fleet(
                file, out=folder / f"out-{count}-{each}", resume=False, scheduler=made.address, hears=QuietFleet()
            )
            after, mine, took_s = made.facts(), cpu_s() - begun, time.monotonic() - started
        assert result.exit_code == 0, [cell.problem for cell in result.cells][:3]
        assert not result.overlaps
        number, used = len(result.cells), between(before, after)
        used |= {name: used[name] - beats[name] * took_s for name in ("cpu_s", "read", "written")}  # heartbeats
        rows.append((number, mine))
        scheduler.append((number, used["cpu_s"]))
        show(
            what="cells",
            workers=count,
            cells=number,
            seconds=took_s,
            scheduler_cpu_ms_a_cell=1e3 * used["cpu_s"] / number,
            client_cpu_ms_a_cell=1e3 * mine / number,
            messages_a_cell=(used["read"] + used["written"]) / number,
            kb_a_cell=(used["bytes_read"] + used["bytes_written"]) / number / 1e3,
            connections=used["accepted"] + used["opened"],
            fds=after["fds"],
            rss_mb_more=used["rss_mb"],
        )
    show(what="scheduler CPU s", fit=slope(scheduler))
    show(what="client CPU s", fit=slope(rows))


@contextmanager
def connected(made: Cluster) -> Iterator[None]:
    """Give the certificates of a cluster to whoever connects by its address, as a configuration of Dask does."""
    import dask

    if made.security is None:
        yield
        return
    security = made.security
    values = {
        f"distributed.comm.tls.{name}": value
        for name, value in {
            "ca-file": security.tls_ca_file,
            "client.cert": security.tls_client_cert,
            "client.key": security.tls_client_key,
        }.items()
    }
    with dask.config.set({**values, "distributed.comm.require-encryption": True}):
        yield


def held(folder: Path, recording: Recording, *, workers: Sequence[int], plain: bool, seconds: float = 8.0) -> None:
    """Measure the cost of cells that wait at the scheduler for a busy device while other workers are idle."""
    for files in (PICTURES, 0):
        rows = list[tuple[float, float]]()
        (cell,) = read_plan(write_plan(folder, 1)).cells
        request = next(iter(requests_of([cell], "1").values()))
        mapping = dict(islice(request.files.items(), files))
        requests = [work.CellRequest(f"{i:024d}", request.words, mapping, request.folder, False) for i in range(4_000)]
        with cluster(10, recording, plain=plain, seconds=600) as made, made.client() as client:
            submitted, futures = 0, list[Any]()
            for count in (500, 4_000):
                before = made.facts()
                futures += [
                    client.submit(work.run_cell, each, key=f"cell-{files}-{each.key}", resources={"d0": 1}, pure=False)
                    for each in requests[submitted:count]
                ]
                while made.facts()["tasks"] < count:
                    time.sleep(0.1)
                time.sleep(SETTLE_S)
                waiting, begun = made.facts(), time.monotonic()
                time.sleep(seconds)
                after, took_s = made.facts(), time.monotonic() - begun
                used, new = between(before, waiting), count - submitted
                rows.append((count, between(waiting, after)["cpu_s"] / took_s))
                show(
                    what="held",
                    files_in_a_request=len(mapping),
                    cells=count,
                    scheduler_kb_a_cell=1e3 * used["rss_mb"] / new,
                    submit_cpu_ms_a_cell=1e3 * used["cpu_s"] / new,
                    kb_sent_a_cell=(used["bytes_read"] + used["bytes_written"]) / new / 1e3,
                    cpu_share_while_they_wait=rows[-1][1],
                )
                submitted = count
            for future in futures:
                future.release()


def sent(folder: Path, recording: Recording, *, plain: bool, workers: Sequence[int]) -> None:
    """Measure the cost of files on their way to a worker, through the scheduler."""
    with cluster(1, recording, plain=plain) as made, made.client() as client:
        (address,) = client.scheduler_info(n_workers=-1)["workers"]
        for count, size in ((200, 1_000), (200, PICTURE_BYTES), (40, 4_000_000)):
            blobs = [np.random.default_rng(i).bytes(size) for i in range(count)]
            places = dict[str, Path]()
            for i, blob in enumerate(blobs):
                (folder / str(i)).write_bytes(blob)
                places[hashlib.sha256(blob).hexdigest()] = folder / str(i)
            before, begun = made.facts(), cpu_s()
            send(client, MissingFiles(address, frozenset(places)), places)
            after, mine = made.facts(), cpu_s() - begun
            used = between(before, after)
            show(
                what="sent",
                files=count,
                bytes_each=size,
                scheduler_cpu_ms_a_file=1e3 * used["cpu_s"] / count,
                client_cpu_ms_a_file=1e3 * mine / count,
                messages_at_the_scheduler=used["read"] + used["written"],
                bytes_at_the_scheduler_a_byte=(used["bytes_read"] + used["bytes_written"]) / (count * size),
            )


PARTS: dict[str, Callable[..., None]] = {
    "disk": disk,
    "plan": plan,
    "page": page,
    "forget": forget,
    "scrape": scrape,
    "idle": idle,
    "cells": cells,
    "held": held,
    "sent": sent,
}
_NEED_CLUSTER = ("idle", "cells", "held", "sent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which to measure: {', '.join(PARTS)}; all without")
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 30, 100], help="sizes of clusters")
    parser.add_argument("--plain", action="store_true", help="TCP in place of TLS")
    parser.add_argument("--recorded", type=Path, help="folder in which the real cell is kept for the next time")
    asked_for = parser.parse_args()
    if unknown := [part for part in asked_for.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}: parts are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        recording = record(folder, asked_for.recorded)
        for part in asked_for.parts or PARTS:
            print(f"== {part}, load {os.getloadavg()[0]:.1f}", flush=True)
            more = {"workers": asked_for.workers, "plain": asked_for.plain} if part in _NEED_CLUSTER else {}
            PARTS[part](folder, recording, **more)


if __name__ == "__main__":
    sys.exit(main())
