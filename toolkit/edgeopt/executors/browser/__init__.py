"""onnxruntime-web in a browser's page: WebAssembly on the processor, or WebGPU.

A session is a worker of a page in a headless Chromium, and its stages are timed by the page's own clock: what carries
inputs and outputs between the page and this process is not part of a frame (`edgeopt.system.device_clock`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeopt.errors import InvalidFileError, Missing, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.executors.browser.chromium import find_program
from edgeopt.executors.browser.web_package import ENGINES, find_package
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names
from edgeopt.system.declared.optional import require
from edgeopt.system.device_clock import add_carriage, device_clock
from edgeopt.system.disk.files import read_file
from edgeopt.system.processes.messages import Message

if TYPE_CHECKING:
    from edgeopt.executors.browser.host import PageWorker

PURPOSE = "running a model in a browser"
PROVIDERS = tuple(ENGINES)
_APP = Path(__file__).parent / "app"
_BROTLI_QUALITY = 5
"""Servers that compress while they answer take 4 (Cloudflare) to 6 (nginx)."""
_OPEN_SECONDS, _RUN_SECONDS = 600.0, 600.0
_CARRIED = frozenset(
    {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    | {"float16", "float32", "float64", "bool"}
)
"""Types of tensors that a page takes and gives, in NumPy's words."""
_LOST = "__proto__"
_SAYS_CODE = "ERROR_MESSAGE: "
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "graphOptimizationLevel": ("disabled", "basic", "extended", "layout", "all"),
    "executionMode": ("sequential", "parallel"),
    "session.disable_quant_qdq": ("0", "1"),
}
"""Options of a session that a bundle or a target may set, with their values."""


class BrowserSession(Staged):
    """A model in a worker of a page."""

    def __init__(self, model: bytes, options: SessionOptions) -> None:
        """Open a model in a worker of its own. Raises as `Browser.open`."""
        from edgeopt.executors.browser.host import open_worker

        self._model, self._options, self._provider = model, options, options.providers[0]
        self._worker = open_worker(self._provider)
        self._program = self._worker.program
        try:
            opened = _open(self._worker, model, options)
        except BaseException:
            self._worker.close()
            raise
        self.inputs, self.outputs = (tuple(map(_spec, opened[key])) for key in ("inputs", "outputs"))
        self._opening_ms: Mapping[str, float] = {
            "fetch": opened["fetch_ms"],
            "compile": opened["compile_ms"],
            "create": opened["create_ms"],
        }
        self.simulated: bool = opened["is_software"]

    @property
    def program(self) -> str:
        """The browser and onnxruntime-web, with their versions."""
        return self._program

    @property
    def clock(self) -> Callable[[], int]:
        """The device's clock, which stands still while a message is on its way."""
        return device_clock

    @property
    def opening_ms(self) -> Mapping[str, float]:
        """The page's times to compile WebAssembly, to fetch the model from here, and to create the session."""
        return self._opening_ms

    def upload(self, inputs: Tensors) -> None:
        """Make the page's tensors of the inputs.

        Raises:
            ValueError: If an input is missing or unknown, or has another type.
        """
        require_names(inputs, (spec.name for spec in self.inputs))
        for spec in self.inputs:
            dtype = inputs[spec.name].dtype
            if dtype != np.dtype(spec.dtype):
                raise ValueError(f"input {spec.name!r} is {dtype}, not {spec.dtype}")
        self._ask(Message({"do": "upload"}, inputs))

    def execute(self, uploaded: None) -> None:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If the engine cannot run the model on these inputs.
            StepError: If the browser ends.
        """
        self._ask(Message({"do": "execute"}))

    def download(self, results: None) -> Tensors:
        """Return the results, from the GPU's memory where they lie there. Raises as `execute`."""
        return self._ask(Message({"do": "download"})).arrays

    def _ask(self, message: Message) -> Message:
        """Return the worker's answer, and let the device's clock stand still but for the page's own milliseconds."""
        began_ns = perf_counter_ns()
        answer = self._worker.ask(message, timeout_s=_RUN_SECONDS)
        if error := answer.values.get("error"):
            raise UnsupportedError(
                f"the browser does not run the model on these inputs: {_sentence(error)}",
                remedy="check the numbers and the shapes of the inputs",
            )
        add_carriage(perf_counter_ns() - began_ns - round(answer.values["ms"] * 1e6))
        return answer

    def placement(self) -> tuple[Placement, ...]:
        """Return where the nodes run, by the log of a second session."""
        from edgeopt.executors.browser.host import open_worker
        from edgeopt.executors.browser.placement import placements

        logging = open_worker(self._provider)
        try:
            lines = _open(logging, self._model, self._options, is_logged=True)["lines"]
        finally:
            logging.close()
        return placements(lines, self._model)

    def beside(self, *, reuse: bool = False) -> BrowserSession:
        """Return another session of the same model, with memory of its own; outputs are copies in any case."""
        del reuse
        return BrowserSession(self._model, self._options)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


class Browser(Executor):
    """The executor `browser`."""

    def why_unavailable(self) -> str | None:
        """Return None if a browser, onnxruntime-web and the package of the extra are installed."""
        try:
            for package in ("websockets", "brotli"):
                require(package, extra="browser", purpose=PURPOSE)
        except Exception as error:  # a broken installation fails in the loader, with any class of error
            reason = str(getattr(error, "problem", error)).removesuffix(f": {PURPOSE} needs it")
            return Missing(reason, "pip install 'edgeopt[browser]'")
        for needed in (find_program(), find_package()):
            if isinstance(needed, Missing):
                return needed
        return None

    def why_no_provider(self, providers: tuple[str, ...]) -> Missing | None:
        """Return None if the one provider is a browser's."""
        if len(providers) == 1 and providers[0] in PROVIDERS:
            return None
        return Missing(
            f"the executor browser runs on one of {', '.join(PROVIDERS)}, not on {', '.join(providers) or 'none'}",
            "write providers = ['wasm']",
        )

    def wire_bytes(self, source: Source) -> int:
        """Return the size of a model in brotli, as servers make it while they answer. Raises as `open`."""
        brotli = require("brotli", extra="browser", purpose=PURPOSE)
        return len(brotli.compress(_bytes_of(source), quality=_BROTLI_QUALITY))

    def app_files(self) -> Mapping[str, bytes]:
        """Return a page that runs a bundle's model on a picture."""
        return {file.name: file.read_bytes() for file in sorted(_APP.iterdir()) if file.is_file()}

    def has_device(self, providers: tuple[str, ...]) -> bool:
        """Return whether the page computes on the device itself: WebGPU without a GPU is software. Raises as `open`."""
        from edgeopt.executors.browser.host import host_of

        return providers[0] == "wasm" or host_of(providers[0]).has_gpu

    def check(self, options: SessionOptions) -> None:
        """Refuse an option that no bundle and no target may set, before any work. Raises as `open`."""
        for key, value in options.entries.items():
            if key not in _OPTIONS:
                raise NotFoundError("option of onnxruntime-web that a bundle or a target may set", key, _OPTIONS)
            if value not in _OPTIONS[key]:
                raise ValueError(f"{key} is {value!r}, not one of {', '.join(_OPTIONS[key])}")

    def open(self, source: Source, options: SessionOptions) -> BrowserSession:
        """Load a model in a page.

        Raises:
            MissingDependencyError: If websockets is not installed.
            UnavailableError: If there is no browser, no onnxruntime-web or no such provider.
            UnsupportedError: If the engine lacks an op of the model, or the model takes or gives what is not carried.
            InvalidFileError: If the engine refuses the model.
            StepError: If the browser ends or hangs.
            NotFoundError: On an unknown option.
            ValueError: On another precision than fp32 and fp16.
        """
        if options.precision not in ("", "fp32", "fp16"):  # the model's own types: one in fp16 was converted before
            raise ValueError(f"precision is {options.precision!r}, not fp32 or fp16")
        if options.profile_to or options.save_optimized_to:
            raise ValueError("the executor browser writes no operator profile and no optimized graph")
        if reason := self.why_no_provider(options.providers):
            raise UnavailableError(reason.reason, remedy=reason.remedy)
        self.check(options)
        return BrowserSession(_bytes_of(source), options)


def _open(worker: PageWorker, model: bytes, options: SessionOptions, *, is_logged: bool = False) -> Mapping[str, Any]:
    """Create a session in a worker; return what it tells of it. Raises as `Browser.open`."""
    provider = options.providers[0]
    values = {
        "do": "open",
        "model": worker.add_model(model),
        "engine": ENGINES[provider],
        "threads": options.threads or 1,
        "options": dict(options.entries),
        "provider": provider,
        "gpuOutputs": provider != "wasm",
        "logs": is_logged,
    }
    answer = worker.ask(Message(values), timeout_s=_OPEN_SECONDS).values
    worker.drop_model()
    if error := answer.get("error"):
        raise _refusal(error)
    if any(spec["name"] == _LOST for spec in answer["outputs"]):
        problem = f"an output {_LOST} gets lost in onnxruntime-web: JavaScript has a meaning for that name"
        raise UnsupportedError(problem, remedy="rename it")
    for spec in (*answer["inputs"], *answer["outputs"]):
        if spec["type"] not in _CARRIED:
            holds = {"string": "texts", "": "a sequence or a map"}.get(spec["type"], spec["type"])
            raise UnsupportedError(
                f"{spec['name']!r} holds {holds}, which no message to a page carries",
                remedy="leave it to the app, and choose a target of the executor onnxruntime",
            )
    return answer


def _bytes_of(source: Source) -> bytes:
    model = in_one_piece(source, "onnxruntime-web")
    return model if isinstance(model, bytes) else read_file(model, remedy="check the path")


def _refusal(error: str) -> InvalidFileError | UnsupportedError | UnavailableError:
    """Return what an error of opening means."""
    said = _sentence(error)
    if "no available backend" in error:
        return UnavailableError(f"the browser lacks the provider: {said}", remedy="choose --target browser-wasm")
    if "ERROR_CODE: 9" in error:  # NOT_IMPLEMENTED
        return UnsupportedError(f"onnxruntime-web lacks an op of the model: {said}", remedy="choose another target")
    return InvalidFileError(f"onnxruntime-web refuses the model: {said}", remedy="check it with edgeopt inspect")


def _sentence(error: str) -> str:
    """Return what an error of the engine says, without its code."""
    _, code, said = error.partition(_SAYS_CODE)
    return " ".join((said if code else error).split())


def _spec(described: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(described["name"], described["type"], tuple(described["shape"]))


EXECUTOR = Browser()
