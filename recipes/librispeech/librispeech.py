#!/usr/bin/env python3
"""What the recipes share: parts of LibriSpeech, log-mel features, pieces of words, the language model.

python librispeech.py          writes the transcriptions to out/train.txt and out/dev.txt
"""

from __future__ import annotations

import os
from typing import Any

from returnn_tf import blocks

CORPUS = "LibriSpeech"  # the folder with train-clean-100, dev-other, ...
NUM_FEATURES = 80
NUM_LABELS = 1000  # pieces, <unk>, <s> and </s>
END = 2  # </s>
LM_DIM = 2048
LM_LAYERS = 2
LM_EMBEDDING = 512

#: Log energies of mel bands, each with mean 0 and deviation 1 in an utterance.
AUDIO = {
    "features": "log_mel_filterbank", "num_feature_filters": NUM_FEATURES,
    "norm_mean": "per_seq", "norm_std_dev": "per_seq",
}  # fmt: skip
PIECES = {"class": "SentencePieces", "model_file": "out/pieces.model"}
EXTERN_DATA = {"data": {"dim": NUM_FEATURES}, "classes": {"dim": NUM_LABELS, "sparse": True}}


def part(prefix: str, **options: Any) -> dict[str, Any]:
    """Return the dataset of the parts whose names begin with a prefix: "train" are all 960 hours."""
    corpus = {"class": "LibriSpeechCorpus", "path": CORPUS, "prefix": prefix, "audio": AUDIO, "targets": PIECES}
    return {**corpus, **options}


#: An epoch is a twentieth of the corpus, 48 hours. Dev is a half of dev-clean and dev-other.
TRAIN = part("train", seq_ordering="laplace:.1000", partition_epoch=20)
DEV = part("dev", seq_ordering="sorted", fixed_random_subset=0.5)
#: What is recognised: the parts whose names begin so.
PART = os.environ.get("PART", "dev-other")
SEARCH = part(PART, seq_ordering="sorted")


def language_model(source: str, **options: Any) -> dict[str, Any]:
    """Return the layers of the language model, LSTMs over the labels so far; ``output`` has the probabilities.

    :param source: layer with the label before
    :param options: ``target`` in training, ``num_labels`` in a search
    """
    sizes = {"layers": LM_LAYERS, "dim": LM_DIM, "embedding_dim": LM_EMBEDDING}
    return blocks.lstm_language_model("output", source=source, dropout=0.1, **sizes, **options)


def main() -> None:
    """Write the transcriptions."""
    from returnn_tf.datasets import Dataset

    os.makedirs("out", exist_ok=True)
    for name in ("train", "dev"):
        texts = Dataset.from_config(part(name, audio=None, targets=None))
        with open("out/%s.txt" % name, "w", encoding="utf8") as file:
            file.writelines("%s\n" % seq.data["raw"] for seq in texts.sequences())
        print("wrote out/%s.txt" % name)


if __name__ == "__main__":
    main()
