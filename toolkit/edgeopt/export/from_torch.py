"""Networks of PyTorch: a factory by import path, an exported program, a TorchScript file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.export.network import Network, NetworkInput
from edgeopt.export.quiet import quiet_export
from edgeopt.export.source import NetworkSource
from edgeopt.recipes.inputs.preprocess import Input, Preprocess, Resize
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe
from edgeopt.system.declared.optional import require
from edgeopt.system.text import short

_LONGEST = 300
"""Characters of what a framework says."""


def torch_of_export() -> Any:
    """Return torch.

    Raises:
        MissingDependencyError: If torch is not installed, or cannot export.
    """
    torch = require("torch", extra="export", purpose="an export")
    require("onnxscript", extra="export", purpose="an export")
    return torch


def said(error: BaseException) -> str:
    """Return what an exception says, in one line that is not too long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])  # the reason stands below
    return f"{type(error).__name__}: {text[:_LONGEST]}" if text else type(error).__name__


def open_module(source: NetworkSource, inputs: Sequence[NetworkInput]) -> Network:
    """Return what `torch:package.module:factory` names: a module, or a function without arguments that returns one.

    The current folder is searched too, as `python -m` does.

    Raises:
        EdgeoptError: If it cannot be imported or called, is no module, or no input was told.
    """
    torch = torch_of_export()
    place, _, attribute = source.where.rpartition(":")
    made = _imported(place, attribute)
    if not isinstance(made, torch.nn.Module):
        try:
            made = made()
        except Exception as error:
            problem = f"{source} failed: {said(error)}"
            remedy = "name a function without arguments that returns a module: torch:nets:net is def net() in nets.py"
            raise EdgeoptError(problem, remedy=remedy) from error
    if not isinstance(made, torch.nn.Module):
        raise EdgeoptError(
            f"{source} gives {type(made).__name__}, no torch.nn.Module",
            remedy="name a module, or a function without arguments that returns one",
        )
    _require_inputs(inputs)
    recipe, notes = recipe_of_torchvision(made, place, source.name, inputs)
    return Network(source.name, f"PyTorch {torch.__version__}", made.eval(), tuple(inputs), recipe=recipe, notes=notes)


def open_program(source: NetworkSource, inputs: Sequence[NetworkInput]) -> Network:
    """Return what `torch.export.save` wrote; its inputs are those that it was traced with.

    Raises:
        InvalidFileError: If torch does not read the file.
        UnsupportedError: If inputs were told, or it has others than tensors.
    """
    torch = torch_of_export()
    try:
        with quiet_export(torch):  # it prints the traceback of what it does not read
            program = torch.export.load(source.where)
        module = program.module()
    except Exception as error:
        problem = f"{source} is no exported program that torch {torch.__version__} reads: {said(error)}"
        raise InvalidFileError(problem, remedy="write it with torch.export.save of the same torch") from error
    if inputs:
        problem = f"{source} fixes its inputs"
        raise UnsupportedError(problem, remedy="leave --input and --dynamic out; torch.export has decided both")
    return Network(
        source.name, f"PyTorch {torch.__version__}", module, _inputs_of(torch, program, source), "program", program
    )


def open_torchscript(source: NetworkSource, inputs: Sequence[NetworkInput]) -> Network:
    """Return what `torch.jit.save` wrote.

    Raises:
        InvalidFileError: If it is a state dictionary, or nothing that torch reads.
        EdgeoptError: If no input was told.
    """
    torch = torch_of_export()
    try:
        module = torch.jit.load(source.where, map_location="cpu")
    except Exception as error:
        why = "torch.save wrote it" if _is_of_torch_save(Path(source.where)) else said(error).partition(". ")[0]
        raise InvalidFileError(
            f"{source} is no TorchScript file: {why}",
            remedy="weights alone hold no network: name the code that makes it, torch:package.module:factory; of "
            f"Ultralytics yolo export model={source.where} format=onnx",
        ) from error
    _require_inputs(inputs)
    return Network(source.name, f"PyTorch {torch.__version__}", module.eval(), tuple(inputs), "torchscript")


def _is_of_torch_save(file: Path) -> bool:
    """Whether a file holds weights or a pickled module: its archive has no code, which torch calls a corrupted file."""
    try:
        with ZipFile(file) as archive:
            names = [name.rpartition("/")[2] for name in archive.namelist()]
    except (BadZipFile, OSError):
        return False
    return "data.pkl" in names and "constants.pkl" not in names


def _imported(place: str, attribute: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(place)
    except Exception as error:
        raise EdgeoptError(
            f"module {short(place)} cannot be imported: {said(error)}",
            remedy="run edgeopt where it can be imported: in its folder, or with PYTHONPATH",
        ) from error
    for name in attribute.split("."):
        if not hasattr(module, name):
            raise EdgeoptError(f"module {short(place)} has no {short(attribute)}", remedy="correct the name")
        module = getattr(module, name)
    return module


def _require_inputs(inputs: Sequence[NetworkInput]) -> None:
    if not inputs:
        raise EdgeoptError(
            "the shapes of the inputs are not told",
            remedy="add --input images=1x3x224x224 for each input, in their order; of another type ids=1x128:int64",
        )


def _inputs_of(torch: Any, program: Any, source: NetworkSource) -> tuple[NetworkInput, ...]:
    """Return the inputs of an exported program, in the sizes of its trace."""
    names: Sequence[Any] = program.graph_signature.user_inputs
    values: Mapping[str, Any] = {
        node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"
    }
    given: Sequence[Any] = torch.utils._pytree.tree_leaves(program.example_inputs) if program.example_inputs else ()
    result: list[Any] = [given[i] if i < len(given) else values.get(str(name)) for i, name in enumerate(names)]
    if len(result) != len(names) or not all(isinstance(value, torch.Tensor) for value in result):
        raise UnsupportedError(
            f"{source} takes other things than tensors", remedy="export a module that takes tensors alone"
        )
    return tuple(
        NetworkInput(name, tuple(int(size) for size in value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in zip(names, result, strict=True)
    )


# Recipes from torchvision: its weights know how pictures were shown to them, and the names of classes.

_PACKAGE = "torchvision.models"
_RANDOM = Note(
    NoteKind.WARNING,
    "torchvision makes it with random weights",
    'write nets.py: def net(): return torchvision.models.NAME(weights="DEFAULT"), and name torch:nets:net',
)
_TASKS = {"ImageClassification": "classification", "SemanticSegmentation": "segmentation"}
"""Preset of torchvision's transforms to the task that reads its networks."""


def recipe_of_torchvision(
    module: Any, place: str, name: str, inputs: Sequence[NetworkInput]
) -> tuple[Recipe | None, tuple[Note, ...]]:
    """Return the recipe of a network of torchvision, and what is to be said of it; None: it is another's, or unknown.

    It is known by its number of parameters, so that one with other classes, or another head, gets none.

    Args:
        module: That is exported.
        place: Module of the factory.
        name: Of the network.
        inputs: Of the network.
    """
    notes = (_RANDOM,) if place.startswith(_PACKAGE) else ()
    if not type(module).__module__.startswith(_PACKAGE) or len(inputs) != 1 or len(inputs[0].shape) != 4:
        return None, notes
    weights = next(_fitting(sys.modules[_PACKAGE], module), None)
    how: Any = weights.transforms() if weights else None
    task = _TASKS.get(type(how).__name__, "")
    if not weights or not task:
        return None, notes
    side, crop = how.resize_size[0], getattr(how, "crop_size", [0])[0]
    fit = Preprocess(scale=1 / 255, mean=tuple(map(float, how.mean)), std=tuple(map(float, how.std)))
    if crop and inputs[0].shape[2] == inputs[0].shape[3]:
        from_side = round(side * inputs[0].shape[2] / crop)
        fit = Preprocess(resize=Resize.CENTRE_CROP, crop_from=from_side, scale=fit.scale, mean=fit.mean, std=fit.std)
    is_class = task == "classification"
    return Recipe(
        name=name,
        task=task,
        description=f"{type(module).__name__} of torchvision, as {weights} was trained",
        license="that of the weights",
        source=_PACKAGE,
        postprocess=Postprocess("logits") if is_class else Postprocess("argmax", background=True),
        evaluation=Evaluation("top1" if is_class else "mIoU"),
        input=Input(size=inputs[0].shape[2:]),
        preprocess=fit,
        class_names=tuple(weights.meta["categories"]),
    ), notes


def _fitting(models: Any, module: Any) -> Iterator[Any]:
    """Return the weights of the package that have as many parameters, those of its own file first."""
    count = sum(parameter.numel() for parameter in module.parameters())
    found = [weights for name in models.list_models() for weights in models.get_model_weights(name)]
    fitting = [value for value in found if value.meta.get("num_params") == count]
    own = type(module).__module__
    yield from sorted(fitting, key=lambda value: type(value).__module__ != own)
