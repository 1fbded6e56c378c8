"""Data files are data: whatever stands in them, nothing of it is executed, and what is wrong is one clear error."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import random
import re
import resource
import time
from typing import Any, Callable, NamedTuple

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.safe_files import read_seq_lens, read_seq_tags
from returnn_tf.datasets.hdf.dataset import HDFDataset
from returnn_tf.datasets.hdf.library import longest_string
from returnn_tf.datasets.speech.literal_list import read_dicts
from returnn_tf.datasets.text.bliss import read_bliss
from returnn_tf.datasets.vocabulary import read_labels
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.lock import holder_alive
from returnn_tf.engine.data import batch_table
from returnn_tf.engine.learning_rate.file import best_epochs, read_file
from returnn_tf.engine.monitoring import run_settings
from returnn_tf.engine.monitoring.status_file import read_status
from returnn_tf.engine.passes.progress import PassState, Progress
from returnn_tf.export.saved_model.loader import read_facts
from returnn_tf.export.side_file import read_side_file

pytestmark = pytest.mark.slow  # each starts processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
_OGGZIP = ROOT / "tests" / "data" / "datasets" / "oggzip2" / "no_file_key.zip"
_BLISS = (
    b"<?xml version='1.0'?><corpus name='c'><recording name='r' audio='r.wav'><segment name='s'"
    b" start='0' end='1.5' track='1'><speaker name='x'/><orth> a &amp; b </orth></segment></recording></corpus>"
)
_HDF = ROOT / "tests" / "data" / "datasets" / "hdf" / "simple_extra.hdf"


class _Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return open, (self.trace, "w")


class Reader(NamedTuple):
    """Something that reads a kind of file.

    :param name: of the file
    :param read: called with its path
    :param good: a whole one
    """

    name: str
    read: Callable[[str], Any]
    good: bytes


def _manifest(path: str) -> None:
    prefix = path[: -len(".manifest.json")]
    pathlib.Path(prefix + ".index").write_bytes(b"12345")
    checkpoint.validate(prefix)
    info = checkpoint.info(prefix)
    assert info is not None
    if info.progress is not None:
        Progress.from_json(info.progress, path).of_rank(0, 1)


def _texts_of_oggzip(path: str) -> None:
    with open(path, "rb") as file:
        for entry in read_dicts(iter(lambda: file.read(100), b""), keys=("text", "duration"), where=path):
            assert entry.keys() <= {"text", "duration"}


def _oggzip(path: str) -> None:
    options = {"path": path, "content_name": "no_file_key", "audio": None, "targets": None}
    list(Dataset.from_config({"class": "OggZipDataset", **options}).sequences(1))


def _export(path: str) -> None:
    """Read the side file of an export, as this program and as the loader for others do."""
    folder = os.path.dirname(path)
    read_side_file(folder)
    try:
        read_facts(folder)
    except ValueError as exc:
        assert "\n" not in str(exc)


_PROGRESS = Progress(3, 30, PassState(3, 7, sums={"a": {"b": 1.0}}), data={"train": "x"})
_MANIFEST = {
    "format": 1,
    "epoch": 2,
    "step": 30,
    "random_seed": 42,
    "config_sha256": "00",
    "learning_rates": "{}",
    "settings": {"batch_size": "5"},
    "progress": _PROGRESS.as_json(),
    "files": {
        "net.002.index": {"size": 5, "sha256": "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"}
    },
}
_RATES = (
    b"{\n1: EpochData(learningRate=0.1, error={'dev_score': 2.5, ':meta:x': [1, 'a']}),\n2: EpochData(0.05, {}),\n}\n"
)
_EXPORT = {
    "format": 1,
    "target": "frozen",
    "inputs": {"data": {"tensor": "data:0"}},
    "native": {"libraries": ["native/rtf_lstm.so"], "tensorflow": "2.16.2", "machine": "x", "cpu": "avx"},
    "graph": "graph.pb",
}
_STATUS = {"host": "a", "pid": 3, "updated": 1.5, "epoch": 2, "ended": {"reason": "x"}, "ranks": [{"wait": 0.5}]}
_RUN = {"settings": {"a": [1, {"b": None}]}, "network": {"x": {"class": "copy"}}, "environment": {"python": "3.9"}}
_BATCHES = {"max_seqs_by_length": {"500": 80, "900": 4}, "device": "CPU:0", "limit": 5, "found_for": {"a": "b"}}

READERS = [
    Reader("labels.txt", read_labels, b"a\nb\nc\n"),
    Reader("labels.py", read_labels, b"{'a': 0, 'b': 1, 'c': 2}\n"),
    Reader("labels.pkl", read_labels, pickle.dumps({"a": 0, "b": 1})),
    Reader("tags.txt", read_seq_tags, b"seq-1\nseq-2\n"),
    Reader("tags.pkl", read_seq_tags, pickle.dumps(["seq-1", "seq-2"], protocol=2)),
    Reader("lens.txt", read_seq_lens, b"{'seq-1': 10, 'seq-2': 20}"),
    Reader("newbob.data", lambda path: best_epochs(read_file(path), "dev_score"), _RATES),
    Reader("net.002.manifest.json", _manifest, json.dumps(_MANIFEST).encode()),
    Reader(".net.status.json", read_status, json.dumps(_STATUS).encode()),
    Reader(".net.settings.json", run_settings.read, json.dumps(_RUN).encode()),
    Reader(".net.batches.json", batch_table.read, json.dumps(_BATCHES).encode()),
    Reader("model.json", _export, json.dumps(_EXPORT).encode()),
    Reader(".net.lock", lambda path: holder_alive(path.replace("/.net.lock", "/net")), b'{"host": "a", "pid": 3}'),
    Reader(
        "corpus.txt", _texts_of_oggzip, b"[{'text': 'it\\'s', 'duration': 0.5, 'file': \"a.ogg\", 'x': [1, (None,)]}]"
    ),
    Reader("corpus.zip", _oggzip, _OGGZIP.read_bytes()),
    Reader("corpus.xml", lambda path: [(s.text, s.name) for s in read_bliss(path)], _BLISS),
    Reader("data.hdf", lambda path: list(HDFDataset(files=[path]).sequences(1)), _HDF.read_bytes()),
]


def _malicious(trace: str) -> dict[str, bytes]:
    """Return files that attack whoever reads them."""
    call = "__import__('os').system('touch %s')" % trace
    return {
        "call": call.encode(),
        "call in a dict": ("{'a': %s}" % call).encode(),
        "call as key": ("{%s: 1}" % call).encode(),
        "call in rates": ("{1: EpochData(%s, {})}" % call).encode(),
        "call by name": ("{1: EpochData(0.1, {'a': open('%s', 'w')})}" % trace).encode(),
        "call of an attribute": b"{1: ().__class__.__bases__[0].__subclasses__()}",
        "comprehension": ("{1: [%s for _ in (1,)]}" % call).encode(),
        "lambda": ("{'a': (lambda: %s)()}" % call).encode(),
        "f-string": ('{1: f"{%s}"}' % call).encode(),
        "walrus": ("{'a': (x := %s)}" % call).encode(),
        **{"pickle %d" % protocol: pickle.dumps(_Evil(trace), protocol=protocol) for protocol in range(6)},
        "pickle in a list": pickle.dumps(["a", _Evil(trace)]),
        "pickle, written by hand": ("cos\nsystem\n(S'touch %s'\ntR." % trace).encode(),
        "pickle of a function": b"c__builtin__\neval\n.",
        "pickle of an instance": b"(i__main__\nEvil\n.",
        "pickle by extension code": b"\x80\x02\x82\x01.",
        "pickle that claims much": b"\x80\x04\x8d" + b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        "pickle with a huge memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
        "deep lists": b"[" * 100000 + b"]" * 100000,
        "deep dicts": b'{"a":' * 50000 + b"1" + b"}" * 50000,
        "deep brackets": b"(" * 100000,
        "many signs": b"{1: " + b"-" * 100000 + b"1}",
        "huge number": b"{'a': " + b"9" * 100000 + b"}",
        "huge power": b"{'a': 9**9**9**9}",
        "huge repetition": b"{'a': 'x' * 10**12}",
        "infinite number": b'{"epoch": 1e999, "pid": 1e999, "step": NaN, "random_seed": 0, "files": {}}',
        "null bytes": b"{'a': 0}\0\0",
        "not UTF-8": b"{'a': 0, '\xff\xfe': 1}",
        "lone surrogate": b'{"files": {"\\ud800": {}}, "host": "\\ud800"}',
        "path out of the folder": b'{"files": {"../../../../etc/passwd": {"size": 1, "sha256": ""}}}',
        "device": b'{"files": {"/dev/zero": {"size": 0, "sha256": ""}}}',
        "files of other types": b'{"files": {"net.002.index": 7}}',
        "sizes of other types": b'{"files": {"net.002.index": {"size": "5", "sha256": []}}}',
        "nothing where much should be": b'{"files": {}, "epoch": null}',
        "set": b"{'a', 'b'}",
        "lists as values": b"{'a': [1], 'b': {}}",
        "mixed values": b"{'a': 0, 'b': 'x', 'c': None}",
        "pickle of other things": pickle.dumps(7),
        "pickle of mixed values": pickle.dumps({"a": 0, b"b": "x", None: [1]}),
        "strings as scores": b"{1: EpochData(0.1, {'dev_score': 'good', 'dev_error': [1]})}",
        "bool as epoch": b"{True: EpochData(0.1, {})}",
        "negative epoch": b"{-5: EpochData(-0.1, {})}",
    }


def _read(reader: Reader, path: pathlib.Path, content: bytes) -> bool:
    """Return whether it was accepted; any error other than those for users fails."""
    path.write_bytes(content)
    start = time.process_time()
    try:
        reader.read(str(path))
        return True
    except (DataError, ConfigError) as exc:
        assert path.name in str(exc) or path.name.partition(".")[0] in str(exc), exc  # it names the file
        assert len(str(exc)) < 2000
        return False
    finally:
        assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "key, value", [("steps", "x"), ("batches", -1), ("frames", True), ("seqs", 1.5), ("seconds", None)]
)
def test_a_position_within_an_epoch_is_made_of_counts(key: str, value: Any) -> None:
    assert Progress.from_json(_PROGRESS.as_json(), "net.002") == _PROGRESS
    damaged = _PROGRESS.as_json()
    damaged["passed"][key] = value
    with pytest.raises(DataError, match="net.002: the position within the epoch can't be read.*%s can't be" % key):
        Progress.from_json(damaged, "net.002")


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_whole_file_is_read(reader: Reader, tmp_path: pathlib.Path) -> None:
    assert _read(reader, tmp_path / reader.name, reader.good)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_malicious_files(reader: Reader, tmp_path: pathlib.Path) -> None:
    trace = tmp_path / "trace"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, content in _malicious(str(trace)).items():
        _read(reader, tmp_path / reader.name, content)
        assert not trace.exists(), what
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KB: nobody believes what is claimed


@pytest.mark.parametrize("layout", [{}, {"chunks": (2,)}, {"chunks": (2,), "compression": "gzip"}])
def test_a_string_that_claims_gigabytes(layout: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """The HDF5 library would take the memory before it looks whether the string is there."""
    path = tmp_path / "data.hdf"
    with h5py.File(path, "w") as file:
        file["seqLengths"], file["inputs"] = np.full((3, 2), [2, 0], "int32"), np.zeros((6, 4), "float32")
        file.attrs["numLabels"] = 4
        file.create_dataset("seqTags", data=[b"x" * 77] * 3, dtype=h5py.string_dtype(), **layout)
    content = path.read_bytes()
    assert len(list(HDFDataset(files=[str(path)]).sequences(1))) == 3
    with h5py.File(path, "r") as file:
        assert longest_string(file["seqTags"]) == 77 and longest_string(file["inputs"]) == 0
    if not layout.get("compression"):
        damaged = content.replace((77).to_bytes(4, "little"), ((1 << 32) - 9).to_bytes(4, "little"))
        assert damaged != content
        path.write_bytes(damaged)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(DataError, match="'/seqTags' claims a string of 4294967287 bytes, more than the file holds"):
            list(HDFDataset(files=[str(path)]).sequences(1))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


@pytest.mark.parametrize(
    "pickled, message",
    [
        (b"\x80\x04]r\x00\x00\x00\x7f.", "its memo would have 2130706432 entries"),
        (b"\x80\x04]p2000000000\n.", "its memo would have 2000000000 entries"),
        (b"\x80\x05\x96\x00\x00\x00\x40\x01\x00\x00\x00x.", "expected 5368709120 bytes"),
        (b"\x80\x04\x8e\x00\x00\x00\x40\x01\x00\x00\x00x.", "expected 5368709120 bytes"),
    ],
    ids=["memo", "memo-text", "bytearray", "bytes"],
)
def test_a_pickle_that_claims_gigabytes(pickled: bytes, message: str, tmp_path: pathlib.Path) -> None:
    """The unpickler of Python would take the memory, and fill that of the memo, before it reads on."""
    path = tmp_path / "tags.pkl"
    path.write_bytes(pickled)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=message):
        read_seq_tags(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_fuzz(reader: Reader, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> None:
    """Whole files with random damage: they are read, or refused by one clear error."""
    rng = random.Random(reader.name)
    trace = tmp_path / "trace"
    pieces = [content for content in _malicious(str(trace)).values() if len(content) < 200] + [reader.good]
    for _ in range(150):
        _read(reader, tmp_path / reader.name, _damaged(rng, reader.good, pieces))
        assert not trace.exists()


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_fuzz_long(reader: Reader, tmp_path: pathlib.Path) -> None:
    rng = random.Random("long " + reader.name)
    trace = tmp_path / "trace"
    pieces = [content for content in _malicious(str(trace)).values() if len(content) < 200] + [reader.good]
    for _ in range(20000):
        _read(reader, tmp_path / reader.name, _damaged(rng, reader.good, pieces))
    assert not trace.exists()


def _damaged(rng: random.Random, good: bytes, pieces: list[bytes]) -> bytes:
    content = bytearray(good)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        end = min(end, at + rng.choice([1, 3, 20]))
        change = rng.randrange(5)
        if change == 0 and at < len(content):
            content[at] = rng.randrange(256)
        elif change == 1:
            del content[at:end]
        elif change == 2:
            content[at:at] = content[at:end] * rng.choice([1, 2, 50])
        elif change == 3:
            content[at:end] = rng.choice(pieces)
        else:
            content[at:end] = rng.choice(
                [b"-1", b"null", b"None", b"[]", b"{}", b'"x"', b"1e400", b"True", b"\0", b"'"]
            )
    return bytes(content)


#: what may execute text or unpickle, and where; a new place has to be judged by somebody who reads this
_EXECUTES = {
    "cli/layers.py": "examples in the docstrings of classes",
    "config/config.py": "++key value: what the user typed",
    "config/loading.py": "configs are programs",
    "datasets/processes/worker.py": "its own parent process, over a pipe",
    "rasr/processes/process.py": "messages of the RASR process that it started; restricted to arrays and plain values",
    "rasr/processes/for_rasr/rasr_pipe.py": "its own parent process, over a pipe",
    "datasets/core/safe_files.py": "restricted to plain containers, strings and numbers",
    "engine/distributed/world.py": "results of the other ranks of the same training, over Horovod",
    "layers/math/eval_code.py": "code in configs",
    "compiler/planning/loop_termination.py": "code in configs",
    "ops/activations.py": "code in configs",
    "ops/initializers.py": "code in configs",
}
_DANGEROUS = re.compile(
    r"(?<![\w.])(eval|exec)\(|pickle\.(load|loads|Unpickler)\b|allow_pickle=True|marshal\.|shelve\.|yaml\.load|"
    r"torch\.load|joblib\.|dill\.|extractall\("
)


def test_nothing_else_executes_what_it_reads() -> None:
    found = set()
    for path in sorted((ROOT / "returnn_tf").rglob("*.py")):
        if _DANGEROUS.search(path.read_text(encoding="utf8")):
            found.add(str(path.relative_to(ROOT / "returnn_tf")))
    assert found == set(_EXECUTES)
