"""The options of LmDataset."""

from __future__ import annotations

import os
from collections.abc import Callable as AnyCallable
from dataclasses import dataclass
from typing import Any, Optional, Union

from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core.base_options import BaseOptions
from returnn_tf.datasets.text.phones import PhoneOptions
from returnn_tf.datasets.text.symbols import LazyPath, ParseOptions


@dataclass
class LmOptions(BaseOptions):
    """Options in the config."""

    corpus_file: Union[str, os.PathLike[str], list[Any], AnyCallable[..., Any]] = option(
        help="text files (UTF-8, a sequence per line; .gz allowed) or Bliss XML: a path, a list, or a function"
    )
    use_cache_manager: bool = option(False, help="copy the corpus to the local disk first")
    skip_empty_lines: bool = option(True, help="leave out empty lines; segments of Bliss XML are kept")
    seq_list_file: Union[None, str, list[str]] = option(
        None, help="tags of the sequences, one per line: a file (.gz, .pkl allowed), or one for each corpus file"
    )
    orth_vocab: Any = option(None, help="vocabulary that makes labels of a text; instead of all options on symbols")
    orth_symbols_file: LazyPath = option(None, help="symbols, one per line, in the order of their labels")
    orth_symbols_map_file: LazyPath = option(
        None, help="map from symbols to labels: a dict (pickle, Python or JSON), or lines 'symbol label'"
    )
    phone_info: Optional[dict[str, Any]] = option(
        None, help="labels are phonemes or allophone states of a lexicon", group=PhoneOptions
    )
    orth_replace_map_file: LazyPath = option(
        None, help="JSON dict from symbols to texts that replace them; '' for none"
    )
    orth_post_process: Any = option(None, help="changes of the text: names, a function, or a list of these")
    word_based: bool = option(False, help="symbols are words, not characters")
    word_end_symbol: Optional[str] = option(None, help="symbol after each word, in place of blanks; for characters")
    seq_end_symbol: Optional[str] = option("[END]", help="symbol at the end of each sequence; None for none")
    unknown_symbol: Optional[str] = option(
        "[UNKNOWN]", help="symbol for unknown ones with auto_replace_unknown_symbol; None removes them"
    )
    parse_orth_opts: Optional[dict[str, Any]] = option(None, help="how a text becomes symbols", group=ParseOptions)
    add_random_phone_seqs: int = option(
        0, help="number of keys random0, random1, ... with random phonemes; needs phone_info", check=at_least(0)
    )
    auto_replace_unknown_symbol: bool = option(False, help="replace symbols without a label by unknown_symbol")
    log_auto_replace_unknown_symbols: int = option(10, help="number of unknown symbols that are logged")
    log_skipped_seqs: int = option(10, help="number of skipped sequences that are logged")
    error_on_invalid_seq: bool = option(
        True, help="a sequence with unknown symbols or words is an error; False: it is skipped, and counted"
    )
    add_delayed_seq_data: bool = option(False, help="add key 'delayed': a start symbol and all labels but the last")
    delayed_seq_data_start_symbol: str = option("[START]", help="start symbol of 'delayed'")
    dtype: Optional[str] = option(
        None, help="integer type of the data; default int8, uint8 or int32 by the number of labels"
    )
    tag_prefix: Optional[str] = option(None, help="beginning of the tags, before the number; default 'line-'")
    debug_limit_line_count: Optional[int] = option(
        None, help="read only this number of lines, to try something", check=at_least(1)
    )
