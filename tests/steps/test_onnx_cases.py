"""Models that ONNX ships for backends: those that ONNX Runtime runs go through `simplify` and `fuse`, and stay equal.

All of them: `benchmarks/corpus.py --onnx`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from onnx_cases import cases, judge

KINDS = {"simple": 15, "pytorch-operator": 20, "pytorch-converted": 55, "node": 190}
"""With the least number of each that ONNX Runtime runs."""
NODES = (
    *("argmax", "clip", "concat", "constant", "constantofshape", "conv", "convtranspose", "cumsum"),
    *("dequantizelinear", "dynamicquantizelinear", "einsum", "expand", "flatten", "gather", "gatherelements"),
    *("gathernd", "gemm", "groupnormalization", "gru", "identity", "layernormalization", "loop", "lstm", "matmul"),
    *("mod", "nonmaxsuppression", "nonzero", "onehot", "optionalgetelement", "optionalhaselement", "pad"),
    *("qlinearconv", "qlinearmatmul", "quantizelinear", "reshape", "reversesequence", "rnn", "scan", "scatternd"),
    *("sequenceinsert", "shape", "slice", "softmax", "split", "splittosequence", "squeeze", "tfidfvectorizer"),
    *("tile", "topk", "transpose", "unique", "unsqueeze", "where"),
)
NO_TENSOR = "is no tensor but of kind"


@pytest.mark.parametrize("kind", KINDS)
def test_they_stay_equal_and_small(kind, tmp_path):
    ends, wrong = Counter(), {}
    for case in cases(kind, NODES):
        verdict = judge(case, tmp_path)
        is_told = verdict.end == "refused" and NO_TENSOR in verdict.reason
        ends["sequence" if is_told else verdict.end] += 1
        if (verdict.end in ("refused", "differs", "traceback") and not is_told) or verdict.grows:
            wrong[case.name] = verdict
    assert not wrong, wrong
    assert ends["equal"] >= KINDS[kind], ends
