"""returnn-tf plot: draws recorded learning-rate files."""

import os

import pytest

from returnn_tf.cli.main import main

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
