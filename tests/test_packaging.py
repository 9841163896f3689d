"""The wheel, built and installed in an empty environment, does the quick start; the install stays small."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_PACKAGES, MOST_MB = 25, 420


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment that holds the wheel with its `cpu` extra and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "-o", str(folder), str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = folder.glob("edgeopt-*.whl")
    place = folder / "environment"
    venv.create(place, with_pip=False)
    scripts = place / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python")]
    done = subprocess.run(
        [*pip, "install", "-q", "--no-compile", f"{wheel}[cpu]"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return scripts


def site_packages(scripts: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run([scripts / "python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )


@pytest.fixture(scope="module")
def quick_start(installed, tmp_path_factory):
    """The output folder of the quick start, run with the wheel, and what it printed."""
    place = tmp_path_factory.mktemp("quick_start")
    command = [installed / "edgeopt", "optimize", "digits_detector", "--target", "cpu"]
    command += ["--time-limit", "12s"]  # how fast the models are is for other tests
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place / "out" / "digits_detector-cpu", done.stdout


@pytest.mark.slow
def test_the_wheel_does_the_quick_start(quick_start):
    out, printed = quick_start
    assert "\nbundle " in printed
    assert (out / "bundle" / "manifest.json").exists()
    assert "<svg" in (out / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_the_install_stays_small(installed):
    place = site_packages(installed)
    packages = list(place.glob("*.dist-info"))
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    assert len(packages) <= MOST_PACKAGES, sorted(path.name for path in packages)
    assert size / 1e6 <= MOST_MB


@pytest.mark.slow
def test_without_an_engine_one_line_says_which_to_install(installed, tmp_path):
    code = "import sys; sys.modules['onnxruntime'] = None; from edgeopt.__main__ import main; main()"
    command = [installed / "python", "-c", code, "bench", "digits_detector"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "edgeopt[cpu]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_device_needs_no_onnx_to_run_a_bundle(installed, quick_start):
    code = (
        "import sys; sys.modules['onnx'] = sys.modules['click'] = None\n"
        "import numpy, edgeopt\n"
        f"print(len(edgeopt.Runtime.load({str(quick_start[0])!r}).predict(numpy.zeros((90, 120, 3), 'uint8'))))"
    )
    done = subprocess.run([installed / "python", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()
