"""Tasks by the names of `optimum-cli export onnx --task`: what each opens, and what loads its ONNX file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.system.text import short

WITH_PAST = "-with-past"
"""Ends the name of a task whose model takes its own keys and values back."""
GENERATION = "text-generation"
_ANY = "ORTModelForCustomTasks"
"""Optimum's class for what it has no class of its own for."""


@dataclass(frozen=True, slots=True)
class OptimumTask:
    """The meaning of one task name."""

    name: str
    opened_by: tuple[str, ...]
    """Classes of transformers that open weights for it; the first that knows the network does."""
    ends: tuple[str, ...] = ()
    """Ends of the names of classes that are made for it."""
    loader: str = _ANY
    """Optimum's class that loads its ONNX file."""


_TASKS = (
    OptimumTask(
        "audio-classification",
        ("AutoModelForAudioClassification",),
        ("ForAudioClassification",),
        "ORTModelForAudioClassification",
    ),
    OptimumTask(
        "audio-frame-classification",
        ("AutoModelForAudioFrameClassification",),
        ("ForAudioFrameClassification",),
        "ORTModelForAudioFrameClassification",
    ),
    OptimumTask("audio-xvector", ("AutoModelForAudioXVector",), ("ForXVector",), "ORTModelForAudioXVector"),
    OptimumTask(
        "automatic-speech-recognition", ("AutoModelForCTC", "AutoModelForSpeechSeq2Seq"), ("ForCTC",), "ORTModelForCTC"
    ),
    OptimumTask("depth-estimation", ("AutoModelForDepthEstimation",), ("ForDepthEstimation",)),
    OptimumTask("fill-mask", ("AutoModelForMaskedLM",), ("ForMaskedLM",), "ORTModelForMaskedLM"),
    OptimumTask(
        "image-classification",
        ("AutoModelForImageClassification",),
        ("ForImageClassification",),
        "ORTModelForImageClassification",
    ),
    OptimumTask(
        "image-segmentation",
        ("AutoModelForImageSegmentation", "AutoModelForUniversalSegmentation", "AutoModelForInstanceSegmentation"),
        ("ForUniversalSegmentation", "ForInstanceSegmentation", "ForSegmentation"),
    ),
    OptimumTask(
        "image-to-image", ("AutoModelForImageToImage",), ("ForImageSuperResolution",), "ORTModelForImageToImage"
    ),
    OptimumTask(
        "keypoint-detection", ("AutoModelForKeypointDetection",), ("ForPoseEstimation", "ForKeypointDetection")
    ),
    OptimumTask("masked-im", ("AutoModelForMaskedImageModeling",), ("ForMaskedImageModeling",)),
    OptimumTask(
        "multiple-choice", ("AutoModelForMultipleChoice",), ("ForMultipleChoice",), "ORTModelForMultipleChoice"
    ),
    OptimumTask("object-detection", ("AutoModelForObjectDetection",), ("ForObjectDetection",)),
    OptimumTask(
        "question-answering",
        ("AutoModelForQuestionAnswering",),
        ("ForQuestionAnswering",),
        "ORTModelForQuestionAnswering",
    ),
    OptimumTask(
        "semantic-segmentation",
        ("AutoModelForSemanticSegmentation",),
        ("ForSemanticSegmentation",),
        "ORTModelForSemanticSegmentation",
    ),
    OptimumTask(
        "text-classification",
        ("AutoModelForSequenceClassification",),
        ("ForSequenceClassification",),
        "ORTModelForSequenceClassification",
    ),
    OptimumTask(GENERATION, ("AutoModelForCausalLM",), ("ForCausalLM", "LMHeadModel"), "ORTModelForCausalLM"),
    OptimumTask("text2text-generation", ("AutoModelForSeq2SeqLM",)),
    OptimumTask(
        "token-classification",
        ("AutoModelForTokenClassification",),
        ("ForTokenClassification",),
        "ORTModelForTokenClassification",
    ),
    OptimumTask("zero-shot-image-classification", ("AutoModelForZeroShotImageClassification",)),
    OptimumTask("zero-shot-object-detection", ("AutoModelForZeroShotObjectDetection",)),
    # the last, as its end is that of others too
    OptimumTask(
        "feature-extraction",
        ("AutoModel",),
        ("Model", "ModelWithProjection", "ForFeatureExtraction"),
        "ORTModelForFeatureExtraction",
    ),
)
_BY_NAME = {task.name: task for task in _TASKS}
_SYNONYMS = {
    "audio-ctc": "automatic-speech-recognition",
    "causal-lm": GENERATION,
    "default": "feature-extraction",
    "image-feature-extraction": "feature-extraction",
    "masked-lm": "fill-mask",
    "sentence-similarity": "feature-extraction",
    "seq2seq-lm": "text2text-generation",
    "sequence-classification": "text-classification",
    "speech2seq-lm": "automatic-speech-recognition",
    "summarization": "text2text-generation",
    "translation": "text2text-generation",
    "zero-shot-classification": "text-classification",
}
"""Optimum's other names, `TasksManager._SYNONYM_TASK_MAP`."""
_NOT_HERE = (
    *("document-question-answering", "image-text-to-text", "image-to-text", "inpainting", "mask-generation"),
    *("reinforcement-learning", "text-to-audio", "text-to-image", "time-series-forecasting"),
    "visual-question-answering",
)
"""Optimum's tasks of several networks, or of inputs that nothing here draws."""
_OF_OUTPUTS = {
    "last_hidden_state": "feature-extraction",
    "token_embeddings": "feature-extraction",
    "sentence_embedding": "feature-extraction",
    "start_logits": "question-answering",
    "predicted_depth": "depth-estimation",
    "reconstruction": "image-to-image",
}
"""Output to the one task that has it."""
_SOUNDS = ("input_values", "input_features")
"""Inputs that hear."""
TASK_NAMES = tuple(sorted(f"{name}{WITH_PAST}" if name == GENERATION else name for name in _BY_NAME))
"""Those that `edgeopt export` takes."""


def read_task(name: str) -> OptimumTask:
    """Return what a name stands for; of an encoder with a decoder `-with-past` changes nothing: the encoder has none.

    Raises:
        EdgeoptError: If optimum has no such task.
        UnsupportedError: If it has, and edgeopt does not export it.
    """
    plain = name.removesuffix(WITH_PAST)
    if _SYNONYMS.get(plain, plain) == GENERATION and name == plain:
        raise UnsupportedError(
            f"{name} is a model without its past, which computes each text anew for each token",
            remedy=f"write --task {GENERATION}{WITH_PAST}",
        )
    if plain in _NOT_HERE:
        raise UnsupportedError(
            f"edgeopt exports no network for the task {plain}",
            remedy=f"optimum-cli export onnx --task {plain} may; edgeopt takes each file of its folder",
        )
    optimum_task = _BY_NAME.get(_SYNONYMS.get(plain, plain))
    if optimum_task is None:
        close = get_close_matches(plain, [*_BY_NAME, *_SYNONYMS], n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise EdgeoptError(
            f"no task is called {short(name)}", remedy=f"{meant}optimum's names: {', '.join(TASK_NAMES)}"
        )
    return optimum_task


def task_of_class(
    class_name: str, inputs: Collection[str] = (), outputs: Collection[str] | None = None
) -> OptimumTask | None:
    """Return the task that a network was exported for; None where neither its class nor its outputs tell.

    Args:
        class_name: That its configuration names, whose head may have been left out.
        inputs: Names of its inputs.
        outputs: Names of its outputs; None: as its class has them.
    """
    optimum_task = next((task for task in _TASKS if class_name.endswith(task.ends)), None) if class_name else None
    if optimum_task and optimum_task.name == "text-classification" and {*inputs} & {*_SOUNDS}:
        optimum_task = _BY_NAME["audio-classification"]  # Wav2Vec2ForSequenceClassification
    shown = next((_OF_OUTPUTS[name] for name in outputs or () if name in _OF_OUTPUTS), "")
    if shown and "logits" not in (outputs or ()):
        return _BY_NAME[shown]
    return optimum_task


def loader_of(task: OptimumTask | None) -> str:
    """Return optimum's class that loads an ONNX file made for a task; of one that is not known, that for any."""
    return task.loader if task else _ANY
