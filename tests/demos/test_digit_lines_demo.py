"""The parts of the digit-line demo, and all of it on a few lines."""

from __future__ import annotations

import os

import decode
import h5py
import lines
import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "demos", "digits")


@pytest.fixture(scope="module")
def digits():
    return lines.load_digits(os.path.join(DEMO, "digits.hdf"))


def test_digits_vary_but_stay_on_the_line(digits):
    rng = np.random.default_rng(3)
    drawn = [lines.draw_digit(digits.images[i], rng) for i in range(200)]
    assert len({part.shape[0] for part in drawn}) > 4
    assert all(part.shape[1] == lines.HEIGHT and part.min() >= 0 and part.max() <= 1 for part in drawn)
    ink = sum(part.sum() for part in drawn) / digits.images[:200].sum()
    assert 0.8 < ink < 1.0  # strength is 0.85 on average, stretch 1.05


def test_an_unchanged_digit_is_drawn_as_it_is(digits):
    class Middle:
        """In place of a random generator: neither stretch nor slant, two rows down, full strength."""

        values = iter([1.0, 2.0, 0.0, 1.0])

        def uniform(self, low: float, high: float) -> float:
            return next(self.values)

    image = digits.images[7]
    ink = np.flatnonzero(image.any(axis=0))
    drawn = lines.draw_digit(image, Middle())
    np.testing.assert_allclose(drawn[:, 2:10].T, image[:, ink[0] : ink[-1] + 1], atol=1e-6)
    assert not drawn[:, :2].any() and not drawn[:, 10:].any()


def test_every_image_is_used_about_equally_often(digits):
    composed = lines.compose(digits, np.arange(100, 200), 60, (5,))
    counts = np.bincount(np.concatenate([line.sources for line in composed]), minlength=200)
    assert not counts[:100].any() and counts[100:200].min() >= counts[100:200].max() - 1


def test_too_few_images():
    with pytest.raises(ValueError, match="450 images are too few"):
        lines.split_sources(450, 1)


def test_failed_write_leaves_the_old_file(digits, tmp_path):
    path = tmp_path / "x.hdf"
    path.write_text("old")
    with pytest.raises(ValueError):
        lines.write_hdf(str(path), [], "x", {})
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x.hdf"]


@pytest.mark.parametrize(
    "best, expected",
    [
        ([2, 2, 2], []),
        ([0, 0, 1, 1], [0, 1]),
        ([2, 1, 2, 1, 1, 0, 2], [1, 1, 0]),
    ],
)
def test_greedy_ctc(best, expected):
    assert decode.greedy_ctc(np.eye(3)[best]) == expected


@pytest.mark.parametrize(
    "a, b, distance", [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("1233", "133", 1)]
)
def test_edit_distance(a, b, distance):
    assert decode.edit_distance(a, b) == decode.edit_distance(b, a) == distance


def write_forward(path, recognised):
    """Write what the task forward writes, of the given label sequences, with a blank between labels."""
    best = [[x for label in labels for x in (label, 10)] for labels in recognised.values()]
    outputs = [np.eye(11, dtype="float32")[labels] for labels in best]
    with h5py.File(path, "w") as file:
        file["inputs"] = np.concatenate(outputs)
        file["seqLengths"] = np.array([[len(x), 0] for x in outputs], "int32")
        file.create_dataset("seqTags", data=list(recognised), dtype=h5py.string_dtype())


@pytest.fixture
def results(digits, tmp_path):
    """Return a dataset of 12 lines, and outputs in another order, with one digit replaced and one lost."""
    composed = lines.compose(digits, np.arange(100), 12, (1,))
    lines.write_hdf(str(tmp_path / "heldout.hdf"), composed, "heldout", {})
    hypotheses = {"heldout-%05d" % i: line.labels.tolist() for i, line in enumerate(composed)}
    hypotheses["heldout-00003"][1] = (hypotheses["heldout-00003"][1] + 1) % 10
    hypotheses["heldout-00011"].pop()
    write_forward(tmp_path / "forward.hdf", dict(reversed(list(hypotheses.items()))))
    return tmp_path, hypotheses


def test_recognise(results):
    directory, hypotheses = results
    recognised = decode.recognise(str(directory / "heldout.hdf"), str(directory / "forward.hdf"))
    assert {line.tag: line.hypothesis for line in recognised} == hypotheses
    assert {line.tag: line.num_errors for line in recognised if line.num_errors} == {
        "heldout-00003": 1,
        "heldout-00011": 1,
    }
    num_digits = sum(len(line.reference) for line in recognised)
    assert decode.label_error_rate(recognised) == pytest.approx(200 / num_digits)


def test_recognise_names_a_missing_line(results):
    directory, hypotheses = results
    del hypotheses["heldout-00005"]
    write_forward(directory / "forward.hdf", hypotheses)
    with pytest.raises(ValueError, match="lacks 1 lines .* 'heldout-00005'"):
        decode.recognise(str(directory / "heldout.hdf"), str(directory / "forward.hdf"))


@pytest.mark.slow
def test_draw(results, run_demo):
    directory, _ = results
    (directory / "learning_rates").write_text(
        "{1: EpochData(learningRate=0.1, error={'train_score': 2.5, 'train_error': 1.0, 'dev_score': 2.0}),\n"
        "2: EpochData(learningRate=0.1, error={'train_score': 0.5, 'train_error': 0.1, 'dev_score': 0.4}),\n"
        "3: EpochData(learningRate=0.05, error={}),\n}\n"
    )
    output = run_demo(os.path.join(DEMO, "draw.py"), str(directory))
    assert "label error rate on 12 held-out lines: " in output
    for name in ("learning_curve.png", "recognised.png"):
        content = (directory / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 10_000


def test_marked_digits():
    import draw

    assert draw.marked([1, 2, 3], [1, 3]) == [("1", draw.RIGHT), ("2", draw.WRONG), ("3", draw.RIGHT)]


@pytest.mark.slow
def test_whole_demo_on_few_lines(run_demo, tmp_path):
    output = run_demo(os.path.join(DEMO, "run.py"), "--quick", "--work", str(tmp_path))
    assert "label error rate: " in output and "of 20 held-out lines" in output
    assert {"learning_curve.png", "recognised.png", "learning_rates", "eval_scores", "forward.hdf", "model"} <= set(
        os.listdir(tmp_path / "out")
    )
