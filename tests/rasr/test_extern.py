"""ExternSprintDataset with a stand-in for RASR: recorded sequences and command lines, options, resuming, sharding."""

from __future__ import annotations

import ast
import json
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.share import Share
from returnn_tf.rasr.processes import command_line
from returnn_tf.rasr.processes.command_line import command_words
from tests.datasets.recorded import assert_same_sequences, by_name
from tests.waiting import LONG

DATA = Path(__file__).parents[1] / "data" / "rasr" / "dataset"
EMULATOR = str(Path(__file__).parent / "emulator.py")
CASES = by_name(json.loads((DATA / "rasr_dataset.json").read_text(encoding="utf8"))["cases"])


def dataset_of(words="", *, corpus="corpus.json", mode="direct", fail="", **options):
    """Return a dataset with the stand-in as program."""
    text = "--fake.corpus=%s --fake.mode=%s --*.trainer-output-dimension=5 '--fake.fail=%s' %s"
    text %= corpus, mode, fail, words
    program = [sys.executable, "-I", "-S", EMULATOR] if mode == "direct" else [sys.executable, EMULATOR]
    options = {"sprintTrainerExecPath": program, "sprintConfigStr": text, "rasr_timeout": LONG, **options}
    return Dataset.from_config({"class": "ExternSprintDataset", **options})


def test_names_of_labels_are_known_without_rasr(folder, monkeypatch):
    """As exports need them."""
    dataset = dataset_of(orth_vocab={"labels": list("_ab"), "unknown_label": "_"})
    monkeypatch.setattr(dataset, "make_specs", None)
    assert dataset.label_names == {"orth_classes": list("_ab")}


def comparable(word):
    """Return a word of the command line, without what is ours or depends on the run."""
    word = re.sub(r"(_fd:)\d+", r"\1<fd>", word)
    word = re.sub(r"(pymod-path=).*", r"\1<root>", word)
    word = re.sub(r"(pymod-name=).*", r"\1<module>", word)
    return re.sub(r"(segments\.file|corpus\.segment-order)=.*", r"\1=<file>", word)


def given_words(log):
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("name", CASES)
def test_recorded(name, folder):
    case = CASES[name]
    options = {**case["options"], "sprintTrainerExecPath": [sys.executable, EMULATOR], "rasr_timeout": LONG}
    if "exception" in case:
        with pytest.raises(ConfigError):
            Dataset.from_config(options)
        return
    dataset = Dataset.from_config(options)
    for run in case["runs"]:
        if "exception" in run:
            with pytest.raises(ConfigError):
                next(dataset.sequences(**run["args"]))
            continue
        log = folder / "args.log"
        log.unlink(missing_ok=True)
        sequences = list(dataset.sequences(**run["args"]))
        assert_same_sequences(sequences, run["seqs"])
        assert all(set(seq.data) == set(info["data"]) for seq, info in zip(sequences, run["seqs"]))
        for words, expected in zip(given_words(log), run.get("argv") or [case.get("argv_of_first_call")]):
            assert list(map(comparable, words)) == list(map(comparable, expected or words))
        assert dataset.num_seqs_of_last_epoch in (None, run["num_seqs_after"])
    check_format(dataset, case["dataset"] or {})


def check_format(dataset, facts):
    if not facts:
        return
    assert dataset.num_inputs == facts["num_inputs"]
    assert {key: list(value) for key, value in dataset.num_outputs.items()} == facts["num_outputs"]
    assert set(dataset.all_outputs) >= set(dataset.data_keys)
    assert set(dataset.labels) == set(facts["labels"])
    for key, labels in facts["labels"].items():
        found = dataset.labels[key]
        assert found == labels if isinstance(labels, list) else len(found) == labels["len"]
    if "data_keys" in facts:
        assert (dataset.data_keys, dataset.target_list) == (facts["data_keys"], facts["target_list"])
    for key, spec in facts.get("per_key", {}).items():
        got = dataset.data_specs[key]
        assert (got.sparse, got.dim, list(got.shape)) == (spec["sparse"], spec["dim"], spec["shape"])
    assert dataset.num_seqs is None
    with pytest.raises(ConfigError, match="known only while it is read"):
        dataset.tag(0)


def tags(dataset, epoch=1, **arguments):
    return [seq.tag.split("/")[-1] for seq in dataset.sequences(epoch, **arguments)]


SHUFFLED = "--*.corpus.segment-order-shuffle=true"


@pytest.mark.slow
def test_partitions_and_shards(folder):
    """Parts of one order: each segment once, also with several processes; with no start of RASR beyond one for each."""
    whole = tags(dataset_of(SHUFFLED), 3)
    assert sorted(whole) == list("012345") != whole
    parts = {}
    for epoch in (5, 6):  # the two parts of full epoch 3
        parts[epoch] = tags(dataset_of(SHUFFLED, partition_epoch=2), epoch)
        shards = [tags(dataset_of(SHUFFLED, partition_epoch=2, _num_shards=3, _shard_index=i), epoch) for i in range(3)]
        assert [shard[0] for shard in shards] == parts[epoch]
    assert parts == {5: whole[::2], 6: whole[1::2]}
    dataset = dataset_of(SHUFFLED + " --fake.log=log")
    options = {"batch_size": 100, "max_seqs": 1}
    shares = [list(dataset.batches(3, share=Share(rank=rank, size=2), **options)) for rank in range(2)]
    assert [[batch.seq_tags[0][-1] for batch in share] for share in shares] == [whole[::2], whole[1::2]]
    first, second = given_words(folder / "log")
    assert "--*.corpus.partition=2" in first and "--*.corpus.select-partition=1" in second
    done = Share(rank=1, size=2, done=((2,),))  # one process did two, two others go on
    rest = [batch.seq_tags[0][-1] for batch in dataset.batches(3, share=done, **options)]
    assert rest == whole[3::2]


def test_resuming_and_other_processes(folder):
    """The same batches again from any batch, also by a copy in another process, which knows the format."""
    dataset = dataset_of(SHUFFLED, bpe={"bpe_file": "bpe.codes", "vocab_file": "bpe.vocab", "unknown_label": "<unk>"})
    options = {"batch_size": 20, "max_seqs": 2}
    whole = list(dataset.batches(2, **options))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy._specs == dataset._specs and copy.num_outputs == dataset.num_outputs
    rest = list(copy.batches(2, start_batch=1, **options))
    assert [batch.seq_tags for batch in rest] == [batch.seq_tags for batch in whole[1:]] != []
    for batch, expected in zip(rest, whole[1:]):
        for key, value in expected.feed.items():
            np.testing.assert_array_equal(batch.feed[key], value)


def test_one_start_of_rasr_for_each_epoch(folder):
    """The format is that of the epoch which is read first."""
    dataset = dataset_of("--fake.log=log")
    assert tags(dataset, 4) == tags(dataset, 5) == list("012345")
    assert len(given_words(folder / "log")) == 2
    dataset = dataset_of("--fake.log=log2")
    assert dataset.data_keys and dataset.num_outputs and dataset.labels and dataset.num_inputs == 2
    assert tags(dataset, 1) == list("012345")
    assert len(given_words(folder / "log2")) == 2
    sequences = dataset.sequences(1)
    next(sequences)
    sequences.close()  # an epoch that is left early
    assert tags(dataset, seq_list=["corp/rec1/3"]) == ["3"]


def test_progress(folder):
    dataset = dataset_of(estimated_num_seqs=12)
    assert [seq.complete for seq in dataset.sequences()] == [(i + 1) / 12 for i in range(6)]
    assert [seq.complete for seq in dataset.sequences()] == [(i + 1) / 6 for i in range(6)]
    listed = dataset.sequences(seq_list=["corp/rec1/3", "corp/rec0/0"])
    assert [seq.complete for seq in listed] == [0.5, 1.0]


def test_whitelist_with_short_names_and_packed(folder, monkeypatch):
    import gzip

    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # other tests write to the common one at the same time
    (folder / "keep.gz").write_bytes(gzip.compress(b"5\ncorp/rec0/1\n"))
    assert tags(dataset_of(seq_list_filter_file="keep.gz")) == ["1", "5"]
    assert not list(Path(tempfile.gettempdir()).glob("returnn-tf-segments-*"))


@pytest.mark.parametrize(
    "mode, keys",
    [
        ("target-generic", ["classes", "data", "orth"]),
        ("target-alignment", ["classes", "data"]),
        ("target-segment-orth", ["data", "orth"]),
        ("unsupervised", ["data"]),
    ],
)
def test_modes_of_the_trainer(mode, keys, folder):
    dataset = dataset_of("--*.target-mode=" + mode, mode="trainer")
    assert tags(dataset) == list("012345") and dataset.data_keys == keys


@pytest.mark.slow
def test_forms_of_what_rasr_sends(folder):
    plain = list(dataset_of(mode="python").sequences())
    for fail in ("bytes", "double"):
        for seq, expected in zip(dataset_of(mode="python", fail=fail).sequences(), plain):
            assert {key: value.tobytes() for key, value in seq.data.items()} == {
                key: value.tobytes() for key, value in expected.data.items()
            }
    soft = list(dataset_of(mode="python", fail="soft").sequences())
    for seq, expected in zip(soft, plain):
        np.testing.assert_array_equal(seq.data["classes[sparse:coo:2:1]"], expected.data["classes"])
        np.testing.assert_array_equal(seq.data["classes[sparse:coo:2:0]"], np.arange(len(expected.data["classes"])))
        assert seq.data["classes[sparse:coo:2:2]"].dtype == np.float32
    dataset = dataset_of(mode="python", fail="no features")
    assert next(iter(dataset.sequences())).data.keys() == {"classes", "orth", "speaker_name"}
    assert dataset.data_keys == ["classes", "orth", "speaker_name"]


class Letters:
    """A vocabulary of a config."""

    labels = [chr(i) for i in range(97, 123)]

    def get_seq(self, text):
        return [ord(c) - 97 for c in text if "a" <= c <= "z"]


def test_vocabularies_and_maps(folder):
    maps = {"speaker_name": {"spk%d" % i: 10 + i for i in range(6)}}
    options = {"orth_post_process": ["lowercase", str.title, str.lower], "target_maps": maps, "bpe": Letters()}
    dataset = dataset_of(**options)
    first = next(dataset.sequences())
    assert bytes(first.data["orth"]) == b"hello world"
    assert list(first.data["bpe"]) == Letters().get_seq("helloworld")
    assert list(first.data["speaker_name"]) == [10, 10, 10] and first.data["speaker_name"].dtype == np.int64
    dim = dataset.data_specs["speaker_name"].dim
    assert dim > 11 and dataset.num_outputs["speaker_name"] == (dim, 1) and dataset.num_outputs["bpe"] == (26, 1)
    with pytest.raises(DataError, match=r"sequence 'corp/rec0/0': target_maps\['speaker_name'\] lacks 'spk0'"):
        next(dataset_of(target_maps={"speaker_name": {"x": 0}}).sequences())
    with pytest.raises(DataError, match="has no target 'speaker' for target_maps"):
        next(dataset_of(target_maps={"speaker": {"x": 0}}).sequences())
    with pytest.raises(DataError, match="has no transcription, which option 'bpe' needs"):
        next(dataset_of(mode="python", fail="no speech", bpe=Letters()).sequences())


def test_words(monkeypatch):
    monkeypatch.setenv("WORDS", "'a b' c")
    monkeypatch.delenv("NONE", raising=False)
    given = ["--a='1 2' $WORDS $NONE", lambda: ["x y", lambda: "z"], ("w",), ""]
    assert command_words(given, owner="x") == ["--a=1 2", "a b", "c", "x", "y", "z", "w"]
    with pytest.raises(ConfigError, match="x: No closing quotation in"):
        command_words("--a='1", owner="x")
    with pytest.raises(ConfigError, match="x: it must be text, a function .* not 3"):
        command_words(["a", 3], owner="x")
    with pytest.raises(ConfigError, match="x: the function .* failed: ZeroDivisionError"):
        command_words(lambda: 1 / 0, owner="x")


@pytest.mark.parametrize("name", ["rasr_side", "rasr_server", "rasr_pipe", "rasr_guard"])
def test_what_runs_in_other_interpreters_needs_little(name):
    """Python 3.7, the standard library and numpy."""
    path = Path(command_line.MODULE_FOLDER) / (name + ".py")
    tree = ast.parse(path.read_text(encoding="utf8"), feature_version=(3, 7))
    nodes = list(ast.walk(tree))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    own = {"rasr_pipe", "rasr_server", "returnn_tf"}  # the last one only where RASR does not import it, see below
    assert not {module.split(".")[0] for module in found} - set(sys.stdlib_module_names) - {"numpy"} - own


def test_what_rasr_imports_needs_nothing_of_the_package():
    """It is imported by its plain name, from its folder."""
    code = "import sys; sys.path.insert(0, %r); import %s; print(*sys.modules)"
    code %= command_line.MODULE_FOLDER, command_line.MODULE_NAME
    done = subprocess.run([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    loaded = done.stdout.split()
    assert "rasr_server" in loaded and not [name for name in loaded if name.startswith("returnn_tf")]
