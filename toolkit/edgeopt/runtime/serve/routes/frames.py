"""The route of a model that sees: `/v1/frames` takes a picture and gives its answer as JSON."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeopt.graph.tensors import ReducedPicture
from edgeopt.recipes.inputs.jpeg import ReducedDecoding
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.asking import answers, read_body, require_kind, while_there
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.request_queue import RequestQueue
from edgeopt.runtime.serve.routes.forms import FORM, read_form
from edgeopt.runtime.serve.routes.pictures import LARGE_PIXELS, read_sample, require_bounded
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer

_MOST_LARGE_WAITING = 8
"""Large pictures whose bytes wait in memory; further ones are refused."""


class PictureRoute:
    """Answers requests with a picture."""

    def __init__(
        self,
        model: str,
        holder: Holder[Runtime],
        limits: Limits,
        tally: Tally,
        tracer: SpanTracer,
        decoding: ReducedDecoding | None = None,
    ) -> None:
        """Take the model; `tally` has the stages `queue`, `decode` and those of the runtime.

        `decoding` is that of the model's task: a picture is decoded before the model is opened for it.
        """
        self._model, self._holder, self._limits, self._decoding = model, holder, limits, decoding
        self._tally, self._tracer, self._queue = tally, tracer, RequestQueue(limits, tally)
        self._threads = ThreadPoolExecutor(limits.slots, thread_name_prefix="edgeopt-frame")
        self._large, self._large_waiting = asyncio.Semaphore(1), 0

    def routes(self) -> list[Route]:
        """Return what is answered where."""
        return [Route("/v1/frames", answers(self._answer, self._tally), methods=["POST"])]

    def close(self) -> None:
        """End after the frames that are on their way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _answer(self, request: Request) -> Response:
        end_s = monotonic() + self._limits.seconds
        kind = require_kind(request, "image/", "application/octet-stream", FORM)
        body = await read_body(request, self._limits)
        if kind == FORM:
            body, _ = await read_form(request, body, "picture")
        read_ns = perf_counter_ns()
        is_large = require_bounded(body, self._limits.picture_pixels) > LARGE_PIXELS
        queue_ns = await while_there(request, self._enter(end_s, is_large=is_large))
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._run, body)
        done.add_done_callback(partial(self._over, is_large=is_large))
        try:
            async with asyncio.timeout(end_s - monotonic()):
                size, answer, times_ns = await asyncio.shield(done)
        except TimeoutError as error:
            late = "no answer came within the time limit of this server"
            raise RefusedError(503, late, code="time_limit") from error
        stages_ns = {"queue": queue_ns, **times_ns}
        self._tally.answer(stages_ns)
        self._tracer.record("frame", request.headers, stages_ns, {})
        times = {f"{name}_ms": value / 1e6 for name, value in stages_ns.items()}
        values = {"object": "frame", "model": self._model, "picture": size, "answer": answer, "edgeopt": times}
        told_ns = {**stages_ns, "total": perf_counter_ns() - read_ns}
        timing = ", ".join(f"{name};dur={value / 1e6:.3f}" for name, value in told_ns.items())
        return JSONResponse(values, headers={"Server-Timing": timing})

    async def _enter(self, end_s: float, *, is_large: bool) -> int:
        """Wait for a slot and take it; return for how many nanoseconds.

        Large pictures wait for each other first, so that they hold one slot and the memory of one, and others go on.

        Raises:
            RefusedError: As `RequestQueue.enter`.
        """
        if not is_large:
            return await self._queue.enter(end_s)
        begun_ns = perf_counter_ns()
        if self._large_waiting >= min(_MOST_LARGE_WAITING, self._limits.waiting):
            text = f"{self._large_waiting} large pictures wait already; ask again later, or send a smaller one"
            raise RefusedError(429, text, code="queue_full")
        self._large_waiting += 1
        try:
            async with asyncio.timeout(end_s - monotonic()):
                await self._large.acquire()
        except TimeoutError as error:
            text = f"no slot was free within {self._limits.seconds:g} s"
            raise RefusedError(503, text, code="queue_timeout") from error
        finally:
            self._large_waiting -= 1
        try:
            await self._queue.enter(end_s)
        except BaseException:
            self._large.release()
            raise
        return perf_counter_ns() - begun_ns

    def _over(self, done: asyncio.Future[Any], *, is_large: bool) -> None:
        self._queue.leave()
        if is_large:
            self._large.release()
        if not done.cancelled():
            done.exception()  # heard, whether or not somebody still waits for it

    def _run(self, body: bytes) -> tuple[dict[str, int], dict[str, Any], dict[str, int]]:
        """Return the size of a picture, its answer as plain values, and what each stage took."""
        before_ns = perf_counter_ns()
        frame = read_sample(body, self._decoding)
        decode_ns = perf_counter_ns() - before_ns
        with self._holder.held() as runtime, runtime.begin() as work:
            work.preprocess(frame)
            work.execute()
            answer = runtime.task.as_json(work.postprocess())
            stages = {name: max(took, 0) for name, took in zip(runtime.stages, work.times_ns, strict=True)}
        height, width = (frame.height, frame.width) if isinstance(frame, ReducedPicture) else frame.shape[:2]
        size = {"height": height, "width": width}
        return size, answer, {"decode": decode_ns, **stages}
