"""The MDLSTM demo on the digit lines: all its steps on a few lines."""

from __future__ import annotations

import os
import re

import decode
import pytest

DEMO = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "demos", "digits")


@pytest.mark.slow
def test_check(run_demo):
    table = run_demo("-m", "returnn_tf", "check", os.path.join(DEMO, "mdlstm.config"), "--no-data")
    assert re.search(r"(?m)^output +softmax +\[", table) and " mdlstm " in table


@pytest.mark.long  # the steps are those of test_digit_lines_demo.py
def test_whole_demo_on_few_lines(run_demo, tmp_path):
    output = run_demo(os.path.join(DEMO, "run.py"), "mdlstm", "--quick", "--work", str(tmp_path))
    assert "label error rate: " in output and "of 20 held-out lines" in output
    out = tmp_path / "out"
    for name in ("mdlstm_learning_curve.png", "mdlstm_recognised.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert len(decode.recognise(str(out / "heldout.hdf"), str(out / "mdlstm_forward.hdf"))) == 20
