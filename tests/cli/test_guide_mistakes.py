"""Configs of the guides, each broken as a beginner would: the message leads to the cause in one step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.test_beginner_mistakes import NO_DATA, Mistake, check
from tests.docs.run_page import blocks_of
from tests.docs.test_snippets import ROOT

FIRST, LOOP, DECODER = "first.config", "loop.config", "decoder.config"
#: ``config`` is here the name of a file that a page has.
SWAPPED = """target = "data"
network["fw"]["from"] = network["bw"]["from"] = "data:classes"
"""
SWAPPED_DATA = """train = {
    "class": "MetaDataset", "seq_order_control_dataset": "hdf", "datasets": {"hdf": train},
    "data_map": {"data": ("hdf", "classes"), "classes": ("hdf", "data")},
}
"""
MISTAKES = {
    "features of another corpus": Mistake(
        FIRST, '"data": {"dim": 8}', '"data": {"dim": 40}',
        r"'train' has 8 features for data key 'data', but extern_data declares 40\. Write extern_data", "extern-data",
    ),
    "number of the last label": Mistake(
        FIRST, '"dim": 5,', '"dim": 4,',
        r"'train' has 5 labels for data key 'classes', but extern_data declares 4\. Write extern_data", "extern-data",
    ),
    "target is the input": Mistake(
        FIRST, 'target = "classes"', 'target = "data"',
        r"reads 'data' itself: name the data key with the labels as target", "ctc",
    ),
    "source is the target": Mistake(
        FIRST, '"direction": 1, "from": "data"', '"direction": 1, "from": "classes"',
        r"no layer 'classes'\. Write 'data:classes' for .* labels, or 'data' for the features", "sources",
    ),
    "data and targets are swapped": Mistake(
        FIRST, "num_epochs = 6", SWAPPED,
        r"reads 'classes', which has labels, to predict 'data', which has features: swap", "ctc",
    ),
    "data and targets are swapped in the data": Mistake(
        FIRST, 'dev = {"class"', SWAPPED_DATA + 'dev = {"class"',
        r"'train' gives label indices of 5, .* for data key 'data', but extern_data declares 8 features", "extern-data",
    ),
    "one string of sources": Mistake(
        FIRST, '["fw", "bw"]', '["fw" "bw"]', r"Layer 'output' .* no layer 'fwbw'\. Did you mean 'fw'", "sources",
    ),
    "percent of dropout": Mistake(
        FIRST, '"dropout": 0.1', '"dropout": 10', r"'dropout' must be from 0 to below 1, got 10", "options",
    ),
    "list of learning rates": Mistake(
        FIRST, "learning_rate = 0.01", "learning_rate = [0.01, 0.005]",
        r"got the list \[0\.01, 0\.005\]\. Write learning_rates = \[0\.01, 0\.005\]", "settings",
    ),
    "decimal comma": Mistake(
        FIRST, "learning_rate = 0.01", "learning_rate = 0,5", r"got \(0, 5\)\. The decimal point is", "settings",
    ),
    "first half of a name": Mistake(
        FIRST, '"newbob_multi_epoch"', '"newbob_multi"', r"Did you mean 'newbob_multi_epoch'\?", "settings",
    ),
    "order of the sequences": Mistake(
        FIRST, "laplace:.100", "laplace.100", r"seq_ordering 'laplace\.100'\. Did you mean 'laplace'", "datasets",
    ),
    "loss of another alignment": Mistake(
        FIRST, '"loss": "ctc"', '"loss": "ce"',
        r"loss 'ce': unknown option 'beam_width'\..* 'beam_width' is an option of: ctc", "options",
    ),
    "sizes in a loop": Mistake(
        LOOP, '"activation": "sigmoid", "n_out": 16', '"activation": "sigmoid", "n_out": 15',
        r"Layer 'loop/output' .* different numbers of features, 15, 16\. Give them the same n_out", "dims", NO_DATA,
    ),
    "number of a source in a loop": Mistake(
        LOOP, "source(2)", "source(3)",
        r"Layer 'loop/output' .* the eval code has source\(3\), but there are 3 sources", "code-in-configs", NO_DATA,
    ),
    "the step itself": Mistake(
        LOOP, '["gate", "prev:output"', '["gate", "output"', r"in a cycle: loop/output <- loop/output\. .* 'prev:'",
        "sources", NO_DATA,
    ),
    "data key in a loop": Mistake(
        LOOP, '"from": "data:source"}', '"from": "data:sorce"}',
        r"Layer 'loop/input' .* no data key 'sorce'", "sources", NO_DATA,
    ),
    "steps of a loop": Mistake(
        LOOP, '"from": "data", "unit"', '"from": [], "unit"', r"number of steps is unknown", "loops", NO_DATA,
    ),
    "hypotheses of features": Mistake(
        DECODER, '"class": "choice", "target": "classes"', '"class": "choice", "target": "data"',
        r"Layer 'output/output' .* chooses labels, but the target 'data' has none", "targets", NO_DATA,
    ),
    "class of the end is missing": Mistake(
        DECODER, '"prob": {"class": "softmax"', '"prob": {"class": "softmax", "n_out": 5',
        r"has 5 outputs but the target 'classes' has 6 labels\. Omit n_out", "targets", NO_DATA,
    ),
    "embedding of another label": Mistake(
        DECODER, '"apply(0)"', '"apply(6)"', r"Did you mean 'apply\(0\)'\?", "loops", NO_DATA,
    ),
    "labels without embedding": Mistake(
        DECODER, '["s", "att", "prev:embedding"]', '["s", "att", "data:classes"]',
        r"Layer 'output/readout' .* is sparse .* Embed it by a linear layer first", "sparse-data", NO_DATA,
    ),
    "the label to be predicted": Mistake(
        DECODER, '["s", "att", "prev:embedding"]', '["s", "att", "embedding"]',
        r"depend on each other in a cycle: .*output/readout .* 'prev:'", "sources", (*NO_DATA, "++task", "search"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of the pages, and with little data."""
    folder = tmp_path_factory.mktemp("guides")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for page in ("first-config", "loops-and-attention"):
            for block in blocks_of((ROOT / "docs/guide" / (page + ".md")).read_text(encoding="utf8")):
                if block.mark.startswith("file: "):
                    Path(block.mark[len("file: ") :]).write_text(block.text, encoding="utf8")
                elif "HDFWriter" in block.text:
                    exec(block.text.replace("300", "20"), {})
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_message(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake = MISTAKES[name]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    changed = tmp_path / mistake.config
    text = changed.read_text(encoding="utf8")
    assert mistake.right in text, "the page has changed"
    changed.write_text(text.replace(mistake.right, mistake.wrong, 1), encoding="utf8")
    monkeypatch.chdir(tmp_path)
    check(mistake, capsys, mistake.config)
