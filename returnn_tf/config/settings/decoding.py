"""Settings: decoding of scores per frame, of CTC and of the states of an HMM."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.config.options import above, at_least
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting


@register_settings
class DecodingSettings(SettingGroup):
    """Decoding of CTC."""

    topic_order = 15

    decode_layer: str = setting(
        "", help="layer with posteriors of labels, or a search by choice; by default the one with the loss ctc"
    )
    decode_posteriors: Union[str, list[str], None] = setting(
        None,
        help="HDF files with posteriors, as task forward writes them; they are read in place of running the network",
    )
    decode_topology: str = setting(
        "ctc",
        help="ctc: labels and blanks; hmm: labels are states, each of which takes any number of frames",
        choices=["ctc", "hmm"],
    )
    decode_blank: Optional[int] = setting(
        None, help="index of the blank; by default as loss and layers say", check=at_least(0)
    )
    decode_lexicon: str = setting(
        "",
        help="file with a word in each line, and behind it the names of its labels; without them it is spelt as texts",
    )
    decode_separator: str = setting(
        "",
        help="label that may stand between words, as a silence; by default the space, if labels are characters",
        needs="decode_lexicon",
    )
    decode_lm: str = setting(
        "", help="n-gram model: ARPA, also .gz, or a binary file of KenLM with probing hash tables"
    )
    decode_lm_level: Optional[str] = setting(
        None,
        help="what the language model has as words: word or label; by default words if there is a lexicon",
        choices=["word", "label"],
        needs="decode_lm",
    )
    decode_lm_scale: float = setting(0.5, help="factor of the log probabilities of decode_lm", needs="decode_lm")
    decode_word_score: float = setting(0.0, help="added for each word, without a lexicon for each label")
    decode_unknown_score: float = setting(
        0.0, help="added for each word, of a model of labels for each label, that decode_lm lacks", needs="decode_lm"
    )
    decode_loop_score: float = setting(
        0.0, help="transitions: added for each further frame of a label; the negative of costs of HMMs"
    )
    decode_forward_score: float = setting(0.0, help="transitions: added for each label")
    decode_hot_words: Any = setting(
        None,
        help="file with a word or phrase in each line, and behind a tab its weight; or a list, or a dict with weights",
    )
    decode_hot_word_weight: float = setting(
        4.0, help="added to the log score for each of decode_hot_words without a weight", needs="decode_hot_words"
    )
    decode_priors: str = setting("", help="file with the log priors of the labels, as task compute_priors writes it")
    decode_prior_scale: float = setting(
        0.3, help="factor of the log priors, which are subtracted", needs="decode_priors"
    )
    decode_blank_scale: float = setting(
        1.0, help="factor of the probability of the blank; less than 1: fewer deletions", check=above(0)
    )
    decode_beam_size: int = setting(100, help="hypotheses that are kept", check=at_least(1))
    decode_beam_threshold: float = setting(
        25.0, help="hypotheses with a log score so far below that of the best are left out", check=above(0)
    )
    decode_labels_per_frame: int = setting(
        40, help="the best labels of a frame which may follow; 0: all", check=at_least(0)
    )
    decode_nbest: int = setting(1, help="hypotheses that are written, if the format has several", check=at_least(1))
    decode_reference: str = setting(
        "", help="data key of the references for the error rate, of labels or bytes; by default the target"
    )
    decode_threads: int = setting(0, help="threads that decode; 0: one for each CPU", check=at_least(0), per_rank=True)
    decode_tune: Optional[dict[str, list[float]]] = setting(
        None,
        help="scales to try, all combinations of them, in place of writing results: e.g. {'lm_scale': [0.4, 0.6], "
        "'word_score': [0.0, 0.5]}; also unknown_score, loop_score, forward_score, prior_scale, "
        "blank_scale, beam_size, beam_threshold, labels_per_frame",
    )
