"""A point's repair is chosen on pictures that it has not seen, and then fitted on those as well."""

import numpy as np
from scripted_pruning import STEP, pictures, wide

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.groups import trace
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.repairs import Repairs
from edgeopt.steps.prune.statistics import collect
from edgeopt.tasks._losses import relative_error


def outputs(model, fed):
    session = EXECUTOR.open(model.data, SessionOptions())
    found = [session.run(one) for one in fed]
    session.close()
    return found


def prepared(count=12):
    model = wide()
    fed = pictures(model, count)
    groups = trace(model)
    dense = Dense(model, groups, collect(model, iter(fed[:8]), groups), step=STEP)
    reference = outputs(model, fed[8:])
    kept = dense.kept({one.name: 8 for one in dense.free})
    return dense, fed, kept, lambda one: relative_error(outputs(one, fed[8:]), reference)


def test_the_better_repair_on_held_out_pictures_is_taken():
    dense, fed, kept, loss = prepared()
    mended = next(Repairs(dense, loss, fed[:8], fed[8:])(kept))
    plain = dense.cut(kept)
    assert mended.how in ("local", "sequential")
    assert loss(mended.judged) <= loss(plain) + 1e-9


def test_where_the_sequential_repair_wins_it_is_fitted_again_on_all_pictures():
    dense, fed, kept, loss = prepared()

    def favours_the_last(model):
        favours_the_last.calls += 1
        return 1.0 / favours_the_last.calls

    favours_the_last.calls = 0
    repairs = Repairs(dense, favours_the_last, fed[:8], fed[8:])
    mended = next(repairs(kept))
    assert mended.how == "sequential"
    assert mended.model.fingerprint != mended.judged.fingerprint
    assert loss(mended.model) < loss(mended.judged)
    favours_the_last.calls = 0
    assert next(repairs(kept)).model.fingerprint == mended.model.fingerprint
    alone = next(Repairs(dense, lambda one: 0.0, fed[:8])(kept))
    assert alone.model is alone.judged


def test_a_sequential_repair_that_lies_far_behind_is_not_tried_again():
    dense, fed, kept, _ = prepared()
    asked = []

    def worse_each_time(model):
        asked.append(model.fingerprint)
        return float(2 ** len(asked))

    repairs = Repairs(dense, worse_each_time, fed[:8])
    next(repairs(kept))
    assert len(asked) == 3
    next(repairs(kept))
    assert len(asked) == 5


def test_without_pictures_nothing_is_mended():
    model = wide()
    dense = Dense(model, trace(model), None, step=STEP)
    kept = dense.kept({one.name: 8 for one in dense.free})
    mended = next(Repairs(dense, lambda _: 0.0, [])(kept))
    assert mended.how == ""
    assert np.array_equal(mended.model.data, dense.cut(kept).data)
    assert next(Repairs(dense, lambda _: 0.0, [])({})).model is model
