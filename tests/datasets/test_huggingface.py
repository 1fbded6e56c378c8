"""HuggingFaceDataset and HuggingFaceTokenizer: tables and tokenizers that the packages of Hugging Face wrote."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.vocabulary import make_vocabulary
from tests.datasets.utterances import CHARS, RATE, RAW, SAMPLES, TEXTS, check, wav

datasets = pytest.importorskip("datasets", reason="its tables are read with the extra 'huggingface'")

FRAMES = {"one": 5, "two": 7, "three": 6}
ROWS = {
    "id": list(TEXTS),
    "text": list(TEXTS.values()),
    "frames": [np.random.RandomState(n).normal(size=(n, 3)).astype("float32").tolist() for n in FRAMES.values()],
    "classes": [list(range(n)) for n in FRAMES.values()],
    "speaker": [3, 1, 2],
}
FORMAT = {
    "frames": {"dim": 3},
    "classes": {"dim": 9, "sparse": True},
    "text": {"dtype": "string", "shape": ()},
    "speaker": {"shape": (), "dim": 4, "sparse": True},
}


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "converted")
    datasets.disable_progress_bars()


def table(**changed):
    return datasets.Dataset.from_dict({**ROWS, **changed})


def open_(source, data_format=None, **options):
    given = {"class": "HuggingFaceDataset", "name": "train", "dataset_opts": source}
    return Dataset.from_config({**given, "data_format": FORMAT if data_format is None else data_format, **options})


def tags(dataset, epoch=1, **how):
    return [seq.tag for seq in dataset.sequences(epoch, **how)]


def _folder():
    table().save_to_disk("saved")
    return "saved"


def _parquet():
    table().to_parquet("a.parquet")
    return "a.parquet"


def _arrow():
    table().save_to_disk("arrow", num_shards=2)
    return ["arrow/data-00000-of-00002.arrow", "arrow/data-00001-of-00002.arrow"]


def _split():
    datasets.DatasetDict({"train": table(), "test": table(speaker=[0, 0, 0])}).save_to_disk("splits")
    return "splits/train"


def _json():
    table().to_json("a.json")
    return {"path": "json", "data_files": "a.json", "split": "train"}


@pytest.mark.parametrize(
    "make", [_folder, _parquet, _arrow, _split, _json, lambda: table, table, lambda: lambda: _folder()]
)
def test_forms_of_the_source(make):
    dataset = open_(make())
    assert dataset.num_outputs == {"frames": (3, 2), "classes": (9, 1), "text": (1, 0), "speaker": (4, 0)}
    got = list(dataset.sequences(1))
    assert [seq.tag for seq in got] == list(TEXTS)
    for row, seq in enumerate(got):
        np.testing.assert_array_equal(seq.data["frames"], np.float32(ROWS["frames"][row]))
        assert seq.data["classes"].tolist() == ROWS["classes"][row] and seq.data["classes"].dtype == "int32"
        assert seq.data["text"].item() == ROWS["text"][row] and seq.data["speaker"].item() == ROWS["speaker"][row]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_types(dtype):
    values = [[1 / 3, 2.0], [3.0], [4.0]] if "float" in dtype else [[1, 2], [3], [4]]
    for row, seq in enumerate(
        open_(table(x=values), {"x": {"dim": None, "shape": (None,), "dtype": dtype}}).sequences(1)
    ):
        assert seq.data["x"].dtype == dtype
        np.testing.assert_array_equal(seq.data["x"], np.asarray(values[row], dtype))


def test_audio_and_texts(monkeypatch):
    audio = [{"bytes": wav(samples), "path": tag + ".wav"} for tag, samples in SAMPLES.items()]
    saved = table(audio=audio).cast_column("audio", datasets.Audio()).rename_columns({"audio": "data"})
    saved.add_column("raw", ROWS["text"]).remove_columns("classes").rename_columns({"text": "classes"}).save_to_disk(
        "speech"
    )
    spoken = {"data": {"audio": RAW}, "classes": {"vocab": CHARS}, "raw": {"dtype": "string", "shape": ()}}
    dataset = open_("speech", spoken)
    check(dataset)
    check(pickle.loads(pickle.dumps(dataset)))
    assert dataset.labels["classes"][97] == "a"
    with pytest.raises(DataError, match="'one' .*row 0, column 'data': audio file 'one.wav': .*16000"):
        tags(open_("speech", {"data": {"audio": {**RAW, "sample_rate": 16000}}}))


def test_audio_by_its_path(tmp_path):
    for tag in TEXTS:
        (tmp_path / (tag + ".wav")).write_bytes(wav(SAMPLES[tag]))
    source = table(path=[tag + ".wav" for tag in TEXTS])
    for seq in open_(source, {"path": {"audio": RAW}}).sequences(1):
        np.testing.assert_array_equal(seq.data["path"][:, 0], SAMPLES[seq.tag])
    (tmp_path / "two.wav").unlink()
    with pytest.raises(DataError, match="'two' .*row 1, column 'path': audio file 'two.wav' does not exist"):
        tags(open_(source, {"path": {"audio": RAW}}))


def test_random_features_depend_on_epoch_and_row():
    audio = [{"bytes": wav(samples), "path": None} for samples in SAMPLES.values()]
    spoken = {"audio": {"audio": {**RAW, "random_permute": {"rnd_scale_lower": 0.5}}}}
    dataset = open_(table(audio=audio), spoken)
    first, again = ([seq.data["audio"] for seq in dataset.sequences(1)] for _ in range(2))
    other = [seq.data["audio"] for seq in dataset.sequences(2)]
    assert all((a == b).all() for a, b in zip(first, again))
    assert not any(a.shape == b.shape and (a == b).all() for a, b in zip(first, other))
    heard, rate = dataset.heard(1, 2)
    np.testing.assert_allclose(heard, other[1][:, 0], rtol=1e-6)
    assert rate == RATE


def test_order_and_selection():
    _folder()
    assert tags(open_("saved", seq_ordering="sorted", sorting_seq_len_column="speaker")) == ["two", "three", "one"]
    assert tags(open_("saved", seq_ordering="sorted", sorting_seq_len_column_data="frames")) == ["one", "three", "two"]
    by_text = open_("saved", seq_ordering="sorted_reverse", sorting_seq_len_column_data="text")
    assert tags(by_text) == ["two", "one", "three"] or tags(by_text) == ["two", "three", "one"]
    halves = [tags(open_("saved", seq_ordering="random", partition_epoch=2), epoch) for epoch in (1, 2)]
    assert sorted(halves[0] + halves[1]) == sorted(TEXTS) and all(halves)
    assert tags(open_("saved"), seq_list=["three"]) == ["three"]
    assert tags(open_("saved", seq_tag_column=None)) == ["seq-0", "seq-1", "seq-2"]
    assert tags(open_("saved", seq_tag_column="speaker")) == ["3", "1", "2"]


def test_goes_on_without_reading_what_was_before(monkeypatch):
    dataset = open_(_folder())
    read = []
    monkeypatch.setattr(dataset, "read", lambda index, *args: read.append(index) or {})
    dataset.data_specs = {}
    assert tags(dataset, start=2) == ["three"] and read == [2]


def test_changed_tables():
    source = {
        "map_func": lambda rows: rows.filter(lambda row: row["speaker"] > 1, keep_in_memory=True),
        "rename_columns": {"speaker": "who"},
        "cast_columns": {"who": "int8"},
    }
    dataset = open_(table(), {"who": FORMAT["speaker"]}, **source)
    assert [(seq.tag, int(seq.data["who"])) for seq in dataset.sequences(1)] == [("one", 3), ("three", 2)]


def _broken(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def _cut(path, count):
    with open(path, "rb") as file:
        content = file.read()
    return _broken(path, content[:count])


OPENING = {
    "no folder": (lambda: "gone", {}, "option 'dataset_opts': folder 'gone' does not exist"),
    "no file": (lambda: "gone.parquet", {}, "option 'dataset_opts': file 'gone.parquet' does not exist"),
    "no parquet": (lambda: _broken("a.parquet", b"PAR1xx"), {}, "file 'a.parquet' cannot be read: Arrow.*[Pp]arquet"),
    "no arrow": (lambda: _broken("a.arrow", b"x" * 50), {}, "file 'a.arrow' cannot be read: "),
    "cut": (lambda: _cut(_parquet(), -30), {}, "file 'a.parquet' cannot be read: "),
    "other folder": (lambda: ".", {}, "option 'dataset_opts': '.' cannot be read: FileNotFoundError"),
    "empty": (lambda: table().select([]), {}, "the table has no rows"),
    "twice": (lambda: table(id=["a", "b", "a"]), {}, "'seq_tag_column': the rows 0 and 2 have the same tag 'a'"),
    "no tag": (lambda: table(id=["a", None, "c"]), {}, "row 1 of the column 'id' has None, but must have a text"),
}
READING = {
    "null": ({"text": ["a", None, "c"]}, "'two' .*row 1, column 'text': it is null"),
    "no list": ({"frames": [ROWS["frames"][0], None, []]}, "'two' .*row 1, column 'frames': it is null"),
    "no number": ({"speaker": [1, None, 3]}, "'two' .*row 1, column 'speaker': it is null"),
    "null in a list": ({"frames": [ROWS["frames"][0], [[1.0, None, 2.0]], []]}, "'two' .*'frames': it is .*None"),
    "number": ({"text": [1, 2, 3]}, "'one' .*column 'text': it is 1, but data_format declares a text"),
    "text": ({"frames": ["a", "b", "c"]}, r"column 'frames': it is 'a', but .* float32 of the shape \[None, 3\]"),
    "shape": ({"frames": [[[1.0, 2.0]]] * 3}, r"column 'frames': it is of the shape \[1, 2\], but .* \[None, 3\]"),
    "ragged": ({"frames": [[[1.0], [1.0, 2.0]]] * 3}, "column 'frames': it is "),
    "dtype": ({"classes": [[0.5], [1.0], [2.0]]}, "column 'classes': it has the type float.*, but .* int32"),
}


@pytest.mark.parametrize("make, options, text", OPENING.values(), ids=list(OPENING))
def test_tables_that_cannot_be_opened(make, options, text, capfd):
    with pytest.raises(DataError, match="^dataset 'train' .HuggingFaceDataset.: .*" + text):
        tags(open_(make(), **options))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("changed, text", READING.values(), ids=list(READING))
def test_rows_that_do_not_fit(changed, text):
    with pytest.raises(DataError, match="^dataset 'train', sequence " + text if text[0] == "'" else text):
        tags(open_(table(**changed)))


WRONG = {
    "column": ({"data_format": {"txt": {"dtype": "string", "shape": ()}}}, "no column 'txt'. Did you mean 'text'"),
    "tags": ({"seq_tag_column": "tag"}, "no column 'tag', only 'id', .*None: the numbers of the rows are the tags"),
    "format": ({"data_format": {}}, "option 'data_format' must be"),
    "entry": ({"data_format": {"text": 3}}, "key 'text': the format must be a dict"),
    "audio": ({"data_format": {"text": {"audio": RAW, "dim": 3}}}, "'audio' determines the format, .* no 'dim'"),
    "lengths": (
        {"sorting_seq_len_column": "speaker", "sorting_seq_len_column_data": "text"},
        "give 'sorting_seq_len_column' or 'sorting_seq_len_column_data', not both",
    ),
    "no lengths": (
        {"seq_ordering": "sorted", "sorting_seq_len_column": "text"},
        "'text' must have a number in each row",
    ),
    "no lists": (
        {"seq_ordering": "sorted", "sorting_seq_len_column_data": "speaker"},
        "the column 'speaker' has the type int64, but must have lists or texts",
    ),
    "map": ({"map_func": lambda rows: 1 / 0}, "map_func: ZeroDivisionError: division by zero"),
    "mapped": ({"map_func": lambda rows: 5}, "map_func returns int, but must return a datasets.Dataset"),
    "rename": ({"rename_columns": {"x": "y"}}, "option 'rename_columns': there is no column 'x'"),
    "cast": ({"cast_columns": {"text": "int32"}}, "option 'cast_columns', column 'text': "),
    "source": ({"dataset_opts": 5}, "option 'dataset_opts'.*5 gives int, but must give a datasets.Dataset"),
    "ending": ({"dataset_opts": ["a.csv"]}, "'a.csv' is not a file .arrow or .parquet"),
    "no files": ({"dataset_opts": []}, "option 'dataset_opts' is empty"),
    "stream": ({"dataset_opts": {"path": "json", "streaming": True}}, "a stream has no random access"),
}


@pytest.mark.parametrize("values", [[1, None, 3], [0.5, float("nan"), None]], ids=["null", "nan"])
def test_a_row_without_length(values):
    with pytest.raises(DataError, match="'sorting_seq_len_column': the column 'speaker' .* but row 1 has none"):
        tags(open_(table(speaker=values), seq_ordering="sorted", sorting_seq_len_column="speaker"))


@pytest.mark.parametrize("options, text", WRONG.values(), ids=list(WRONG))
def test_wrong_options(options, text):
    with pytest.raises(ConfigError, match="^dataset 'train'.*" + text):
        tags(open_(**{"source": table(), **{k: v for k, v in options.items() if k != "dataset_opts"}, **(
            {"source": options["dataset_opts"]} if "dataset_opts" in options else {})}))  # fmt: skip


def test_splits():
    _split()
    with pytest.raises(ConfigError, match="'splits' has the splits 'train', 'test'; choose one: its subfolder 'train'"):
        tags(open_("splits"))


# ---- tokenizers


@pytest.fixture
def tokenizer(tmp_path):
    """Train a tokenizer, and return its folder."""
    tokenizers = pytest.importorskip("tokenizers", reason="its files are read with the extra 'huggingface'")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=40, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    made.train_from_iterator(["low lower lowest", "new newer newest"] * 5, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    made.enable_truncation(3)
    made.enable_padding(length=20)
    made.save(str(tmp_path / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def vocab(**options):
    return make_vocabulary({"class": "HuggingFaceTokenizer", **options}, owner="targets")


def test_tokenizer(tokenizer, tmp_path):
    for labels in (vocab(tokenizer_file="tokenizer.json"), vocab(huggingface_repo_dir=str(tmp_path))):
        expected = tokenizer.encode("lowest newer", add_special_tokens=False)
        assert labels.get_seq("lowest newer") == expected.ids and labels.pieces("lowest newer") == expected.tokens
        assert labels.get_seq_labels(expected.ids) == "lowest newer"
        assert [labels.labels[index] for index in expected.ids] == expected.tokens
        assert labels.num_labels == tokenizer.get_vocab_size() and labels.unknown_label == "<unk>"
        assert labels.unknown_label_id in labels.get_seq("lo%w")
        assert pickle.loads(pickle.dumps(labels)).labels == labels.labels


def test_special_tokens(tokenizer, tmp_path):
    assert vocab(tokenizer_file="tokenizer.json").eos_label_id is None
    text = '{"eos_token": {"content": "</s>"}, "bos_token": "<s>", "unk_token": "<unk>"}'
    (tmp_path / "special_tokens_map.json").write_text(text)
    labels = vocab(tokenizer_file="tokenizer.json", add_special_tokens=True)
    assert (labels.bos_label_id, labels.eos_label_id, labels.pad_label_id) == (1, 2, None)
    assert labels.get_seq("low") == tokenizer.encode("low").ids
    assert vocab(tokenizer_file="tokenizer.json", seq_postfix=[2]).get_seq("low")[-1] == 2
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<end>"}')
    with pytest.raises(DataError, match="the eos token '<end>' is not among the tokens"):
        vocab(tokenizer_file="tokenizer.json")
    for content, text in (("[", "is no JSON object: "), ("[1]", "is no JSON object, but .1.")):
        (tmp_path / "special_tokens_map.json").write_text(content)
        with pytest.raises(DataError, match="special_tokens_map.json' " + text):
            vocab(tokenizer_file="tokenizer.json")


_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
_UNK = {"content": "[UNK]", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize(
    "special, config, tokens",
    [  # unknown, begin, end, padding as transformers 5.24 has them
        (None, _CLASS, [None, None, None, None]),
        ({"unk_token": "[UNK]", "bos_token": "<s>"}, _CLASS, ["[UNK]", "<s>", None, None]),
        ({"unk_token": "[UNK]"}, {"unk_token": "<unk>", "eos_token": "</s>"}, ["[UNK]", None, "</s>", None]),
        ({"unk_token": _UNK}, {"eos_token": "</s>", "pad_token": "<s>"}, ["[UNK]", None, "</s>", "<s>"]),
        ({"unk_token": "[UNK]", "bos_token": "<s>"}, {"eos_token": "</s>", "added_tokens_decoder": {}},
         [None, None, "</s>", None]),
        ({"unk_token": None}, {"unk_token": "<unk>"}, ["<unk>", None, None, None]),
    ],
)  # fmt: skip
def test_special_tokens_of_two_files(tmp_path, special, config, tokens):
    package = pytest.importorskip("tokenizers", reason="reads tokenizers, with the extra 'huggingface'")
    ids = {"<unk>": 0, "<s>": 1, "</s>": 2, "[UNK]": 3}
    package.Tokenizer(package.models.WordLevel(ids, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    for name, content in (("special_tokens_map.json", special), ("tokenizer_config.json", config)):
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    labels = vocab(huggingface_repo_dir=str(tmp_path))
    found = (labels.unknown_label_id, labels.bos_label_id, labels.eos_label_id, labels.pad_label_id)
    assert found == tuple(None if token is None else ids[token] for token in tokens)


def test_wrong_tokenizers(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match="^targets: .*give either 'huggingface_repo_dir' or 'tokenizer_file'"):
        vocab()
    with pytest.raises(DataError, match="^targets: .*huggingface_repo_dir: file 'gone/tokenizer.json' does not exist"):
        vocab(huggingface_repo_dir="gone")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="tokenizer_file: file 'tokenizer.json' is no tokenizer: "):
        vocab(tokenizer_file="tokenizer.json")
    with pytest.raises(ConfigError, match="seq_postfix is 99"):
        tokenizer.save("tokenizer.json")
        vocab(tokenizer_file="tokenizer.json", seq_postfix=[99])
