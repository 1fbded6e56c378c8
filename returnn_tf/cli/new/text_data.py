"""Write data/train.txt, data/dev.txt and data/vocab.txt: made-up sentences, to see the format of the text.

A text has a sentence in each line, with blanks between words. The vocabulary has a word in each line; its number, from
0, is the label. For your own text, put it in place of the two files, and write the vocabulary by `write_vocabulary`.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

SIZES = {"train": 3000, "dev": 300}  # sentences
START, END, UNKNOWN = "[START]", "[END]", "[UNKNOWN]"

ANIMALS = ["dog", "cat", "horse", "bird", "goat", "cow"]
PLACES = ["garden", "house", "river", "forest", "road"]
ADJECTIVES = ["small", "old", "black", "quiet", "young"]
VERBS = {"sees": "see", "follows": "follow", "likes": "like", "meets": "meet"}
PREPOSITIONS = ["in", "near", "behind"]


def sentences(name: str, count: int) -> Iterator[str]:
    """Yield sentences, the same ones in each call. The verb agrees with its subject, however many words are between.

    :param name: of the data set
    """
    rng = np.random.default_rng(list(name.encode()))

    def noun(words: list[str], plural: bool) -> str:
        adjective = [str(rng.choice(ADJECTIVES))] if rng.random() < 0.4 else []
        article = ["the"] if plural or rng.random() < 0.5 else ["this"]
        return " ".join(article + adjective + [str(rng.choice(words)) + "s" * plural])

    for _ in range(count):
        many = rng.random() < 0.5
        words = [noun(ANIMALS, many)]
        if rng.random() < 0.5:
            words += [str(rng.choice(PREPOSITIONS)), noun(PLACES, rng.random() < 0.5)]
        verb = str(rng.choice(list(VERBS)))
        words += [VERBS[verb] if many else verb, noun(ANIMALS, rng.random() < 0.5), "."]
        yield " ".join(words)


def write_vocabulary(path: str, lines: Iterable[str], least: int = 1) -> None:
    """Write the words of a text, the most frequent ones first, behind the symbols that are no words.

    :param least: rarer words are left out
    """
    counts = Counter(word for line in lines for word in line.split())
    words = [word for word, count in counts.most_common() if count >= least]
    with open(path, "w", encoding="utf8") as file:
        file.writelines(word + "\n" for word in [START, END, UNKNOWN, *words])


def write(folder: str) -> None:
    """Write the data sets and the vocabulary into a folder."""
    for name, count in SIZES.items():
        lines = list(sentences(name, count))
        with open(os.path.join(folder, name + ".txt"), "w", encoding="utf8") as file:
            file.writelines(line + "\n" for line in lines)
        if name == "train":
            write_vocabulary(os.path.join(folder, "vocab.txt"), lines)


if __name__ == "__main__":
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
