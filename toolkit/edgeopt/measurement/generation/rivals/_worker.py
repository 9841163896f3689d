"""A process with one engine that answers tokens: `python -m edgeopt.measurement.generation.rivals._worker NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.generation import rivals
from edgeopt.measurement.generation.rivals import OWN, AnsweringEngine, EngineRequest, RivalEngine, _own
from edgeopt.system.declared import registry
from edgeopt.system.processes.messages import Message, replies_apart, serve_messages, told_error


class _Worker:
    """One engine, from its opening to its last answer."""

    def __init__(self, rival: RivalEngine) -> None:
        self._rival = rival
        self._engine: AnsweringEngine | None = None

    def prepare(self, message: Message) -> Message:
        """Make the file that is opened."""
        request = _request_of(message)
        file = self._rival.prepare(request) if self._rival.prepare else request.file
        return Message({"file": str(file)})

    def open(self, message: Message) -> Message:
        """Open the engine."""
        self._engine = self._rival.open(_request_of(message))
        return Message({"settings": dict(self._engine.settings)})

    def answer(self, message: Message) -> Message:
        """Answer one prompt."""
        assert self._engine
        answer = self._engine.answer(message.arrays["prompt"].tolist(), int(message.values["count"]))
        arrays = {"tokens": np.array(answer.tokens, np.int64), "at_ns": np.array(answer.at_ns, np.int64)}
        return Message({"begun_ns": answer.begun_ns}, arrays)

    def score(self, message: Message) -> Message:
        """Return how well windows of a text are predicted."""
        from edgeopt.measurement.generation.perplexity import score_text  # not in the memory of one that answers

        assert self._engine
        windows = [window.tolist() for window in message.arrays.values()]
        score = score_text(self._engine, windows)
        likeliest = {str(i): array for i, array in enumerate(score.likeliest)}
        nats = {f"nats{i}": array for i, array in enumerate(score.nats)}
        return Message({}, {"losses": np.array(score.losses), **likeliest, **nats})

    def peak(self, message: Message) -> Message:
        """Return the most memory that this process ever held."""
        from edgeopt.measurement.resources.memory import peak_rss_bytes  # its imports cost memory of their own

        del message
        return Message({"peak_bytes": peak_rss_bytes()})


def _request_of(message: Message) -> EngineRequest:
    values = message.values
    return EngineRequest(
        file=Path(values["file"]),
        threads=values["threads"],
        context=values["context"],
        form=values["form"],
        work=Path(values["work"]),
        entries=values["entries"],
    )


def _failed(error: Exception) -> Message:
    """Return an error of ours without the name of its class: it is a sentence."""
    return Message({"error": error.problem}) if isinstance(error, EdgeoptError) else told_error(error)


def main() -> None:
    """Serve until the parent closes the pipe."""
    replies = replies_apart()
    name = sys.argv[1]
    worker = _Worker(_own.RIVAL if name == OWN else registry.load(rivals, name).RIVAL)
    handlers = {
        "prepare": worker.prepare,
        "open": worker.open,
        "answer": worker.answer,
        "score": worker.score,
        "peak": worker.peak,
    }
    serve_messages(replies, handlers, _failed)


if __name__ == "__main__":
    main()
