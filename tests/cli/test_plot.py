"""returnn-tf plot: draws recorded learning-rate files."""

import os

import pytest

from returnn_tf.cli.main import main
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.monitoring.curves import draw_curves

OUTPUTS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "outputs")


@pytest.mark.parametrize("name", ["run_newbob.data", "newbob_multi_output.data", "newbob_example.data"])
@pytest.mark.parametrize("suffix, magic", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_draws(name, suffix, magic, tmp_path, capsys):
    """A picture in the format of the suffix."""
    pytest.importorskip("matplotlib")
    path = tmp_path / ("out." + suffix)
    assert main(["plot", os.path.join(OUTPUTS, name), str(path)]) == 0
    assert path.read_bytes().startswith(magic) and path.stat().st_size > 5000
    assert capsys.readouterr().out == "wrote %s\n" % path


def test_errors(tmp_path, capsys):
    """Missing or empty file, unknown format, a place where nothing can be written."""
    pytest.importorskip("matplotlib")
    source = os.path.join(OUTPUTS, "run_newbob.data")
    assert main(["plot", source]) == 2
    assert main(["plot", str(tmp_path / "none"), "x.png"]) == 1
    (tmp_path / "empty").write_text("{\n1: EpochData(learningRate=0.1, error={}),\n}\n")
    assert main(["plot", str(tmp_path / "empty"), "x.png"]) == 1
    assert main(["plot", source, str(tmp_path / "x.bmpp")]) == 2
    assert main(["plot", source, str(tmp_path / "no" / "x.png")]) == 2
    err = capsys.readouterr().err
    for words in ("expected two files", "not found", "no scores to draw", "unknown format", "can't be written"):
        assert words in err
    assert "Traceback" not in err


@pytest.fixture
def rates(tmp_path):
    """Return the path of a file with 30 epochs: scores that fall by two orders, and errors that end at zero."""
    folder = tmp_path / "first-try" / "out"
    folder.mkdir(parents=True)
    scores = {
        e: {"train_score": 3 / e**2, "dev_score": 4 / e**2, "dev_error": max(0, 1 / e - 0.05)} for e in range(1, 31)
    }
    lines = ["%d: EpochData(learningRate=%r, error=%r),\n" % (e, 0.1 / e, scores[e]) for e in scores]
    (folder / "learning_rates").write_text("{\n%s}\n" % "".join(lines))
    return str(folder / "learning_rates")


def texts_of(rates, tmp_path, *options):
    """Return the texts and the number of drawn lines of the SVG that the command writes."""
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    path = tmp_path / "out.svg"
    with rc_context({"svg.fonttype": "none"}):
        assert main(["plot", rates, str(path), *options]) == 0
    svg = path.read_text()
    return [part.partition("</text>")[0].rpartition(">")[2] for part in svg.split("<text")[1:]]


@pytest.mark.slow
def test_title(rates, tmp_path):
    """It has the name of the run, not its path; that of the user is taken as it is."""
    assert "first-try: best dev_error 0 in epoch 20 of 30" in texts_of(rates, tmp_path)
    texts = texts_of(rates, tmp_path, "--title", "Mine")
    assert "Mine" in texts and not any("first-try" in text for text in texts)


def test_keys(rates, tmp_path, capsys):
    texts = texts_of(rates, tmp_path, "--keys", "dev_score")
    assert "dev_score" in texts and "train_score" not in texts and "error" not in texts
    assert main(["plot", rates, str(tmp_path / "x.png"), "--keys", "dev_scor"]) == 2
    assert "there is no score 'dev_scor'. Did you mean 'dev_score'?" in capsys.readouterr().err
    assert main(["plot", rates, str(tmp_path / "x.png"), "--log", "--linear"]) == 2
    assert main(["plot", rates, str(tmp_path / "x.png"), "--smooth", "0"]) == 2


def epochs_of(values, rate=0.1):
    return {"": {e: EpochData(rate, {"dev_score": value}) for e, value in enumerate(values, 1)}}


@pytest.mark.parametrize(
    "values, log, scale, low, high",
    [
        ([1.0, 0.5, 0.3, 0.2, 0.1, 0.05], None, "log", 0.01, 2.0),
        ([1.0, 0.9, 0.8, 0.7, 0.6, 0.5], None, "linear", 0.4, 1.1),
        ([8.0, 3.0, 1.0, 1.2, 1.1, 1.15], False, "linear", 0.0, 9.0),
        ([8.0, 3.0, 1.01, 1.2, 1.1, 1.15], None, "linear", 1.0, 1.3),
        ([8.0, 3.0, 0.0, 0.2, 0.1, 0.0], None, "linear", -0.1, 0.3),
        ([8.0, 3.0, 0.0, 0.2, 0.1, 0.0], True, "log", 0.05, 20.0),
        ([0.0, 0.0], True, "linear", -1.0, 1.0),
        ([float("nan"), float("nan")], None, "linear", -1.0, 1.0),
    ],
)
def test_axis_of_scores(values, log, scale, low, high):
    """What is drawn of the last epochs fills the panel."""
    pytest.importorskip("matplotlib")
    panel = draw_curves(epochs_of(values), log=log).figure.axes[0]
    assert panel.get_yscale() == scale
    assert low <= panel.get_ylim()[0] and panel.get_ylim()[1] <= high


@pytest.mark.parametrize(
    "rates", [[0.005] * 3, [0.0006, 0.0003], [0.01, 0.001], [1.0, 1e-5], [0.0009, 0.0001], [3e-7] * 2]
)
def test_ticks_of_learning_rates(rates):
    """There are several ticks within the panel, and each is a number as people write it."""
    pytest.importorskip("matplotlib")
    epochs = {e: EpochData(rate, {"dev_score": 1.0}) for e, rate in enumerate(rates, 1)}
    picture = draw_curves({"": epochs})
    picture.png()
    panel = picture.figure.axes[-1]
    low, high = panel.get_ylim()
    shown = [label.get_text() for label in panel.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(shown) >= 3 and len(shown) <= 12
    assert [float(text) for text in shown] == sorted(set(map(float, shown)))


def test_smooth():
    """The mean of an epoch and the ones before it, beside the values."""
    pytest.importorskip("matplotlib")
    raw, smooth = draw_curves(epochs_of([4.0, 2.0, 3.0, 1.0]), smooth=3).figure.axes[0].lines
    assert list(raw.get_ydata()) == [4.0, 2.0, 3.0, 1.0] and list(smooth.get_ydata()) == [4.0, 3.0, 3.0, 2.0]


def test_model_folder(tmp_path, capsys):
    """A folder is that of the checkpoints, as for the other commands on runs."""
    pytest.importorskip("matplotlib")
    assert main(["plot", str(tmp_path), str(tmp_path / "x.png")]) == 2
    assert "a folder without a run" in capsys.readouterr().err


@pytest.mark.parametrize("number", [9, 13, 60])
def test_many_scores_leave_room_for_the_curves(number):
    """The legend beside the panel gets more columns, and the picture more width; each curve looks different."""
    pytest.importorskip("matplotlib")
    scores = {"dev_score_%d" % n: 1.0 + n for n in range(number)}
    figure = draw_curves({"run": {e: EpochData(0.1, scores) for e in (1, 2)}}).figure
    figure.canvas.draw()
    panel = figure.axes[0]
    box = panel.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    assert box.width > 5 and box.height > 1.5
    looks = {(line.get_color(), line.get_linestyle()) for line in panel.get_lines()}
    assert len(looks) == min(number, 40)
