"""What attention.config and transducer.config share: the data, pieces of words, the encoder."""

from __future__ import annotations

from typing import Any

from returnn_tf import blocks

NUM_FEATURES = 40
NUM_LABELS = 1000  # pieces, <unk>, <s> and </s>
END = 2  # </s>
NUM_LAYERS = 6
NUM_CELLS = 1024
POOLING = [3, 2, 1, 1, 1, 1]  # a frame every 60 ms

#: Log energies of mel bands, each with mean 0 and deviation 1 in a segment.
AUDIO = {
    "features": "log_mel_filterbank", "num_feature_filters": NUM_FEATURES, "sample_rate": 8000,
    "norm_mean": "per_seq", "norm_std_dev": "per_seq",
}  # fmt: skip
PIECES = {"class": "SentencePieces", "model_file": "out/pieces.model"}
EXTERN_DATA = {"data": {"dim": NUM_FEATURES}, "classes": {"dim": NUM_LABELS, "sparse": True}}


def segments(corpus: str, **options: Any) -> dict[str, Any]:
    """Return the dataset of the segments of out/CORPUS.zip."""
    return {"class": "OggZipDataset", "path": "out/%s.zip" % corpus, "audio": AUDIO, "targets": PIECES, **options}


#: An epoch is a sixth of the corpus, 50 hours.
TRAIN = segments("switchboard", segment_file="out/train.segments", seq_ordering="laplace:.1000", partition_epoch=6)
DEV = segments("switchboard", segment_file="out/dev.segments", seq_ordering="sorted")
SEARCH = segments("hub5", seq_ordering="sorted")


def encoder(num_layers: int = NUM_LAYERS, dropout: float = 0.3) -> dict[str, Any]:
    """Return SpecAugment, the encoder, and CTC as second loss on it.

    :param num_layers: of the encoder, which pool as much as all
    """
    return {
        # Less in the first steps, in which attention or alignments have to be found. Time warping is left out.
        "masked": {
            "class": "specaugment", "from": "data",
            "time_masks": 2, "time_mask_size": 70, "max_time_share": 0.2, "feature_masks": 2, "feature_mask_size": 7,
            "scale_by_step": {0: 0.0, 5000: 0.5, 10000: 1.0},
        },
        **blocks.blstm("encoder", source="masked", layers=num_layers, dim=NUM_CELLS, pooling=POOLING, dropout=dropout),
        **blocks.ctc("ctc", source="encoder", scale=0.5, search=False),
    }  # fmt: skip
