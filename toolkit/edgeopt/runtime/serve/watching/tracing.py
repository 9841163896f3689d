"""Spans of OpenTelemetry that continue the caller's trace (`traceparent`), where its package is installed.

Names and attributes: OpenTelemetry semantic conventions for generative AI, `gen_ai.*`. The app's TracerProvider decides
where spans go: `opentelemetry-instrument edgeopt serve ...` sets one; without one they cost next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

_ERROR_FROM = 500


class SpanTracer:
    """Makes one span an answer, with its parts below it."""

    def __init__(self, model: str, provider: Any = None) -> None:
        """Look for OpenTelemetry.

        Args:
            model: Its name.
            provider: A `TracerProvider`; None: the app's global one.
        """
        self._model = model
        self._trace: Any = None
        try:
            self._trace, self._propagate = (
                import_module("opentelemetry.trace"),
                import_module("opentelemetry.propagate"),
            )
        except ImportError:
            return
        self._tracer: Any = self._trace.get_tracer("edgeopt", tracer_provider=provider)

    @property
    def is_there(self) -> bool:
        """Whether OpenTelemetry is installed."""
        return self._trace is not None

    def record(
        self,
        operation: str,
        headers: Mapping[str, str],
        stages_ns: Mapping[str, int],
        attributes: Mapping[str, Any],
        status: int = 200,
    ) -> None:
        """Tell of a request that is over.

        Args:
            operation: `chat`, `text_completion` or `frame`.
            headers: Of the request, in lower case.
            stages_ns: What its parts took, one after the other, the last of which ended now.
            attributes: What is told beside them.
            status: Of the reply.
        """
        if self._trace is None:
            return
        end_ns = time.time_ns()
        begin_ns = end_ns - sum(stages_ns.values())
        parent = self._propagate.extract(headers)
        values = {"gen_ai.operation.name": operation, "gen_ai.request.model": self._model, **attributes}
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes={name: value for name, value in values.items() if value is not None},
            start_time=begin_ns,
        )
        if status >= _ERROR_FROM:
            span.set_status(self._trace.StatusCode.ERROR)
        inside, at_ns = self._trace.set_span_in_context(span, parent), begin_ns
        for name, took_ns in stages_ns.items():
            part = self._tracer.start_span(name, context=inside, start_time=at_ns)
            at_ns += took_ns
            part.end(end_time=at_ns)
        span.end(end_time=end_ns)
