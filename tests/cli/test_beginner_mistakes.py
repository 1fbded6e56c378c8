"""Configs of demos and docs, each broken as a beginner would: the message leads to the cause in one step.

All are found by ``returnn-tf check``, most of them without data.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from returnn_tf.cli.main import main
from returnn_tf.cli.new import write_project
from returnn_tf.cli.new.kinds import KINDS

ROOT = Path(__file__).parents[2]


class Mistake(NamedTuple):
    """A change of a config.

    :param config: below the root of the repository, or ``new KIND``
    :param right: a text in it
    :param wrong: what a beginner writes instead
    :param words: regular expression in the message
    :param topic: the page that it names
    """

    config: str
    right: str
    wrong: str
    words: str
    topic: str
    arguments: tuple[str, ...] = ()


NO_DATA = ("--no-data",)
TASK_12AX = "demos/12ax/12ax.config"
FRAMES = "demos/frame_classifier/frame_classifier.config"
ATTENTION = "demos/digits/attention.config"
COOKBOOK = "docs/cookbook/"
MISTAKES = {
    "wrong source name": Mistake(
        TASK_12AX, '"from": "lstm"', '"from": "ltsm"',
        r"Layer 'output' .* there is no layer 'ltsm'\. Did you mean 'lstm'\?", "sources",
    ),
    "wrong number of features": Mistake(
        TASK_12AX, '"dim": 9', '"dim": 10',
        r"'train' has 9 features for data key 'data', but extern_data declares 10\. Write extern_data", "extern-data",
    ),
    "one class less": Mistake(
        TASK_12AX, '"dim": 2,', '"dim": 1,',
        r"'train' has 2 labels for data key 'classes', but extern_data declares 1\. Write extern_data", "extern-data",
    ),
    "sparse is missing": Mistake(
        TASK_12AX, ', "sparse": True', "",
        r"label indices of 2, .* declares 2 features.*Write extern_data\['classes'\] = .*'sparse': True", "extern-data",
    ),
    "sparse is too much": Mistake(
        TASK_12AX, '{"dim": 9}', '{"dim": 9, "sparse": True}',
        r"data key 'data': it is float32, but .* declare it .* without 'sparse'", "extern-data",
    ),
    "no loss": Mistake(
        TASK_12AX, '"loss": "ce", ', "", r"has no loss, .* Give a layer the option 'loss'", "targets",
    ),
    "unknown unit": Mistake(
        TASK_12AX, '"unit": "lstm"', '"unit": "lsmt"', r"unknown unit 'lsmt'\. Did you mean 'lstm'", "options",
    ),
    "unknown dataset": Mistake(
        TASK_12AX, '"Task12AXDataset", "num_seqs": 200', '"Task12AxDataset", "num_seqs": 200',
        r"'dev': unknown dataset class 'Task12AxDataset'\. Did you mean", "datasets",
    ),
    "missing comma": Mistake(
        TASK_12AX, '"from": "data"},', '"from": "data"}',
        r"my\.config:\d+: not valid Python: .* forgot a comma", "config-file",
    ),
    "n_out of the output": Mistake(
        FRAMES, '"softmax", "loss"', '"softmax", "n_out": 11, "loss"',
        r"softmax has 11 outputs but the target 'classes' has 10 labels\. Omit n_out", "targets",
    ),
    "from is missing": Mistake(
        FRAMES, ', "from": "stacked"', "",
        r"Layer 'hidden0' .* the option 'from' is missing", "options",
    ),
    "misspelt axis": Mistake(
        FRAMES, '"stag:window"', '"stag:windows"',
        r"Layer 'stacked' .* 'stag:windows' means no axis of \[S\|context:window=15", "axes",
    ),
    "frames merged into features": Mistake(
        FRAMES, '["stag:window", "F"]', '["T", "F"]',
        r"time\*8 is dynamic\. Were frames merged into it.*\n +sources: stacked", "dims",
    ),
    "window is not merged": Mistake(
        FRAMES, '"from": "stacked"', '"from": "context"',
        r"only the output has context:window=15\. Reduce or expand one of them", "targets",
    ),
    "misspelt target": Mistake(
        "demos/digits/digits.config", '"target": "classes",\n        "from"', '"target": "clases",\n        "from"',
        r"the target 'clases' is neither a layer nor a data key\. Did you mean 'classes'", "targets", NO_DATA,
    ),
    "no class for the blank": Mistake(
        "demos/digits/digits.config", '"class": "softmax",', '"class": "softmax", "n_out": 10,',
        r"with 'ctc' it must have one more, for the blank: 11\. Omit n_out", "ctc", NO_DATA,
    ),
    "path of the data": Mistake(
        "demos/digits/digits.config", "out/train.hdf", "out/trian.hdf",
        r"'train' .*'out/trian\.hdf' does not exist \(current directory: ", "data-files",
    ),
    "base: is missing": Mistake(
        ATTENTION, '"base": "base:enc"', '"base": "enc"',
        r"Layer 'output/att' .* there is no layer 'enc'\. Write 'base:enc' for the outer layer", "sources", NO_DATA,
    ),
    "energies of different sizes": Mistake(
        ATTENTION, '"n_out": 64, "from": "s"', '"n_out": 63, "from": "s"',
        r"Layer 'output/energy_in' .* different numbers of features, 64, 63, 64\. Give them", "dims", NO_DATA,
    ),
    "prev: outside of the loop": Mistake(
        ATTENTION, '"enc_ctx": {', '"enc_2": {"class": "copy", "from": "prev:enc", "loss": "as_is"}, "enc_ctx": {',
        r"'prev:enc' needs the previous step of a loop", "loops", NO_DATA,
    ),
    "misspelt search layer": Mistake(
        ATTENTION, '= "decision"', '= "decison"',
        r"search_output_layer: layer 'decison' .* Did you mean 'decision'", "search", (*NO_DATA, "++task", "search"),
    ),
    "index of the blank": Mistake(
        "demos/digits/transducer.config", "BLANK = 10", "BLANK = 11",
        r"Layer 'output/output' .*: initial_output is 11, but the labels of this layer are 0 to 10", "loops", NO_DATA,
    ),
    "heads": Mistake(
        "new mt", '"heads": 4', '"heads": 3',
        r"blocks\.transformer_encoder\('encoder'\): dim is 64, which is not divisible by heads 3", "options",
    ),
    "labels of a decoder": Mistake(
        "new mt", 'extern_data["classes"]["dim"], end=END', 'extern_data["classes"]["dim"] + 1, end=END',
        r"num_labels of blocks\.transformer_decoder\('output'\) for target 'classes' is \d+, but the source", "dims",
    ),
    "residual connection": Mistake(
        COOKBOOK + "xlstm-lm.config", 'DIM, "from": name + "_gated"', '2 * DIM, "from": name + "_gated"',
        r"Layer 'block0' .* different numbers of features, 32, 64", "dims", NO_DATA,
    ),
    "vocabulary": Mistake(
        "new lm", "data/vocab.txt\",  # CHANGE", "data/vocabulary.txt\",  # CHANGE",
        r"vocabulary\.txt' does not exist", "datasets",
    ),
    "direction of an LSTM": Mistake(
        "new lm", '"unit": "lstm", "direction": 1', '"unit": "nativelstm2", "direction": 0',
        r"Layer 'lstm' .*direction", "options",
    ),
    "key of the dataset": Mistake(
        "new hybrid", '"states": {"dim"', '"alignment": {"dim"',
        r"the target 'states' is neither a layer nor a data key", "targets",
    ),
    "optimizer": Mistake(
        "new hybrid", '{"class": "adam"}', '{"class": "adamm"}',
        r"unknown optimizer class 'adamm'\. Did you mean 'adam'", "settings",
    ),
    "ctc of a target without sparse": Mistake(
        COOKBOOK + "ctc.config", '"classes": {"dim": NUM_LABELS, "sparse": True}', '"classes": {"dim": NUM_LABELS}',
        r"If these are labels, write extern_data\['classes'\] = \{'dim': 12, 'sparse': True\}", "ctc", NO_DATA,
    ),
    "source of another config": Mistake(
        COOKBOOK + "ctc.config", 'blocks.ctc("output", source="encoder")', 'blocks.ctc("output", source="encodr")',
        r"Layer 'output' .* there is no layer 'encodr'\. Did you mean 'encoder'", "sources", NO_DATA,
    ),
    "labels off by one": Mistake(
        COOKBOOK + "ctc.config", "NUM_LABELS = 12", "NUM_LABELS = 11",
        r"'train' has 12 labels for data key 'classes', but extern_data declares 11\. Write extern_data", "extern-data",
    ),
    "features of the comment": Mistake(
        COOKBOOK + "conformer.config", "NUM_FEATURES = 20", "NUM_FEATURES = 80",
        r"'train' has 20 features for data key 'data', but extern_data declares 80\. Write extern_data", "extern-data",
    ),
    "heads of a conformer": Mistake(
        COOKBOOK + "conformer.config", "heads=HEADS", "heads=5",
        r"my\.config:\d+: .*blocks\.conformer\('encoder'\): dim is 48, which is not divisible by heads 5", "options",
        NO_DATA,
    ),
    "groups of a front end": Mistake(
        COOKBOOK + "conformer.config", "channels=(32, 32)", "channels=(32,)",
        r"blocks\.vgg\('frames'\): channels has 1 entries, reduce has 2\. Give one of each", "options", NO_DATA,
    ),
    "option of a block": Mistake(
        COOKBOOK + "attention.config", "num_labels=NUM_LABELS", "num_label=NUM_LABELS",
        r"blocks\.attention_decoder\('output'\): unknown option 'num_label'\. Did you mean 'num_labels'", "options",
        NO_DATA,
    ),
    "keys of the encoder": Mistake(
        ATTENTION, '"from": ["base:enc_ctx",', '"from": ["enc_ctx",',
        r"error: pretrain step 0: .* no layer 'enc_ctx'\. Write 'base:enc_ctx' for the outer layer", "sources", NO_DATA,
    ),
    "target of another data set": Mistake(
        COOKBOOK + "hybrid-blstm.config", '"target": "states"', '"target": "classes"',
        r"the target 'classes' is neither .* Known: data, lstm0_bwd, lstm0_fwd, output, states", "targets", NO_DATA,
    ),
    "target is missing": Mistake(
        COOKBOOK + "hybrid-blstm.config", '"target": "states", ', "",
        r"the target 'classes' is neither .* Known: data, .* states", "targets", NO_DATA,
    ),
    "key without data:": Mistake(
        COOKBOOK + "lm.config", 'source="data:delayed"', 'source="delayed"',
        r"no layer 'delayed'\. Write 'data:delayed' for the data key", "sources", NO_DATA,
    ),
    "targets without data:": Mistake(
        "demos/digits/transducer.config", '"align_target": "data:classes"', '"align_target": "classes"',
        r"Layer 'alignment' .* no layer 'classes'\. Write 'data:classes' for the data key with", "sources", NO_DATA,
    ),
    "misspelt loss": Mistake(
        COOKBOOK + "minimum-risk.config", '"loss": "expected_loss"', '"loss": "expectd_loss"',
        r"unknown loss 'expectd_loss'\. Did you mean 'expected_loss'", "options", NO_DATA,
    ),
    "misspelt layer option": Mistake(
        COOKBOOK + "multi-task.config", '"scale": -SPEAKER_SCALE', '"scales": -SPEAKER_SCALE',
        r"Layer 'reversed' .* unknown option 'scales'\. Did you mean 'scale'", "options", NO_DATA,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with projects of ``returnn-tf new``, with little data."""
    folder = tmp_path_factory.mktemp("projects")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("lm", "mt", "hybrid"):
            patch.setattr(KINDS[name].data, "SIZES", {"train": 20, "dev": 5})
            write_project(str(folder / name), KINDS[name])
    return folder


def test_many_configs() -> None:
    """At least ten of ``demos/`` and ``docs/``."""
    assert len({each.config for each in MISTAKES.values() if not each.config.startswith("new ")}) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_message(
    name: str, projects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake = MISTAKES[name]
    kind = mistake.config.partition("new ")[2]
    original = projects / kind / (kind + ".config") if kind else ROOT / mistake.config
    text = original.read_text(encoding="utf8")
    assert mistake.right in text, "the config has changed"
    text = text.replace(mistake.right, mistake.wrong, 1)
    monkeypatch.chdir(tmp_path)
    if mistake.config.startswith(COOKBOOK):
        shutil.copy(original.with_name("generated.py"), tmp_path)
        (projects / "generated").mkdir(exist_ok=True)  # its data, made by the first config that needs them
        (tmp_path / "generated").symlink_to(projects / "generated")
    text = text.replace("os.path.dirname(os.path.abspath(__file__))", repr(str(original.parent)))
    Path("my.config").write_text(text, encoding="utf8")
    check(mistake, capsys)


def check(mistake: Mistake, capsys: pytest.CaptureFixture[str], config: str = "my.config") -> None:
    """Check a config in the current folder, and the message."""
    assert main(["check", config, *mistake.arguments]) in (1, 2)
    error = "error:" + capsys.readouterr().err.partition("error:")[2]
    assert re.search(mistake.words, error), error
    assert error.splitlines()[-1] == "More: returnn-tf explain " + mistake.topic
    assert len(error) < 1500
