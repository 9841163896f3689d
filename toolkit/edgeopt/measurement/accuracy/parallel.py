"""Answers of a slow engine on many pictures, by several of its processes at once.

A simulated NPU takes about a second for a picture and uses one core; its processes share nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

from edgeopt.executors import Session
from edgeopt.graph.facts.states import Feedback
from edgeopt.measurement.accuracy.evaluate import Progress
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.tasks import Task


def simulate_answers(
    open_session: Callable[[], Session],
    make_task: Callable[[], Task],
    frames: Frames,
    *,
    processes: int,
    tell: Progress | None = None,
    what: str = "simulate",
) -> list[Any]:
    """Return the task's answer for each frame, in order.

    Args:
        open_session: Opens one more process of the engine.
        make_task: Makes one more task; it is used by one thread only.
        frames: Read one at a time, from one thread at a time.
        processes: How many at once; one core each.
        tell: Called after each frame, from one thread at a time.
        what: The word for `tell`.

    Raises:
        StepError: If the vendor's library dies or hangs.
    """
    count = 1 if frames.states else max(1, min(processes, len(frames)))
    lock, result, stopped = Lock(), dict[int, Any](), Event()

    def work(first: int) -> None:
        session, task, feedback = open_session(), make_task(), Feedback(frames.states)
        read = frames.decoded_by(task.decoding).read
        try:
            for i in range(first, len(frames), count):
                if stopped.is_set():
                    return
                with lock:
                    frame = read(i)
                if frames.begins_stream(i):
                    feedback.reset()
                inputs, geometry = task.preprocess(frame)
                outputs = session.run(feedback.into(inputs))
                feedback.keep(outputs)
                answer = task.postprocess(outputs, geometry)
                with lock:
                    result[i] = answer
                    if tell:
                        tell(what, len(result), len(frames))
        finally:
            session.close()

    with ThreadPoolExecutor(count) as pool:
        try:
            for done in [pool.submit(work, i) for i in range(count)]:
                done.result()
        except BaseException:  # an interrupt does not wait for what is left
            stopped.set()
            raise
    return [result[i] for i in range(len(frames))]
