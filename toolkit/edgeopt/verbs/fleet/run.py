"""The life of one run of a fleet: cells are sent to workers, and each result is on disk before the next is awaited."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
import tarfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.report.formats import write_pages
from edgeopt.system.cluster.dask import require_dask, version
from edgeopt.system.cluster.store import MissingFiles, send
from edgeopt.system.disk.files import write_beside
from edgeopt.system.disk.locks import lock_folder
from edgeopt.system.disk.tars import files_of_tar
from edgeopt.system.text import plural, short
from edgeopt.system.toml import read_json
from edgeopt.verbs.bundle.combine import combine_bundles, size_of
from edgeopt.verbs.fleet import PURPOSE, work
from edgeopt.verbs.fleet.cluster import open_cluster
from edgeopt.verbs.fleet.news import CellNews, FleetListener
from edgeopt.verbs.fleet.plan import FleetCell, FleetPlan, read_plan
from edgeopt.verbs.fleet.result import RESULT, CellResult, FleetBundle, FleetResult, grouped, read_before, result_of
from edgeopt.verbs.fleet.summary import cell_line, summarize
from edgeopt.verbs.fleet.work import CellRequest, CellRun
from edgeopt.verbs.remote.command import CommandWord
from edgeopt.verbs.remote.job import write_below
from edgeopt.verbs.remote.mirror import mirrored

SentFiles = Mapping[str, tuple[str, str]]
"""Names in the mirror to hashes, and to the places where the files lie here."""
_CELLS = "cells"
_CELL = "cell.json"
_PREFIX = "edgeopt-"
_MOST_SENT = 3
"""Times that the files of a cell are sent: it may move from worker to worker."""
_MOST_AHEAD, _LEAST_AHEAD = 10_000, 2
"""Cells that a scheduler holds at one time, of all devices, and of each device at least.

Each cell that waits takes the scheduler's memory, and work stealing looks at it every second: 10,000 devices with
1,000 models each would be ten million.
"""
_RETRIES = 2
"""Times that a cell is run again whose worker fails in our own code, as on a full disk."""


def run_fleet(file: Path, *, out: Path | None, resume: bool, scheduler: str, hears: FleetListener) -> FleetResult:
    """Run every cell of a fleet, and write what became of it.

    Args:
        file: The fleet, a TOML file.
        out: Where results go; None: `out/NAME`.
        resume: Whether cells stay finished that an earlier run finished, where all that enters is the same.
        scheduler: Address of a Dask scheduler; empty: the file's, or workers of this machine.
        hears: Hears of progress.

    Raises:
        EdgeoptError: On what is wrong with the file, the cluster or the folder.
        KeyboardInterrupt: What is finished stays on disk.
    """
    plan = read_plan(file)
    folder = out or Path("out") / plan.name
    with lock_folder(folder, held="another fleet writes into", remedy="choose another folder with -o"):
        before = read_before(folder)
        known = version()
        requests = requests_of(plan.cells, known)
        kept = _kept(plan, folder, requests) if resume else {}
        todo = [cell for cell in plan.cells if cell.name not in kept]
        if kept:
            hears.say(f"{plural(len(kept), 'cell')} of {len(plan.cells)} finished before: kept")
        results = dict(kept)
        if todo:
            devices = tuple(dict.fromkeys(cell.device for cell in todo))
            with open_cluster(scheduler or plan.scheduler, devices, hears.say) as client:
                _Course(client, folder, requests, results, hears, plan.prices).run(todo, len(plan.cells))
        ended = tuple(results[cell.name] for cell in plan.cells)
        if todo:
            hears.say("put the bundles of each workload together")
        bundles = write_bundles(ended, folder / _CELLS, folder)
        result = FleetResult(plan.name, folder, ended, before, bundles)
        write_pages(summarize(result), folder, RESULT)
        return result


def requests_of(cells: Sequence[FleetCell], known: str) -> dict[str, CellRequest]:
    """Return what workers are asked, by the names of the cells.

    Args:
        cells: Of the plan. Those with the same command read the same files, which are looked up once for all devices.
        known: Version of edgeopt, as `dask.version`.
    """
    files: dict[tuple[CommandWord, ...], SentFiles] = {}
    requests = {}
    for cell in cells:
        if cell.words not in files:
            files[cell.words] = _files_of(cell)
        requests[cell.name] = request_of(cell, known, files[cell.words])
    return requests


def _files_of(cell: FleetCell) -> SentFiles:
    return {name: (sha256_of(path), str(path.absolute())) for name, path in cell.files.items()}


def request_of(cell: FleetCell, known: str, files: SentFiles | None = None) -> CellRequest:
    """Return what a worker is asked; its key is the hash of all that enters.

    Args:
        cell: Of the plan.
        known: Version of edgeopt, as `dask.version`.
        files: What the cell reads; None: it is looked up.
    """
    files = _files_of(cell) if files is None else files
    words = [word.there for word in cell.words]
    on = ["--on", cell.on] if cell.on else []
    command = (words[0], *on, *words[1:])
    enters = [known, command, sorted((name, digest) for name, (digest, _) in files.items()), cell.device]
    key = hashlib.sha256(json.dumps(enters).encode()).hexdigest()[:24]
    return CellRequest(key, command, files, mirrored(Path()), not cell.on, cell.target)


def _kept(plan: FleetPlan, folder: Path, requests: Mapping[str, CellRequest]) -> dict[str, CellResult]:
    """Return the results of cells that are finished and whose key is the same."""
    kept = {}
    for cell in plan.cells:
        place = folder / _CELLS / cell.name
        run = _read_run(place)
        if run is not None and run.key == requests[cell.name].key and run.is_finished:
            kept[cell.name] = result_of(
                _names(cell), place, run, is_kept=True, price_per_h=plan.prices.get(cell.device)
            )
    return kept


def _read_run(place: Path) -> CellRun | None:
    """Return how the cell of a folder ran; None where nothing is stored there."""
    try:
        values = read_json(place / _CELL, remedy="")
        return CellRun(**{**values, "lines": tuple(values["lines"]), "packed": b""})
    except (EdgeoptError, TypeError, KeyError):
        return None


def _names(cell: FleetCell) -> tuple[str, str, str, str]:
    return cell.name, cell.workload, cell.device, cell.target


def _unpack(run: CellRun, name: str, place: Path) -> str:
    """Write the files of a cell to their place, and return why not; empty where all are there."""
    place.mkdir(parents=True)
    try:
        for member, content in files_of_tar(io.BytesIO(run.packed), is_packed=True):
            write_below(f"{name}/{member.name}", {name: place}, content, member.size)
    except tarfile.ReadError as error:
        return str(error)
    except EdgeoptError as error:
        return error.problem
    return ""


class _Course:
    """Cells on their way."""

    def __init__(
        self,
        client: Any,
        folder: Path,
        requests: Mapping[str, CellRequest],
        results: dict[str, CellResult],
        hears: FleetListener,
        prices: Mapping[str, float],
    ) -> None:
        self._prices = prices
        self._client, self._folder, self._requests = client, folder, requests
        self._results, self._hears = results, hears
        self._sent = Counter[str]()
        self._ran = set[str]()
        self._cells: dict[str, FleetCell] = {}

    def run(self, cells: list[FleetCell], count: int) -> None:
        """Send all cells to workers that offer their devices, and store each result as it comes."""
        distributed = require_dask(PURPOSE)
        self._cells = {self._requests[cell.name].key: cell for cell in cells}
        self._hears.begins([cell.device for cell in cells])
        self._client.subscribe_topic(work.TOPIC, self._hear)
        self._hears.progress("cells", count - len(cells), count)
        waiting: dict[str, deque[FleetCell]] = {}
        for cell in cells:
            waiting.setdefault(cell.device, deque()).append(cell)
        ahead = max(_LEAST_AHEAD, _MOST_AHEAD // len(waiting))
        first = [queue.popleft() for queue in waiting.values() for _ in range(min(ahead, len(queue)))]
        running = {self._submit(cell): cell for cell in first}
        awaited = distributed.as_completed(list(running))
        try:
            for future in awaited:
                cell = running[future]
                answer = self._answer(future, count)
                del running[future]
                future.release()  # else the worker keeps the packed bundle in its memory until the fleet ends
                if isinstance(answer, MissingFiles) and self._sent[cell.name] == _MOST_SENT:
                    answer = f"files that were sent to {answer.worker} do not stay there: is its disk full?"
                if isinstance(answer, MissingFiles):
                    self._send(cell, answer)
                    future = self._submit(cell, again=self._sent[cell.name])
                    running[future] = cell
                    awaited.add(future)
                    continue
                if queue := waiting[cell.device]:
                    following = queue.popleft()
                    future = self._submit(following)
                    running[future] = following
                    awaited.add(future)
                self._store(cell, answer)
                self._hears.progress("cells", len(self._results), count)
        except BaseException:
            keys = frozenset(request.key for request in self._requests.values())
            self._leave(list(running), keys)
            raise
        finally:
            self._client.unsubscribe_topic(work.TOPIC)

    def _submit(self, cell: FleetCell, again: int = 0) -> Any:
        request = self._requests[cell.name]
        return self._client.submit(
            work.run_cell,
            request,
            key=f"{_PREFIX}{request.key}-{again}",
            resources={cell.device: 1},
            retries=_RETRIES,
            pure=False,
        )

    def _answer(self, future: Any, count: int) -> CellRun | MissingFiles | str:
        """Return what a worker answers, or why it does not.

        Raises:
            UnavailableError: If the scheduler is gone.
        """
        if future.status == "finished":
            answer = future.result()
            return (
                answer if isinstance(answer, CellRun | MissingFiles) else "the worker answers in no way that is known"
            )
        if future.status == "error":
            error = future.exception()
            if type(error).__name__ == "KilledWorker":
                return "it ended every worker that ran it, as where memory does not suffice"
            return f"{type(error).__name__}: {short(str(error))}"
        text = f"the scheduler is gone; {len(self._results)} of {plural(count, 'cell')} are stored"
        raise UnavailableError(text, remedy="start it again; the same command with --resume goes on")

    def _send(self, cell: FleetCell, missing: MissingFiles) -> None:
        """Send files to a worker that has no way to them."""
        self._sent[cell.name] += 1
        places = dict(self._requests[cell.name].files.values())
        self._hears.say(f"sending {plural(len(missing.digests), 'file')} to {missing.worker}")
        send(self._client, missing, {digest: Path(place) for digest, place in places.items()})

    def _store(self, cell: FleetCell, answer: CellRun | str) -> None:
        """Write the result of a cell: its files first, then that it is finished."""
        place = self._folder / _CELLS / cell.name
        shutil.rmtree(place, ignore_errors=True)
        run = None if isinstance(answer, str) else answer
        if run is not None and (problem := _unpack(run, cell.name, place)):
            shutil.rmtree(place, ignore_errors=True)
            answer, run = f"what {run.worker} sends is no result: {problem}", None
        if run is not None:
            values = dataclasses.asdict(run.without_files()) | {"packed": ""}
            write_beside(place / _CELL, json.dumps(values, indent=2) + "\n")
            self._client.run(work.forget_cell, run.key, workers=[run.worker], on_error="ignore")
        problem, price = answer if isinstance(answer, str) else "", self._prices.get(cell.device)
        is_again = run is not None and run.key in self._ran  # two workloads of one model and the same options
        self._ran |= {run.key} if run is not None else set()
        result = result_of(_names(cell), place, run, problem, is_kept=is_again, price_per_h=price)
        self._results[cell.name] = result
        self._hears.cell_news(CellNews(cell.name, cell.device, is_over=True))
        self._hears.say(cell_line(result))

    def _hear(self, event: tuple[float, Mapping[str, str]]) -> None:
        """Tell that a cell began, or what its command says."""
        message = event[1]
        if cell := self._cells.get(str(message.get("key"))):
            worker, line = str(message.get("worker", "")), str(message.get("line", ""))
            self._hears.cell_news(CellNews(cell.name, cell.device, worker, line))

    def _leave(self, futures: list[Any], keys: frozenset[str]) -> None:
        """Let the workers end what runs; where they are gone nothing is to be ended."""
        try:
            self._client.cancel(futures)
            self._client.run(work.stop_cells, keys, on_error="ignore")
        except Exception:  # the cluster may be what failed
            return


# One bundle for each workload of a fleet, with what every device and target made of it.

_BUNDLES = "bundles"


def write_bundles(cells: Sequence[CellResult], places: Path, folder: Path) -> tuple[FleetBundle, ...]:
    """Combine the bundles of the cells of each workload; what stands in the way of one is told, and ends nothing.

    Args:
        cells: All of the fleet.
        places: Folder of the cells' own folders.
        folder: Of the fleet's results.
    """
    written = list[FleetBundle]()
    for workload, own in grouped(cells, "workload").items():
        place = folder / _BUNDLES / workload
        made = [cell for cell in own if (places / cell.name / "bundle").is_dir()]
        if not made:
            shutil.rmtree(place, ignore_errors=True)
            continue
        try:
            bundle = combine_bundles(
                [places / cell.name for cell in made], place, devices=[cell.device for cell in made]
            )
        except EdgeoptError as error:
            shutil.rmtree(place, ignore_errors=True)  # one of an earlier run would be taken for this one's
            written.append(FleetBundle(workload, problem=error.problem))
            continue
        labels = tuple(each.label for each in (bundle, *bundle.others))
        written.append(FleetBundle(workload, place, labels, size_of(bundle)))
    return tuple(written)
