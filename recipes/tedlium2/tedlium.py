"""What the configs share: the data of TED-LIUM 2, and the language model."""

from __future__ import annotations

import os
from typing import Any

from returnn_tf import blocks

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


def utterances(name: str, **options: Any) -> dict[str, Any]:
    """Return the dataset of the utterances of out/NAME.zip."""
    return {"class": "OggZipDataset", "path": "out/%s.zip" % name, "audio": AUDIO, "targets": PIECES, **options}


#: An epoch is a quarter of the corpus, 52 hours; in each, an utterance is 0.9, 1.0 or 1.1 times as fast.
TRAIN = utterances(
    "train", audio={**AUDIO, "augment": [{"class": "speed"}]}, seq_ordering="laplace:.1000", partition_epoch=4
)
DEV = utterances("dev", seq_ordering="sorted")
#: What is recognised: dev or test.
PART = os.environ.get("PART", "dev")
SEARCH = utterances(PART, seq_ordering="sorted")


def language_model(source: str, **options: Any) -> dict[str, Any]:
    """Return the layers of the language model, LSTMs over the labels so far; ``output`` has the probabilities.

    :param source: layer with the label before
    :param options: ``target`` in training, ``num_labels`` in a search
    """
    sizes = {"layers": LM_LAYERS, "dim": LM_DIM, "embedding_dim": LM_EMBEDDING}
    return blocks.lstm_language_model("output", source=source, dropout=0.2, **sizes, **options)
