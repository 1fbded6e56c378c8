"""The attention demo on the digit lines: all its steps on a few lines, greedy search, a picture of the weights."""

from __future__ import annotations

import ast
import os
import re
import shutil

import decode
import lines
import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "demos", "digits")
CONFIG = os.path.join(DEMO, "attention.config")


@pytest.mark.long
def test_whole_demo_on_few_lines(run_demo, tmp_path):
    output = run_demo(os.path.join(DEMO, "run.py"), "attention", "--quick", "--work", str(tmp_path))
    assert "label error rate: " in output and "of 20 held-out lines" in output
    out = tmp_path / "out"
    for name in ("attention_learning_curve.png", "attention_recognised.png", "attention.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    recognised = decode.recognise_by_search(str(out / "heldout.hdf"), str(out / "attention_search.py"))
    assert len(recognised) == 20
    # what the program counted itself
    wrong = re.search(r"decision: label errors [\d.]+% \((\d+) of (\d+)", output)
    assert wrong and int(wrong[1]) == sum(line.num_errors for line in recognised)
    assert int(wrong[2]) == sum(len(line.reference) for line in recognised)

    greedy = str(out / "greedy.py")
    options = ["++task", "search", "++search_output_file", greedy, "++search_output_file_format", "py"]
    run_demo("-m", "returnn_tf", CONFIG, *options, "++beam_size", "1", "++search_output_layer", "output")
    with open(greedy, encoding="utf8") as file:
        hypotheses = ast.literal_eval(file.read())
    assert set(hypotheses) == {line.tag for line in recognised}
    assert {len(of_line) for of_line in hypotheses.values()} == {1}


def test_unknown_demo(run_demo):
    with pytest.raises(AssertionError, match="there is no .*nothing.config; there are: attention, digits"):
        run_demo(os.path.join(DEMO, "run.py"), "nothing")


@pytest.mark.parametrize("separator", ["", " "])
def test_recognise_by_search(separator, tmp_path):
    composed = lines.compose(lines.load_digits(os.path.join(DEMO, "digits.hdf")), np.arange(100), 2, (1,))
    lines.write_hdf(str(tmp_path / "lines.hdf"), composed, "x", {})
    first, second = (line.labels.tolist() for line in composed)
    found = {"x-00001": separator.join(map(str, second[1:])), "x-00000": separator.join(map(str, first))}
    (tmp_path / "found.py").write_text(repr(found))
    recognised = decode.recognise_by_search(str(tmp_path / "lines.hdf"), str(tmp_path / "found.py"))
    assert [(line.tag, line.num_errors) for line in recognised] == [("x-00000", 0), ("x-00001", 1)]
    assert recognised[1].reference == second and recognised[1].hypothesis == second[1:]


def test_bent_digits_stay_digits():
    """As much ink as before, near the same place; and test lines are as they were without bending."""
    digits = lines.load_digits(os.path.join(DEMO, "digits.hdf"))
    for i in range(50):
        plain, bent = (lines.draw_digit(digits.images[i], np.random.default_rng(i), bend) for bend in (0.0, 0.5))
        assert plain.shape == bent.shape and bent.min() >= 0 and bent.max() <= 1
    inks = [
        sum(lines.draw_digit(digits.images[i], np.random.default_rng(i), bend).sum() for i in range(200))
        for bend in (0.0, 0.5)
    ]
    assert inks[1] == pytest.approx(inks[0], rel=0.1)


def test_weights_of_a_line_are_drawn(tmp_path):
    import draw_attention

    line = decode.Recognised("x", np.eye(12, dtype="float32").repeat(2, 0), [1, 2], [1, 3, 2])
    weights = np.eye(3, 12)
    draw_attention.draw([draw_attention.Attended(line, weights)], str(tmp_path / "x.png"))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.skipif(not (shutil.which("make") and shutil.which("g++")), reason="needs make and C compilers")
def test_decoders_without_python_read_the_same(run_demo, tmp_path):
    """Also of a model that has learned nothing: most of its hypotheses are cut off by the limit of steps."""
    output = run_demo(os.path.join(ROOT, "demos", "decoder", "run.py"), "--quick", "--work", str(tmp_path))
    assert re.findall(r"(?m)^(C\S*) .* (\d+ of \d+) ", output) == [("C++", "20 of 20"), ("C", "20 of 20")]
