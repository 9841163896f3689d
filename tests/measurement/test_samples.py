from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.frames.attribution import check_attribution, share_stages
from edgeopt.measurement.samples import Samples, join_samples

STAGES = ("load", "preprocess", "upload", "execute", "download", "postprocess")


def make(n: int = 20, warm: int = 5, variant: str = "", **columns: np.ndarray) -> Samples:
    rng = np.random.default_rng(n)
    times = rng.integers(1_000_000, 2_000_000, (n, len(STAGES)))
    warmup = np.arange(n) < warm
    return Samples(STAGES, times, times.sum(axis=1) + 1000, warmup, variant, **columns)


def test_overhead_is_what_no_stage_accounts_for():
    assert (make().overhead_ns == 1000).all()


def test_a_stage_is_found_by_its_name_and_no_other_name_is_taken():
    samples = make()
    assert (samples.stage("execute") == samples.times_ns[:, 3]).all()
    assert (samples.part("frame") == samples.frame_ns).all()
    with pytest.raises(ValueError, match="no stage 'lode'"):
        samples.stage("lode")


@pytest.mark.parametrize("names", [("decode", "decode"), ("frame", "decode"), ("decode", "overhead")])
def test_a_name_that_a_summary_would_tell_twice_is_refused(names):
    with pytest.raises(ValueError, match="names of their own"):
        Samples(names, np.zeros((3, 2), np.int64), np.zeros(3, np.int64), np.zeros(3, np.bool_))


def test_columns_of_another_length_are_refused():
    with pytest.raises(ValueError, match="times_ns"):
        Samples(STAGES, np.zeros((3, 2), np.int64), np.zeros(3, np.int64), np.zeros(3, np.bool_))
    with pytest.raises(ValueError, match="n_out"):
        make(n_out=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="belong together"):
        make(wall_ns=np.zeros(3, np.int64))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_writing_and_reading_loses_no_sample(tmp_path_factory, n, warm, with_columns):
    columns = {"started_ns": np.arange(n) * 7, "dropped": np.arange(n) % 3 == 0} if with_columns else {}
    samples = make(n, warm, "é", **columns)
    path = tmp_path_factory.mktemp("raw") / "raw.npz"
    samples.save(path)
    again = Samples.read(path)
    assert (again.stages, again.variant, len(again)) == (samples.stages, "é", n)
    for name in ("times_ns", "frame_ns", "warmup", "started_ns", "dropped"):
        np.testing.assert_array_equal(getattr(again, name), getattr(samples, name))
    assert again.intended_ns is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"not a zip", None])
def test_a_file_without_samples_is_refused_with_a_remedy(tmp_path: Path, content):
    path = tmp_path / "raw.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidFileError, match=r"(is no \.npz|does not exist).*\n.*edgeopt bench"):
        Samples.read(path)


def test_a_damaged_column_is_refused(tmp_path: Path):
    path = tmp_path / "raw.npz"
    make(2000).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[2000:4000] = bytes(2000)
    path.write_bytes(damaged)
    with pytest.raises(InvalidFileError):
        Samples.read(path)


def test_arrays_of_another_kind_are_refused(tmp_path: Path):
    np.savez(tmp_path / "other.npz", frame_ns=np.zeros(3))
    with pytest.raises(InvalidFileError):
        Samples.read(tmp_path / "other.npz")


def test_steady_and_served_leave_out_warmup_and_lost_frames_only():
    dropped = np.zeros(20, np.bool_)
    dropped[10:12] = True
    samples = make(dropped=dropped)
    assert len(samples.steady()) == 15
    assert len(samples.steady().served()) == 13
    assert samples.lost.sum() == 2
    assert len(samples) == 20


def test_unmarked_frames_follow_their_rows_through_a_selection():
    samples = make(wall_ns=np.array([10, 20, 30]), wall_row=np.array([2, 7, 19]))
    steady = samples.steady()
    assert steady.wall_ns is not None
    assert steady.wall_row is not None
    assert (steady.wall_ns == [20, 30]).all()
    assert (steady.frame_ns[steady.wall_row] == samples.frame_ns[[7, 19]]).all()


def test_the_response_counts_from_the_intended_arrival():
    samples = make(intended_ns=np.arange(20) * 100, done_ns=np.arange(20) * 100 + 70)
    assert (samples.response_ns == 70).all()
    assert (make().response_ns == make().frame_ns).all()


def test_the_summary_is_plain_json_without_any_nan():
    for samples in (make(), make(0, 0), make(500)):
        text = json.dumps(samples.to_json(), allow_nan=False)
        assert set(json.loads(text)["times"]) == {"frame", "overhead", *STAGES}


def test_joined_rounds_keep_every_row_and_number_the_rounds():
    one = make(20, wall_ns=np.array([5]), wall_row=np.array([3]))
    two = make(30, wall_ns=np.array([6]), wall_row=np.array([4]), n_out=np.zeros(30, np.int64))
    both = join_samples([one, two])
    assert len(both) == 50
    assert both.round_id is not None
    assert np.bincount(both.round_id).tolist() == [20, 30]
    assert both.wall_row is not None
    assert both.wall_row.tolist() == [3, 24]
    assert both.n_out is None
    with pytest.raises(ValueError, match="same stages"):
        join_samples([make(variant="a"), make(variant="b")])


def test_stages_that_agree_with_the_unmarked_frames_are_valid():
    samples = make()
    rows = np.arange(8, 18)
    exact = make(wall_ns=samples.frame_ns[rows] - 1000, wall_row=rows)
    found = check_attribution(exact)
    assert (found.valid, found.residual_ns, found.n) == (True, 1000.0, 10)
    slow = make(wall_ns=samples.frame_ns[rows] // 2, wall_row=rows)
    assert not check_attribution(slow).valid
    assert str(check_attribution(slow)).endswith("allowed")


def test_frames_with_and_without_marks_are_compared_by_pairs():
    samples = make()
    rows = np.arange(8, 18)
    frames = samples.frame_ns[rows]
    disturbed = np.where(np.argsort(np.argsort(frames)) < 4, 5_000_000, 0)
    uneven = make(wall_ns=frames + disturbed, wall_row=rows)
    assert check_attribution(uneven).residual_ns == 0.0
    assert np.median(frames + disturbed) > np.median(frames), "medians of each alone would differ"


def test_marks_never_cost_less_than_nothing():
    samples = make()
    rows = np.arange(8, 18)
    faster = check_attribution(make(wall_ns=2 * samples.frame_ns[rows], wall_row=rows))
    assert not faster.valid
    assert "less than those without" in str(faster)
    near = check_attribution(make(wall_ns=samples.frame_ns[rows] + 1000, wall_row=rows))
    assert str(near).startswith("reading the clock between stages costs nothing, ")


def test_without_unmarked_frames_nothing_is_attributed():
    assert not check_attribution(make()).valid
    in_warmup = make(wall_ns=np.array([5]), wall_row=np.array([0]))
    assert check_attribution(in_warmup).n == 0


def test_the_tail_names_the_stage_that_makes_frames_slow():
    times = np.full((1000, 2), 10_000_000)
    times[980:, 1] = 90_000_000
    samples = Samples(("execute", "postprocess"), times, times.sum(axis=1), np.zeros(1000, np.bool_))
    shares = share_stages(samples)
    assert shares["postprocess"].mean_ratio == pytest.approx(11.6 / 21.6)
    assert shares["postprocess"].tail_ratio == pytest.approx(0.9)
    assert sum(share.mean_ratio for share in shares.values()) == pytest.approx(1.0)
    assert share_stages(make(0, 0)) == {}
