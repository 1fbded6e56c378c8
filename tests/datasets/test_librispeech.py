"""LibriSpeechCorpus: all recorded options, their neighbours, and directories which are something else."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import soundfile

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.recorded import ROOT, by_name, load_json
from tests.datasets.test_oggzip import check_case, located

FOLDER = ROOT / "librispeech"
CASES = by_name(load_json("librispeech/librispeech.json")["cases"])


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    options = located(CASES[name]["options"], FOLDER)
    check_case(CASES[name], FOLDER, options)


# ---- a corpus made here

WORDS = {("train-clean-100", 19, 198, 0): "A CAT", ("train-clean-100", 19, 198, 1): "IT RAINS HERE",
         ("train-clean-100", 103, 7, 3): "YES", ("dev-other", 5, 6, 12): "NO WAY"}  # fmt: skip


def members(use_ogg=False):
    """Return the path in the corpus -> content."""
    files, lines = {}, {}
    for (part, speaker, chapter, number), text in WORDS.items():
        place = "%s/%d/%d/%d-%d" % (part, speaker, chapter, speaker, chapter)
        lines.setdefault(place + ".trans.txt", []).append("%d-%d-%04i %s" % (speaker, chapter, number, text))
        file = io.BytesIO()
        soundfile.write(file, np.sin(np.arange(800 * len(text)) * 0.2), 8000, format="OGG" if use_ogg else "FLAC")
        files["%s-%04i.flac%s" % (place, number, ".ogg" if use_ogg else "")] = file.getvalue()
    return {**{name: ("\n".join(entries) + "\n").encode() for name, entries in lines.items()}, **files}


def make(folder, *, use_zip, use_ogg=False, root="LibriSpeech/", **changes):
    """Write the corpus; a change replaces a member of which the name ends so, None removes it."""
    for name, content in members(use_ogg).items():
        for ending, change in changes.items():
            content = change if ending in name else content
        if content is None:
            continue
        if use_zip:
            with zipfile.ZipFile(folder / (name.split("/")[0] + ".zip"), "a") as file:
                file.writestr(root + name, content)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return str(folder)


def corpus(path, **options):
    audio = {"features": "log_mel_filterbank", "num_feature_filters": 5}
    options = {"path": path, "prefix": "train", "audio": audio, "use_zip": True, **options}
    return Dataset.from_config({"class": "LibriSpeechCorpus", **options})


@pytest.mark.parametrize("use_zip", [True, False])
@pytest.mark.parametrize("use_ogg", [True, False])
def test_all_forms(use_zip, use_ogg, tmp_path):
    path = make(tmp_path, use_zip=use_zip, use_ogg=use_ogg)
    dataset = corpus(path, use_zip=use_zip, use_ogg=use_ogg, orth_post_process="lowercase", seq_ordering="sorted")
    assert dataset.name == "prefix:train"
    got = [(seq.tag, len(seq.data["data"]), seq.data["raw"].item()) for seq in dataset.sequences(1)]
    assert got == [
        ("train-clean-100-103-7-0003", 31, "yes"),
        ("train-clean-100-19-198-0000", 51, "a cat"),
        ("train-clean-100-19-198-0001", 131, "it rains here"),
    ]
    (seq,) = corpus(path, use_zip=use_zip, use_ogg=use_ogg, prefix="dev").sequences(1)
    assert (seq.tag, dataset.num_outputs["data"]) == ("dev-other-5-6-0012", (5, 2))


def test_filters_act_one_after_the_other(tmp_path):
    filters = {(1, 2): {"subdirs": "train-clean-100"}, (2, None): {"max_mean_len": 4, "use_new_filter": True}}
    dataset = corpus(make(tmp_path, use_zip=True), audio=None, epoch_wise_filter=filters, partition_epoch=1)
    assert [[len(seq.data["raw"].item()) for seq in dataset.sequences(epoch)] for epoch in (1, 2, 3)] == [
        [5, 13, 3],
        [5, 3],
        [5, 3],
    ]


BAD_CORPORA = {
    "line": (
        {"19-198.trans": b"hello\n"},
        {},
        "transcript '.*train-clean-100.zip:LibriSpeech/.*19-198.trans.txt'.*'hello'",
    ),
    "utf8": ({"19-198.trans": b"19-198-0000 \xff\n"}, {}, "19-198.trans.txt' is not UTF-8 text"),
    "no_transcripts": ({".trans.txt": None}, {}, "has no transcripts"),
    "root": (
        {"root": "Other/"},
        {},
        "first member is 'Other/.*', but in a part of LibriSpeech all are in LibriSpeech/",
    ),
    "no_audio": (
        {"198-0001.flac": None},
        {},
        "'train-clean-100-19-198-0001'.* has no audio file 'LibriSpeech/.*0001.flac'",
    ),
    "damaged": ({"198-0001.flac": b"x" * 50}, {}, "-0001'.* audio file '.*0001.flac' cannot be decoded"),
    "subdirs": ({}, {"epoch_wise_filter": {(1, 1): {"subdirs": ["train-clean-10"]}}}, "Did you mean 'train-clean-100'"),
}


@pytest.mark.parametrize("name", BAD_CORPORA)
def test_bad_corpora(name, tmp_path):
    changes, options, text = BAD_CORPORA[name]
    make(tmp_path, use_zip=True, **changes)
    with pytest.raises(DataError, match=text):
        list(corpus(str(tmp_path), **options).sequences(1))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"path": "nowhere"}, "option 'path' is 'nowhere', which is no directory"),
        ({"use_zip": False}, "train-clean-100' does not exist.* Set use_zip=True"),
        ({"prefix": "eval"}, "option 'prefix' is 'eval', but must begin with one of train, dev, test"),
        ({"prefix": "test"}, "there is no '.*test\\*.zip'"),
        ({"targets": "bpe"}, "targets='bpe' needs the option 'bpe'"),
        ({"targets": "words"}, "option 'targets' is 'words'. Known: bpe, chars"),
        ({"bpe": {}, "chars": {}}, "give 'bpe' or 'chars', not both"),
        ({"targets": {"vocab_file": "x"}, "bpe": {}}, "give 'targets' or 'bpe', not both"),
        ({"targets": "chars", "bpe": {}}, "targets='chars' needs the option 'chars'"),
        ({"seq_tag_format": "tag"}, "'seq_tag_format' must hold %.seq.04i or the like, else several sequences have"),
        ({"seq_tag_format": "%(speaker)i-%(chapter)i"}, "'seq_tag_format' must hold %.seq.04i"),
        ({"seq_tag_format": "%(speaker)i-%(foo)s"}, "'seq_tag_format' must be a format of subdir.*KeyError 'foo'"),
        ({"epoch_wise_filter": {(1, 2): {"subdir": []}}}, "unknown option 'subdir'. Did you mean 'subdirs'"),
    ],
)
def test_bad_options(options, text, tmp_path):
    make(tmp_path, use_zip=True)
    with pytest.raises(ConfigError, match=text):
        corpus(**{"path": str(tmp_path), **options})
