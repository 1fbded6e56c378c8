"""OggZipDataset: all recorded corpora and options, their neighbours, and corpora which are not what they should be."""

from __future__ import annotations

import ast
import gzip
import io
import itertools
import os
import pickle
import random
import struct
import zipfile

import numpy as np
import pytest
import soundfile

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.share import Share
from returnn_tf.datasets.speech.zip_archive import ZipArchive, plain_directory
from tests.datasets.recorded import ROOT, array_info, by_name, load_json

CASES = {
    "%s/%s" % (folder, name): (folder, case)
    for folder, file in (("oggzip", "oggzip.json"), ("oggzip2", "oggzip2.json"))
    for name, case in by_name(load_json("%s/%s" % (folder, file))["cases"]).items()
}
# of these only the first sequences were recorded
CUT_SHORT = {
    case["name"]
    for _, case in CASES.values()
    if any(len(seqs) < case["dataset"]["total_num_seqs"] for seqs in case.get("epochs", {}).values())
    and not {"partition_epoch", "epoch_wise_filter", "seq_list_filter_file"} & set(case["options"])
}
FILES = ("vocab_file", "bpe_file", "segment_file", "seq_list_filter_file")


def located(options, folder):
    """Return the options with the paths of the files of a recording."""
    options = dict(options)
    for name, value in options.items():
        if isinstance(value, dict):
            value = located(value, folder)
            if name == "epoch_wise_filter":
                value = {ast.literal_eval(key): entry for key, entry in value.items()}
        elif name in FILES:
            value = str(folder / value)
        elif name == "path":
            value = [str(folder / path) for path in value] if isinstance(value, list) else str(folder / value)
        options[name] = value
    return options


def check_dataset(dataset, expected):
    """Check what is recorded under "dataset"."""
    labels = {key: {"len": len(value)} if key == "orth" else value for key, value in dataset.labels.items()}
    wanted = dict(expected["labels"])
    if "orth" not in wanted:
        labels.pop("orth", None)
    assert labels == wanted
    outputs = {key: list(value) if isinstance(value, tuple) else value for key, value in dataset.num_outputs.items()}
    assert outputs.pop("raw") == {"dtype": "string", "shape": ()}
    assert outputs == {key: value for key, value in expected["num_outputs"].items() if key != "raw"}
    assert dataset.num_inputs == expected["num_inputs"]
    for name, value in (("data_keys", dataset.data_keys), ("target_list", dataset.target_list)):
        assert value == expected.get(name, value)
    if "total_num_seqs" in expected:
        assert dataset.num_seqs == expected["total_num_seqs"]
    if "all_tags" in expected:
        assert [dataset.tag(index) for index in range(dataset.num_seqs)] == expected["all_tags"]
    for key, info in expected.get("per_key", {}).items():
        spec = dataset.data_specs[key]
        got = {"dtype": spec.dtype, "sparse": spec.sparse, "dim": spec.dim, "shape": list(spec.shape)}
        assert {name: got[name] for name in info if not isinstance(info[name], dict)} == {
            name: value for name, value in info.items() if not isinstance(value, dict)
        }, key


def check_sequences(got, expected, npz, prefix):
    """Check tags, lengths and data; features within the recorded tolerance."""
    assert [seq.tag for seq in got] == [seq["tag"] for seq in expected]
    for number, (seq, info) in enumerate(zip(got, expected)):
        assert set(seq.data) == set(info["data"])
        for key, facts in info["data"].items():
            place = "%s of %s" % (key, seq.tag)
            array = seq.data[key]
            assert seq.lengths[key] == info["seq_len"][key], place
            if key == "raw":
                assert array.shape == () and array_info(array)["sha256"] == facts["sha256"], place
            elif facts["dtype"] == "float32":
                assert array.dtype == np.float32 and list(array.shape) == facts["shape"], place
                if npz is not None:
                    np.testing.assert_allclose(array, npz["%s/%d/%s" % (prefix, number, key)], rtol=1e-4, atol=1e-4)
                else:
                    np.testing.assert_allclose(array.ravel()[:8], facts["first"], rtol=1e-4, atol=1e-4)
            else:
                assert array_info(array) == {name: facts[name] for name in ("shape", "dtype", "sha256")}, place


def check_case(case, folder, options):
    """Check one recorded case, with the paths of its options."""
    if "exception" in case:
        with pytest.raises((ConfigError, DataError)):
            list(Dataset.from_config(options).sequences(1))
        return
    dataset = Dataset.from_config(options)
    check_dataset(dataset, case["dataset"])
    npz = np.load(folder / case["npz"]) if "npz" in case else None
    for epoch, expected in case.get("epochs", {}).items():
        read = len(expected) if case["name"] in CUT_SHORT else None
        check_sequences(list(itertools.islice(dataset.sequences(int(epoch)), read)), expected, npz, "ep%s" % epoch)
    for run in case.get("runs", []):
        if "exception" in run:
            with pytest.raises(DataError):
                list(dataset.sequences(**run["args"]))
        else:
            check_sequences(list(dataset.sequences(**run["args"])), run["seqs"], None, "")


@pytest.mark.parametrize("name", CASES)
def test_recorded(name, tmp_path):
    folder, case = CASES[name]
    options = located(case["options"], ROOT / folder)
    if os.path.basename(str(options["path"])) == "link.zip":
        os.symlink(ROOT / folder / "partA.zip", tmp_path / "link.zip")
        options["path"] = str(tmp_path / "link.zip")
    check_case(case, ROOT / folder, options)


# ---- corpora made here

TEXTS = ["the cat sat", "it rains", "one more day", "zoë sings"]
LABELS = sorted(set("".join(TEXTS)) - {"z"})
CHARS = {"class": "CharacterTargets", "labels": ["@", *LABELS]}


def tone(seconds, rate=8000):
    """Return a wav file with a tone."""
    file = io.BytesIO()
    soundfile.write(file, 0.5 * np.sin(np.arange(int(seconds * rate)) * 0.3), rate, format="WAV")
    return file.getvalue()


def entries(count=4):
    """Return the text of a corpus."""
    return [
        {"text": TEXTS[i], "duration": 0.1 * (i + 1), "file": "%d.wav" % i, "seq_name": "corpus/%d" % i}
        for i in range(count)
    ]


def make_zip(path, text=None, *, count=4, compression=zipfile.ZIP_DEFLATED, prefix=True, **files):
    """Return an OggZip corpus; further files replace those of the same name, None: there is none."""
    name = os.path.basename(path)[: -len(".zip")]
    contents = {"%d.wav" % i: tone(0.1 * (i + 1)) for i in range(count)}
    contents.update({key.replace("wav", "") + ".wav": value for key, value in files.items()})
    with zipfile.ZipFile(path, "w", compression) as file:
        if text is not False:
            file.writestr(name + ".txt", text if text is not None else repr(entries(count)))
        for member, content in contents.items():
            if content is not None:
                file.writestr("%s/%s" % (name, member) if prefix else member, content)
    return str(path)


def corpus(path, **options):
    """Return a dataset of log mel features and characters."""
    audio = {"features": "log_mel_filterbank", "num_feature_filters": 5}
    return Dataset.from_config({"class": "OggZipDataset", "path": path, "audio": audio, "targets": CHARS, **options})


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("prefix", [True, False])
def test_all_ways_to_pack(compression, prefix, tmp_path):
    path = make_zip(tmp_path / "a.zip", compression=compression, prefix=prefix)
    dataset = corpus(path, zip_audio_files_have_name_as_prefix=prefix)
    assert [len(seq.data["data"]) for seq in dataset.sequences(1)] == [11, 21, 31, 41]
    assert [seq.data["orth"].tobytes().decode() for seq in dataset.sequences(1)] == TEXTS


def test_reading_depends_on_epoch_and_sequence_only(tmp_path):
    audio = {"features": "log_mel_filterbank", "num_feature_filters": 5, "random_permute": True}
    options = {"path": make_zip(tmp_path / "a.zip"), "audio": audio, "seq_ordering": "random"}
    whole = {seq.tag: seq.data["data"] for seq in corpus(**options).sequences(2)}
    for tag in sorted(whole):
        (seq,) = corpus(**options, read_threads=1).sequences(2, seq_list=[tag])
        np.testing.assert_array_equal(seq.data["data"], whole[tag])
    assert not np.array_equal(
        whole["corpus/0"], next(corpus(**options).sequences(3, seq_list=["corpus/0"])).data["data"]
    )
    copy = pickle.loads(pickle.dumps(corpus(**options)))
    for seq in copy.sequences(2):
        np.testing.assert_array_equal(seq.data["data"], whole[seq.tag])


def test_sampled_bpe_is_drawn_anew_in_every_epoch(tmp_path):
    labels = tmp_path / "labels"
    names = ["<unk>", *"abc", *(part + "@@" for part in ("a", "b", "ab", "ba", "aba"))]
    labels.write_text(repr({label: i for i, label in enumerate(names)}))
    text = repr([{"text": "ababababab abc", "duration": 1.0, "seq_name": str(i)} for i in range(3)])
    targets = {"class": "SamplingBytePairEncoding", "vocab_file": str(labels), "unknown_label": "<unk>"}
    targets["breadth_prob"] = 0.5
    dataset = corpus(make_zip(tmp_path / "a.zip", text), audio=None, targets=targets)
    runs = [[seq.data["classes"].tolist() for seq in dataset.sequences(epoch)] for epoch in (1, 2, 1)]
    assert runs[0] == runs[2] != runs[1]
    assert runs[0][2] == next(dataset.sequences(1, seq_order=[2])).data["classes"].tolist()


REPEATED = {"repeat_epoch": 3, "name": "train"}


@pytest.mark.parametrize(
    "changes", [{"random_permute": True}, {"augment": [{"class": "volume"}, {"class": "speed", "factor": [0.5, 1.5]}]}]
)
@pytest.mark.parametrize(
    "outer",
    [
        lambda inner: {**inner, **REPEATED},
        lambda inner: {"class": "CombinedDataset", "datasets": {"a": inner}, "data_map": {("a", "data"): "data"},
                       **REPEATED},
        lambda inner: {"class": "MetaDataset", "datasets": {"a": inner}, "data_map": {"data": ("a", "data")},
                       **REPEATED},
        lambda inner: {"class": "PostprocessingDataset", "dataset": {**inner, **REPEATED}, "map_seq": lambda s, **_: s},
        lambda inner: {"class": "MultiProcDataset", "dataset": lambda: {**inner, **REPEATED}, "num_workers": 2,
                       "buffer_size": 1},
        lambda inner: {"class": "MetaDataset", "data_map": {"data": ("a", "data")}, **REPEATED,
                       "datasets": {"a": {"class": "ConcatDataset", "datasets": [inner]}}},
    ],
    ids=["alone", "combined", "meta", "postprocessing", "processes", "concatenated"],
)  # fmt: skip
def test_repeated_sequences_are_distorted_anew(outer, changes, tmp_path):
    """Each occurrence has other random numbers, which depend on nothing but epoch, sequence and its count."""
    audio = {"features": "raw", "num_feature_filters": 1, "peak_normalization": False, **changes}
    inner = {"class": "OggZipDataset", "path": make_zip(tmp_path / "a.zip"), "audio": audio, "targets": None}
    plain = Dataset.from_config({**inner, **REPEATED})
    dataset = Dataset.from_config(outer(inner))

    def read(dataset, **how):
        return [(seq.tag, float(np.abs(seq.data["data"]).max())) for seq in dataset.sequences(2, **how)]

    expected = read(plain)
    assert len({value for _, value in expected}) == 12 == len(expected)
    assert read(dataset) == expected
    assert read(dataset, start=5) == expected[5:]
    shares = [Share(rank, 2, ((3,),)) for rank in (0, 1)]
    assert [read(dataset, share=share) for share in shares] == [expected[3::2], expected[4::2]]


def test_parts_of_glued_sequences_are_distorted_anew_whatever_the_number_of_processes(tmp_path):
    audio = {"features": "raw", "num_feature_filters": 1, "peak_normalization": False, "random_permute": True}
    inner = {"class": "OggZipDataset", "path": make_zip(tmp_path / "a.zip"), "audio": audio, "targets": None}
    names = ["corpus/%d" % i for i in range(4)]
    lines = [";".join(pair) for pair in zip(names + names, names[1:] + names + names[:1])]
    (tmp_path / "list").write_text("\n".join(lines) + "\n")
    (tmp_path / "lens").write_text(repr(dict.fromkeys(names, 100)))
    files = {"seq_list_file": str(tmp_path / "list"), "seq_len_file": str(tmp_path / "lens")}
    glued = {"class": "ConcatSeqsDataset", "dataset": inner, **files, "repeat_epoch": 2}
    meta = {"class": "MetaDataset", "datasets": {"a": glued}, "data_map": {"data": ("a", "data")}}

    def read(spec, **how):
        return [float(np.abs(s.data["data"]).sum()) for s in Dataset.from_config(spec).sequences(1, **how)]

    expected = read(glued)
    assert len(set(expected)) == 16
    assert read({**meta, "seq_order_control_dataset": "a"}) == expected
    for spec in (glued, {**meta, "seq_order_control_dataset": "a"}):
        for size in (2, 3):
            shares = [read(spec, share=Share(rank, size)) for rank in range(size)]
            assert [shares[i % size][i // size] for i in range(16)] == expected
    dataset = Dataset.from_config(glued)  # one by one
    for nth in (0, 1):
        found = dataset.read_again(5, 1, ["data"], nth)["data"]
        assert float(np.abs(found).sum()) == read({**glued, "repeat_epoch": 2}, seq_order=[5, 5])[nth]


def test_corpus_order_filters_and_shards(tmp_path):
    paths = [make_zip(tmp_path / "a.zip"), make_zip(tmp_path / "b.zip", count=2)]
    (tmp_path / "keep").write_text("corpus/1\ncorpus/3\nnowhere\n")
    dataset = corpus(paths, audio=None, segment_file=str(tmp_path / "keep"))
    assert [seq.tag for seq in dataset.sequences(1)] == ["corpus/1", "corpus/3", "corpus/1"]
    assert [seq.index for seq in dataset.sequences(1, seq_list=["corpus/1"])] == [2]  # the last one
    (tmp_path / "empty").write_text("")
    assert corpus(paths, audio=None, segment_file=str(tmp_path / "empty")).num_seqs == 6
    shards = [
        [seq.tag for seq in corpus(paths[0], audio=None, _num_shards=2, _shard_index=i).sequences(1)] for i in (0, 1)
    ]
    assert shards == [["corpus/0", "corpus/1"], ["corpus/2", "corpus/3"]]
    reverse = corpus(
        paths[0], audio=None, seq_ordering="sorted_reverse", epoch_wise_filter={(1, 1): {"max_mean_len": 15}}
    )
    assert [seq.tag for seq in reverse.sequences(1)] == ["corpus/1", "corpus/0"]
    assert [seq.tag for seq in reverse.sequences(2)] == ["corpus/%d" % i for i in (3, 2, 1, 0)]


def test_texts_outside_of_zip_files(tmp_path):
    path = make_zip(tmp_path / "a.zip")
    text = tmp_path / "a.txt.gz"
    text.write_bytes(gzip.compress(repr(entries()[2:]).encode()))
    for paths in ([path, str(text)], [str(text), path]):
        assert [(seq.tag, len(seq.data["data"])) for seq in corpus(paths).sequences(1)] == [
            ("corpus/2", 31),
            ("corpus/3", 41),
        ]
    assert [seq.tag for seq in corpus([str(text)], audio=None).sequences(1)] == ["corpus/2", "corpus/3"]
    with pytest.raises(DataError, match="'corpus/2'.* has no zip file 'a.zip' beside it"):
        list(corpus([str(text)]).sequences(1))


def test_several_names(tmp_path):
    one, two = make_zip(tmp_path / "a.zip"), make_zip(tmp_path / "b.zip", count=2)
    os.rename(one, tmp_path / "x.zip")
    dataset = corpus([str(tmp_path / "x.zip"), two], content_name=["a", "b"])
    assert [len(seq.data["data"]) for seq in dataset.sequences(1)] == [11, 21, 31, 41, 11, 21]
    with pytest.raises(ConfigError, match="one for each of the 2 paths"):
        corpus([str(tmp_path / "x.zip"), two], content_name=["a"])


def test_window_and_objects_of_the_config(tmp_path):
    class Words:
        labels = ["cat", "rains"]
        num_labels = 2

        def set_random_seed(self, seed):
            random.Random().seed(seed)  # takes no list

        def get_seq(self, text):
            return [self.labels.index(word) for word in text.split() if word in self.labels]

    dataset = corpus(make_zip(tmp_path / "a.zip"), targets=Words(), window=3, targets_post_process=str.lower)
    assert [seq.data["classes"].tolist() for seq in dataset.sequences(1)] == [[0], [1], [], []]
    assert dataset.num_outputs == {
        "data": (5, 2),
        "classes": (2, 1),
        "orth": (256, 1),
        "raw": {"dtype": "string", "shape": ()},
    }
    assert next(dataset.sequences(1)).data["data"].shape == (11, 15)


def test_nothing_is_read_before_the_first_epoch(tmp_path):
    dataset = corpus(str(tmp_path / "nowhere.zip"))
    assert dataset.data_keys == ["data", "classes", "orth", "raw"]
    with pytest.raises(DataError, match="nowhere.zip' does not exist .current directory"):
        list(dataset.sequences(1))
    with pytest.raises(DataError, match="no_labels"):
        corpus(str(tmp_path / "nowhere.zip"), targets={"vocab_file": str(tmp_path / "no_labels")})


def test_text_is_fed_to_networks_as_string(tmp_path):
    spec = corpus(make_zip(tmp_path / "a.zip")).data_specs["raw"]
    assert spec.as_extern_data() == {"dim": None, "sparse": False, "dtype": "string", "shape": ()}
    (batch,) = corpus(str(tmp_path / "a.zip"), audio=None, targets=None).batches(1, batch_size=1000)
    assert batch.feed["raw"].tolist() == TEXTS


def test_skip_broken(tmp_path, caplog):
    path = make_zip(tmp_path / "a.zip", wav1=tone(0.2)[:300], wav2=None)
    got = [seq.tag for seq in corpus(path, skip_broken_seqs=True).sequences(1)]
    assert got == ["corpus/0", "corpus/3"]
    assert "2 sequences could not be read" in caplog.text and "a/1.wav" in caplog.text and "a/2.wav" in caplog.text


def test_text_in_combined_and_converted_corpora(tmp_path):
    path = make_zip(tmp_path / "a.zip", count=2)
    inner = {"class": "OggZipDataset", "path": path, "audio": None, "targets": CHARS}
    data_map = {("a", "raw"): "raw", ("b", "classes"): "classes"}
    combined = Dataset.from_config(
        {"class": "CombinedDataset", "datasets": {"a": inner, "b": inner}, "data_map": data_map}
    )
    assert [seq.data["raw"].item() for seq in combined.sequences(1)] == ["the cat sat", "it rains", "", ""]
    mapped = {"class": "PostprocessingDataset", "dataset": inner, "map_seq": lambda data, **_: data}
    assert [seq.data["raw"].item() for seq in Dataset.from_config(mapped).sequences(1)] == TEXTS[:2]


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_members_are_read_in_pieces(size, tmp_path):
    content = bytes(range(256)) * 40 + bytes(20000)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        path = str(tmp_path / "a.zip")
        with zipfile.ZipFile(path, "w", compression) as file:
            file.writestr("x.txt", content)
        archive = ZipArchive(path)
        assert b"".join(archive.pieces("x.txt", size)) == archive.read(0, "x.txt") == content


def _write_zip64(path):
    with zipfile.ZipFile(path, "w") as file, file.open("long", "w", force_zip64=True) as member:
        member.write(b"x")
    content = path.read_bytes()
    start = content.index(b"PK\1\2")
    size, name, extra = len(content), b"far", struct.pack("<2H3Q", 1, 24, 1, 1, 0)
    full = 0xFFFFFFFF
    sizes = (full, full, len(name), len(extra))
    record = struct.pack("<4s6H3L5H2L", b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, full)
    directory = content[start : size - 22] + record + name + extra
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(directory), start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
    path.write_bytes(content[:start] + directory + end64 + locator + end)


def _write_names(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("a", "é", "b/" + "c" * 300, "\u2581"):
            file.writestr(name, name * 9)
        file.mkdir("folder") if hasattr(file, "mkdir") else file.writestr("folder/", "")


def _write_comment(path):
    _write_names(path)
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"a comment"


def _write_behind(path):
    _write_names(path)
    path.write_bytes(b"a program" + path.read_bytes())


@pytest.mark.parametrize(
    "write, is_plain", [(_write_names, True), (_write_zip64, True), (_write_comment, False), (_write_behind, False)]
)
def test_directory_is_that_of_the_standard_library(write, is_plain, tmp_path):
    """Unusual files are left to it."""
    path = tmp_path / "a.zip"
    write(path)
    with zipfile.ZipFile(path) as file:
        infos = file.infolist()
    facts = [(i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type, i.flag_bits) for i in infos]
    with open(path, "rb") as file:
        found = plain_directory(file)
    assert (found is not None) == is_plain
    if found is not None:
        assert ([tuple(member) for member in found[0].tolist()], found[1]) == (facts, [info.filename for info in infos])
    archive = ZipArchive(str(path))
    assert list(archive.rows) == [info.filename for info in infos]
    assert [tuple(member) for member in archive._members.tolist()] == facts


def test_resumed_in_mid_epoch(tmp_path):
    path = make_zip(tmp_path / "a.zip")
    audio = {"features": "log_mel_filterbank", "num_feature_filters": 5, "random_permute": True}

    def feeds(start):
        dataset = corpus([path] * 3, audio=audio, seq_ordering="random")
        return [batch.feed for batch in dataset.batches(2, batch_size=100, start_batch=start)]

    whole = feeds(0)
    for start in (1, 3):
        for feed, other in zip(feeds(start), whole[start:]):
            for key in feed:
                np.testing.assert_array_equal(feed[key], other[key])
