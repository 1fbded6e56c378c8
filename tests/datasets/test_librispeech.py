"""LibriSpeechCorpus: all recorded options, their neighbours, and directories which are something else."""

from __future__ import annotations

import pytest

from tests.datasets.recorded import ROOT, by_name, load_json
from tests.datasets.test_oggzip import check_case, located

FOLDER = ROOT / "librispeech"
CASES = by_name(load_json("librispeech/librispeech.json")["cases"])


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    options = located(CASES[name]["options"], FOLDER)
    check_case(CASES[name], FOLDER, options)
