"""What the configs share: the data of TED-LIUM 2, and the language model."""

from __future__ import annotations

import os
from typing import Any

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


def language_model(source: str, prefix: str = "") -> dict[str, Any]:
    """Return the layers of the language model: LSTMs over the labels so far; ``<prefix>output`` has the probabilities.

    :param source: layer with the label before
    """
    embedding = prefix + "embedding"
    layers: dict[str, Any] = {
        embedding: {"class": "linear", "activation": None, "with_bias": False, "n_out": LM_EMBEDDING, "from": source},
    }
    last = embedding
    for i in range(1, LM_LAYERS + 1):
        name = "%slstm_%d" % (prefix, i)
        layers[name] = {"class": "rec", "unit": "nativelstm2", "n_out": LM_DIM, "dropout": 0.2, "from": last}
        last = name
    layers[prefix + "output"] = {"class": "softmax", "n_out": NUM_LABELS, "dropout": 0.2, "from": last}
    return layers
