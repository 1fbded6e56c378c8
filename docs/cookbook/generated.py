"""Small generated corpora in the formats of real ones, so that the configs of the cookbook train in seconds.

Each function writes its files into ``generated/`` in the current folder if they are not there yet, and returns the path
that a config would name. Loading a config is enough for that, as ``returnn-tf check`` does. The files get their names
when they are complete, so several configs may be started at once.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import Any, Callable

import numpy as np

from returnn_tf.datasets import HDFWriter

FOLDER = "generated"
LABELS = list("abcdefghijkl")  # of speech
DIM, STATES, SPEAKERS = 20, 3, 4  # features of a frame; states of a label; speakers
SIZES = {"train": 600, "dev": 40, "test": 40}
WORDS = {  # English -> French, by kind of word
    "who": [("the cat", "le chat"), ("the dog", "le chien"), ("my friend", "mon ami"), ("the child", "l' enfant")],
    "does": [("sees", "voit"), ("likes", "aime"), ("follows", "suit")],
    "how": [("big", "grand"), ("old", "vieux"), ("white", "blanc"), ("green", "vert")],
    "what": [("tree", "arbre"), ("car", "camion"), ("boat", "bateau"), ("garden", "jardin")],
}


def speech(name: str) -> str:
    """Write an HDF file of utterances: features, and as targets labels, states and the speaker.

    ``data`` float32 [frames, DIM]; ``classes`` int32 [labels]; ``states`` int32 [frames], 0 for silence, else 1 +
    STATES * label + state; ``speaker`` int32 [1].

    :param name: train, dev or test
    """
    return _once(name + ".hdf", lambda path: _write_speech(path, name))


def _write_speech(path: str, name: str) -> None:
    shapes = np.random.default_rng(0).normal(size=(1 + STATES * len(LABELS), DIM))  # the same for all sets
    voices = np.random.default_rng(1).normal(scale=0.5, size=(SPEAKERS, DIM))
    rng = np.random.default_rng(2 + list(SIZES).index(name))
    kinds = {"classes": len(LABELS), "states": len(shapes), "speaker": SPEAKERS}
    extra = {key: (count, 1, "int32") for key, count in kinds.items()}
    with HDFWriter(path, dim=DIM, extra_type=extra, extra_labels={"classes": LABELS}) as writer:
        for i in range(SIZES[name]):
            labels, speaker = rng.integers(len(LABELS), size=rng.integers(3, 8)), rng.integers(SPEAKERS)
            states = (1 + STATES * labels[:, None] + np.arange(STATES)).flatten()
            states = np.repeat(states, rng.integers(1, 5, size=len(states)))
            states = np.pad(states, (3, 3))
            features = shapes[states] + voices[speaker] + rng.normal(scale=1.2, size=(len(states), DIM))
            targets: dict[str, Any] = {"classes": labels, "states": states, "speaker": np.array([speaker])}
            targets = {key: [array.astype("int32")] for key, array in targets.items()}
            writer.insert_sequences([features.astype("float32")], ["%s/%d" % (name, i)], targets)


def text(name: str) -> str:
    """Write English sentences, one per line, and all their words to ``generated/words.txt``; return the path.

    :param name: train, dev or test
    """
    translation()
    return os.path.join(FOLDER, "source.%s" % name)


def words() -> str:
    """Return the path of the vocabulary of `text`: one word per line."""
    translation()
    return os.path.join(FOLDER, "words.txt")


def translation() -> str:
    """Write sentences in two languages with vocabularies for `TranslationDataset`; return their folder.

    The adjective follows its noun in French: "my friend sees a white boat" - "mon ami voit un bateau blanc".
    """
    return os.path.dirname(_once("target.vocab.pkl", _write_translation))


def _write_translation(path: str) -> None:
    folder, rng = os.path.dirname(path), np.random.default_rng(1)
    for name, size in SIZES.items():
        pairs = [_pair(rng) for _ in range(size)]
        for side, sentences in zip(("source", "target"), zip(*pairs)):
            with open(os.path.join(folder, "%s.%s" % (side, name)), "w", encoding="utf8") as file:
                file.write("".join(sentence + "\n" for sentence in sentences))
    for i, (side, more) in enumerate((("source", "a and"), ("target", "un et"))):
        found = more.split() + [word for pairs in WORDS.values() for pair in pairs for word in pair[i].split()]
        vocabulary = ["<S>", "</S>", *sorted(set(found))]
        if side == "source":
            with open(os.path.join(folder, "words.txt"), "w", encoding="utf8") as file:
                file.write("".join(word + "\n" for word in vocabulary))
            _dump(os.path.join(folder, "source.vocab.pkl"), vocabulary)
        else:
            _dump(path, vocabulary)


def _dump(path: str, vocabulary: list[str]) -> None:
    with open(path, "wb") as file:
        pickle.dump({word: i for i, word in enumerate(vocabulary)}, file)


def _pair(rng: Any) -> tuple[str, str]:
    """Return a sentence in both languages: one or two clauses."""
    clauses = []
    for _ in range(rng.integers(1, 3)):
        who, does, how, what = ([str(word) for word in pairs[rng.integers(len(pairs))]] for pairs in WORDS.values())
        english = "%s %s a %s %s" % (who[0], does[0], how[0], what[0])
        clauses.append((english, "%s %s un %s %s" % (who[1], does[1], what[1], how[1])))
    return " and ".join(clause[0] for clause in clauses), " et ".join(clause[1] for clause in clauses)


def _once(name: str, write: Callable[[str], None]) -> str:
    """Write a file unless it is there, perhaps with others beside it; of several processes, each writes the same.

    :param write: writes the file, and others before it, to the folder of the path that it gets
    """
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        os.makedirs(FOLDER, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=FOLDER) as folder:
            write(os.path.join(folder, name))
            for other in sorted(os.listdir(folder), key=name.__eq__):  # this one last: it tells that all are there
                os.replace(os.path.join(folder, other), os.path.join(FOLDER, other))
    return path
