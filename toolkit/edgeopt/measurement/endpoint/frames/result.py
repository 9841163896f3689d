"""The times that a client of a server of frames measured: a new connection, each stage of a frame, and under a load.

`wire` is the way to the server and back: sending the request, and one round trip of the network. That is TCP's
handshake, which the other machine's kernel answers without its programs; a proxy that answers it counts as the server.
`server` is the rest of the time from the request's last byte to the reply's first. gRPC does not tell when a request
was sent, and does work of its own on both sides: there the smallest request is the way, and sending is in the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.bench.result import BenchResult, JudgedLimit
from edgeopt.measurement.endpoint.frames.exchange import FrameExchange
from edgeopt.measurement.endpoint.result import count_problems
from edgeopt.measurement.resources.cost import InferenceCost
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import BudgetResult
from edgeopt.measurement.statistics.quantile import Summary, summarize
from edgeopt.measurement.statistics.ratio import Ratio

_NAMING = 100
"""Answers, the first ones, whose stages are told: each could name other ones."""
STAGES = ("serialize", "connect", "wire", "server", "download", "parse")
"""Stages of a frame; `connect` only where a connection had to be made for it."""


@dataclass(frozen=True, slots=True)
class EncodedTimes:
    """Frames that were sent in one encoding."""

    encoding: str
    samples: Samples = field(repr=False)
    """A row a frame, in the order in which they were sent; those without an answer are marked as failed."""
    problems: Mapping[str, int]
    """Frames without an answer, by reason."""
    request_bytes: float
    """Mean body of a request."""
    reply_bytes: float
    server_ms: Mapping[str, float]
    """Medians of stages that the server itself tells, by name; empty: it tells none."""
    reconnects: int
    """Frames for which a connection had to be made."""
    seconds: float

    @property
    def asked(self) -> int:
        """Frames that were sent."""
        return len(self.samples.steady())

    @property
    def answers(self) -> int:
        """Frames that were answered."""
        return len(self.samples.steady().served())

    @property
    def frames_per_s(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds if self.seconds else 0.0

    @property
    def response(self) -> Summary:
        """From the instant at which a frame should have been sent to its answer."""
        return summarize(self.samples.steady().served().response_ns)

    @property
    def late(self) -> Summary:
        """By how much its sender was late: it is in `response`, and in no stage."""
        rows = self.samples.steady()
        if rows.started_ns is None or rows.intended_ns is None:
            return summarize(np.zeros(0, np.int64))
        return summarize(rows.started_ns - rows.intended_ns)

    @property
    def times(self) -> dict[str, Summary]:
        """The stages that took any time, in their order."""
        rows = self.samples.steady().served()
        return {name: summarize(rows.stage(name)) for name in STAGES if rows.stage(name).any()}

    def as_json(self) -> dict[str, Any]:
        """Return plain values; of the frames their figures."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "samples"}
        whole = {"frame": self.response, "late": self.late, **self.times}
        times = {name: asdict(summary) for name, summary in whole.items()}
        return {**values, "answers": self.answers, "frames_per_s": self.frames_per_s, "times": times}


@dataclass(frozen=True, slots=True)
class FrameServerResult(BenchResult):
    """A server of frames, from its client's side."""

    kind: ClassVar[str] = "endpoint"
    over_network: ClassVar[bool] = True
    address: str
    interface: str
    model: str
    sent: str
    """The frames that were sent, in words."""
    once: Mapping[str, Summary]
    """Stages of a new connection: `dns`, `connect`, `tls`."""
    trip_ms: float
    """Round trip of the network: the median of TCP's handshake."""
    smallest: str
    """The smallest request."""
    smallest_time: Summary
    tells_sending: bool
    """Whether sending was seen; if not, it counts as the server's time."""
    alone: tuple[EncodedTimes, ...]
    """Times of frames sent singly, by encoding, all in turns."""
    ratios: Mapping[str, Ratio]
    """How many times as fast the other encodings are as the first."""
    load: str
    """How frames came together; empty: they did not."""
    loaded: EncodedTimes | None
    budget: BudgetResult | None
    """Verdict on the load, else on the fastest encoding."""
    findings: tuple[Finding, ...] = ()
    cost: InferenceCost | None = None

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model

    @property
    def fastest(self) -> EncodedTimes:
        """The encoding with the lowest median."""
        return fastest_of(self.alone)

    @property
    def judged_times(self) -> EncodedTimes:
        """The frames that a budget judges."""
        return self.loaded or self.fastest

    @property
    def judged(self) -> tuple[JudgedLimit, ...]:
        """The budget, where there is one."""
        if self.budget is None:
            return ()
        return (JudgedLimit("budget", self.budget.verdict, self.budget.told(" or without an answer")),)

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return the raw samples under the load, and those by encoding, the fastest first."""
        files = {"samples-load.npz": self.loaded.samples} if self.loaded else {}
        alone = sorted(self.alone, key=lambda times: times is not self.fastest)
        return files | {f"samples-{times.encoding}.npz": times.samples for times in alone}

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        plain = ("address", "interface", "model", "sent", "trip_ms", "smallest", "tells_sending", "load")
        return {
            **{name: getattr(self, name) for name in plain},
            "source": f"{self.sent}, as {self.judged_times.encoding}",
            "once": {name: asdict(summary) for name, summary in self.once.items()},
            "smallest_time": asdict(self.smallest_time),
            "alone": [times.as_json() for times in self.alone],
            "ratios": {name: asdict(ratio) for name, ratio in self.ratios.items()},
            "loaded": self.loaded.as_json() if self.loaded else None,
            "budget": asdict(self.budget) if self.budget else None,
            "cost": asdict(self.cost) if self.cost else None,
        }


def fastest_of(alone: Sequence[EncodedTimes]) -> EncodedTimes:
    """Return the encoding with the lowest median of those that are answered."""
    return min((times for times in alone if times.answers), key=lambda times: np.median(_served_ns(times)))


def _served_ns(times: EncodedTimes) -> Any:
    return times.samples.steady().served().response_ns


def times_of_frames(
    encoding: str, exchanges: Sequence[FrameExchange], way_ns: int, seconds: float, *, warmup: int = 0
) -> EncodedTimes:
    """Derive the figures of frames.

    Args:
        encoding: In which they were sent.
        exchanges: What became of each, in the order in which they should have been sent.
        way_ns: Way there and back, without sending.
        seconds: In which they were asked and answered, warm-up left out.
        warmup: How many of the first are warm-up.
    """
    steady = exchanges[warmup:]
    whole = [exchange for exchange in steady if exchange.is_whole]
    names = dict.fromkeys(name for exchange in whole[:_NAMING] for name in exchange.server_ms)
    server_ms = {
        name: float(np.median([other.server_ms[name] for other in whole if name in other.server_ms])) for name in names
    }
    return EncodedTimes(
        encoding=encoding,
        samples=_samples(encoding, exchanges, way_ns, warmup),
        problems=count_problems([exchange.problem for exchange in steady if exchange.problem]),
        request_bytes=float(np.mean([exchange.request_bytes for exchange in whole])) if whole else 0.0,
        reply_bytes=float(np.mean([exchange.reply_bytes for exchange in whole])) if whole else 0.0,
        server_ms=server_ms,
        reconnects=sum(exchange.connect.whole_ns > 0 for exchange in whole),
        seconds=seconds,
    )


def _samples(encoding: str, exchanges: Sequence[FrameExchange], way_ns: int, warmup: int) -> Samples:
    zero_ns = min((exchange.begun_ns for exchange in exchanges), default=0)

    def column(values: Sequence[int]) -> Any:
        return np.array(values, np.int64)

    rows = [_stages_of(exchange, way_ns) for exchange in exchanges]
    started = column([exchange.started_ns - zero_ns for exchange in exchanges])
    intended = column([exchange.begun_ns - zero_ns for exchange in exchanges])
    done = intended + column([exchange.end_ns for exchange in exchanges])
    return Samples(
        stages=STAGES,
        times_ns=np.array(rows, np.int64).reshape(len(exchanges), len(STAGES)),
        frame_ns=done - started,
        warmup=np.arange(len(exchanges)) < warmup,
        variant=encoding,
        started_ns=started,
        done_ns=done,
        intended_ns=intended,
        failed=np.array([not exchange.is_whole for exchange in exchanges], np.bool_),
    )


def _stages_of(exchange: FrameExchange, way_ns: int) -> tuple[int, ...]:
    """Return the stages of a frame, as `STAGES` has them."""
    on_the_way = min(way_ns, exchange.wait_ns)
    return (
        exchange.serialize_ns,
        exchange.connect.whole_ns,
        exchange.send_ns + on_the_way,
        exchange.wait_ns - on_the_way,
        exchange.download_ns,
        exchange.parse_ns,
    )
