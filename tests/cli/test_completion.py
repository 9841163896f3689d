"""Completion in the shells themselves: each sources what `edgeopt completion` prints, and is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.recipes.recipe import find_recipe
from edgeopt.system.declared.target import target_names
from edgeopt.system.disk import assets

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="no such shells")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Return what runs a script in a shell that has `edgeopt` in its PATH and its completion sourced."""
    program = tmp_path / "bin" / "edgeopt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edgeopt "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.onnx").write_text("")
    paths = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }

    def ask(name: str, script: str) -> list[str]:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        done = subprocess.run(
            [name, "-c", script], capture_output=True, text=True, env=os.environ | paths, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return ask


def bash(line: str) -> str:
    """Return a script that prints what bash would complete the last word of a line with."""
    return f"""
        eval "$(edgeopt completion bash)"
        COMP_WORDS=({line}); [[ {line!r} == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        compopt() {{ echo "compopt $*"; }}
        _edgeopt_completion edgeopt
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """


def fish(line: str) -> str:
    return f"edgeopt completion fish | source; complete -C {line!r}"


ZSH = """
autoload -U compinit; compinit -u -D
compdef() { bound="$1 $2" }
_describe() { local named="$3"; print -l ${(P)named} }
compadd() { local named="${@[-1]}"; print -l ${(P)named} }
_path_files() { print -l *.onnx }
eval "$(edgeopt completion zsh)"
"""


@needs_posix
def test_bash_completes_commands_targets_recipes_and_models(shell):
    assert {"optimize", "bench", "completion"} <= {*shell("bash", bash("edgeopt "))}
    assert shell("bash", bash("edgeopt optimize x --target qualcomm-htp-v7")) == [
        one for one in target_names() if one.startswith("qualcomm-htp-v7")
    ]
    assert shell("bash", bash("edgeopt bench x --recipe yolov1")) == ["yolov10"]
    assert shell("bash", bash("edgeopt bench dig")) == ["digits_detector"]


@needs_posix
def test_shells_complete_the_groups_of_a_help(shell):
    assert shell("bash", bash("edgeopt bench x.onnx --help l")) == ["load", "language"]
    assert {"steps", "all"} <= {*shell("bash", bash("edgeopt optimize --help "))}
    assert shell("fish", fish("edgeopt bench --help loa"))[0] == "load"
    asked = "words=(edgeopt bench -h loa); CURRENT=4; _edgeopt_completion"
    assert shell("zsh", ZSH + asked)[0].startswith("load:")


@needs_posix
def test_bash_completes_files_where_no_name_fits(shell):
    assert shell("bash", bash("edgeopt bench mi")) == ["compopt", "-o", "default"]


@needs_posix
def test_fish_completes_targets_and_files(shell):
    found = shell("fish", fish("edgeopt optimize x --target cpu-x"))
    assert found == [one for one in target_names() if one.startswith("cpu-x")]
    assert shell("fish", fish("edgeopt targets raspb")) == ["raspberry-pi-5"]


@needs_posix
def test_zsh_completes_targets_and_is_bound_to_the_program(shell):
    asked = "words=(edgeopt optimize x --target cpu-x86-a); CURRENT=5; _edgeopt_completion; print $bound"
    assert shell("zsh", ZSH + asked) == ["cpu-x86-avx2", "_edgeopt_completion", "edgeopt"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_is_printed_without_the_shell_being_there(name, monkeypatch):
    monkeypatch.setenv("PATH", "")
    shown = CliRunner().invoke(cli, ["completion", name])
    assert shown.exit_code == 0
    assert "_EDGEOPT_COMPLETE" in shown.output


def test_every_name_that_completes_exists():
    from edgeopt.cli._values import ModelName, RecipeName, TargetName

    assert TargetName().known() == target_names()
    assert RecipeName().known() == sorted(assets.model_folders())
    assert ModelName().known() == ["digits_detector", "tiny_lm"]
    assert all(find_recipe(one).path_of(find_recipe(one).model).is_file() for one in ModelName().known())


def test_completing_a_target_imports_no_engine():
    code = (
        "import sys; from edgeopt.cli import cli; from edgeopt.cli._values import TargetName; TargetName().known();"
        "print([one for one in ('onnx', 'onnxruntime', 'numpy', 'cv2') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
