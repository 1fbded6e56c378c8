"""Settings: the task, and those that only some tasks read."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from returnn_tf.config.options import above
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.data import PerKey
from returnn_tf.config.settings.declaration import SettingGroup, setting


def _is_callback(value: Any) -> Optional[str]:
    if callable(value) or hasattr(value, "process_seq"):
        return None
    return "must be an object with the methods init, process_seq and finish, or a function that returns one"


def _are_parts(value: Any) -> Optional[str]:
    for part in (value or {}).values():
        named = part if isinstance(part, (tuple, list)) and len(part) == 2 else (part, 1.0)
        is_number = isinstance(named[1], (int, float)) and not isinstance(named[1], bool)
        if not isinstance(named[0], str) or not is_number:
            return "must give for each name a layer, or (layer, weight), not %r" % (part,)
    return None


@register_settings
class TaskSettings(SettingGroup):
    """Tasks."""

    topic_order = 10

    task: str = setting("train", help="the task: train, eval, forward, search or another one", between_runs=True)
    device: str = setting("all", help="cpu, gpu or gpu<index>; by default a GPU if there is one", per_rank=True)
    startup_callback: Optional[Callable[..., Any]] = setting(None, help="function(config) to call before the task")
    submit: Optional[dict[str, Any]] = setting(
        None, help="options of returnn-tf submit: {'time': '24:00:00', 'gpus': 1, ...}"
    )
    dry_run: bool = setting(
        False, help="write no checkpoints and scores; task cleanup_old_models: only show what would be deleted"
    )
    failure: str = setting("", help="task replay: the folder of a failed step")

    # eval
    loss_name: str = setting("", help="layer whose loss is written for each sequence")
    eval_output_file: str = setting("", help="file for the scores of task eval")
    eval_output_file_per_seq: str = setting("", help="file for the scores of each sequence")
    output_per_seq_format: list[str] = setting(
        ["score"],
        help="fields of eval_output_file_per_seq: seq_tag, seq_len, score, error; pos_score, pos_error: by position",
    )
    output_per_seq_file_format: str = setting("txt", help="format of eval_output_file_per_seq", choices=["txt", "py"])

    # forward
    forward_data: Any = setting(None, help="dataset of task forward, its name or the dataset itself; 'eval' by default")
    forward_batch_size: Optional[PerKey] = setting(None, help="batch_size of task forward")
    forward_output_layer: str = setting("output", help="layer that task forward writes")
    forward_override_hdf_output: bool = setting(False, help="whether task forward may overwrite output_file")
    output_file: str = setting(
        "", help="file that task forward (HDF; dump-fwd-epoch-<epoch>.hdf by default) or compute_priors (text) writes"
    )
    forward_use_search: bool = setting(
        False, help="task forward: with the network of a search; forward_output_layer is a layer after its decision"
    )
    forward_callback: Any = setting(
        None,
        help="task forward: an object with init, process_seq and finish, or a function that returns one, which "
        "gets the outputs in place of a file",
        check=_is_callback,
    )

    # search
    search_data: Any = setting(None, help="dataset of task search, its name or the dataset itself; 'eval' by default")
    search_do_eval: bool = setting(True, help="task search: also compute losses and errors")
    search_output_layer: Union[str, list[str], None] = setting(
        None, help="layer that task search writes, or a list of them; 'output' by default"
    )
    search_output_file: str = setting("", help="file that task search writes")
    search_output_file_format: str = setting(
        "txt",
        help="format of search_output_file: lines of texts alone; a Python dict from tag to text; lines of tag, log "
        "score and text, separated by tabs; words with times and confidence as NIST CTM, as JSON lines, or in a folder "
        "with a file for each sequence as SubRip subtitles or TextGrid of Praat; n-best lists; "
        "lattices as text of Kaldi or, in a folder, as SLF of HTK",
        choices=["txt", "py", "tsv", "ctm", "jsonl", "kaldi", "nbest", "slf", "srt", "textgrid"],
    )
    search_times: Optional[str] = setting(
        None,
        help="layer that tells the times of words in search_output_file: an output of CTC, attention weights in the "
        "loop of the search, or that loop itself if it chooses a label for each frame; by default what there is",
    )
    search_frame_seconds: Optional[float] = setting(
        None,
        help="seconds between the frames of the data, for the times in search_output_file; by default as the option "
        "audio of the dataset says",
        check=above(0),
    )
    search_confidence: str = setting(
        "pooled",
        help="confidence of words in search_output_file: the geometric mean of their posterior in the beam and of the "
        "probability with which their labels are chosen; the posterior alone; or by the entropy of the scores from "
        "which labels are chosen",
        choices=["pooled", "posterior", "entropy"],
    )
    search_confidence_scale: float = setting(
        0.5,
        help="scale of the log scores of hypotheses, from which the posteriors in the beam are computed for the "
        "confidence: with less, words are less sure",
        check=above(0),
    )
    search_score_layers: Optional[dict[str, Any]] = setting(
        None,
        help="parts of the scores in search_output_file: name -> layer of the loop with scores of the labels, or "
        "(layer, weight), e.g. {'acoustic': 'output/prob', 'lm': ('output/lm_output', 0.3)}",
        check=_are_parts,
    )
