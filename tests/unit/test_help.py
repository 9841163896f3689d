"""Help is quick: no heavy import on the way to it."""

from __future__ import annotations

import subprocess
import sys


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['edgeopt', '--help']\n"
        "from edgeopt.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('heavy:', *{'numpy', 'onnx', 'cv2', 'rich', 'onnxruntime', 'jinja2'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "optimize" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "heavy:"
