"""The child process that holds Qualcomm's library: one target, one session, then it ends.

It reads a message, does what it says, answers, until its input closes. Standard output is the channel, so
what the library prints there goes to standard error instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from edgeopt.system.processes.messages import Message, replies_apart, serve_messages

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

_PROVIDER = "QNNExecutionProvider"


class _Worker:
    """The child's memory between two messages."""

    def __init__(self) -> None:
        self._ort = import_module("onnxruntime")
        plugin = import_module("onnxruntime_qnn")
        self._ort.register_execution_provider_library(_PROVIDER, plugin.get_library_path())
        self._devices = [ep_device for ep_device in self._ort.get_ep_devices() if ep_device.ep_name == _PROVIDER]
        if not self._devices:
            raise RuntimeError("the plugin offers no device here")
        self._session: Any = None

    def open(self, message: Message) -> Message:
        """Open a session; answer with its tensors and where each node runs."""
        self._session = self._ort.InferenceSession(_source(message), self._options(message.values), enable_fallback=0)
        placed = [
            [node.name, node.op_type, group.ep_name]
            for group in self._session.get_provider_graph_assignment_info()
            for node in group.get_nodes()
        ]
        return Message(
            {
                "inputs": [[input_.name, input_.type, list(input_.shape)] for input_ in self._session.get_inputs()],
                "outputs": [[output.name, output.type, list(output.shape)] for output in self._session.get_outputs()],
                "placement": placed,
                "simulated": not self._is_present,
            }
        )

    def devices(self, _: Message) -> Message:
        """Answer whether the NPU itself is here."""
        return Message({"present": self._is_present})

    @property
    def _is_present(self) -> bool:
        return "NPU" in {str(device.device.type).rpartition(".")[2] for device in self._devices}

    def run(self, message: Message) -> Message:
        """Run once."""
        names = [output.name for output in self._session.get_outputs()]
        results = self._session.run(None, dict(message.arrays))
        return Message({}, dict(zip(names, results, strict=True)))

    def compile(self, message: Message) -> Message:
        """Compile ahead of time into a file; answer with the files that came to be."""
        out = Path(message.values["out"])
        flags = self._ort.OrtCompileApiFlags
        compiler = self._ort.ModelCompiler(
            self._options(message.values),
            _source(message),
            embed_compiled_data_into_model=message.values["embed"],
            graph_optimization_level=self._ort.GraphOptimizationLevel.ORT_ENABLE_ALL,  # as `open` does
            flags=flags.ERROR_IF_NO_NODES_COMPILED | flags.ERROR_IF_OUTPUT_FILE_EXISTS,
        )
        compiler.compile_to_file(str(out))
        return Message({"files": sorted(path.name for path in out.parent.iterdir())})

    def _options(self, values: Mapping[str, Any]) -> Any:
        made = self._ort.SessionOptions()
        made.intra_op_num_threads = values["threads"]
        made.log_severity_level = 0 if values["verbose"] else 3
        made.log_verbosity_level = 0
        made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        made.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if values["strict"] else "0")
        made.add_provider_for_devices(self._devices, dict(values["options"]))
        return made


def _source(message: Message) -> str | bytes:
    data = message.arrays.get("model")
    return data.tobytes() if data is not None else str(message.values["path"])


def main() -> None:
    """Serve until the input closes."""
    replies = replies_apart()
    worker = _Worker()
    does = {"devices": worker.devices, "open": worker.open, "run": worker.run, "compile": worker.compile}
    serve_messages(replies, does)


if __name__ == "__main__":
    main()
