"""Tables of the package ``datasets`` (Hugging Face): opened from the disk, from stores or from a hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DataError, FileDataError, FileError, did_you_mean, shown
from returnn_tf.config.user_code import error_in_config, result_of_config
from returnn_tf.datasets.audio.packages import optional_package
from returnn_tf.datasets.files import is_url, local_copy

_ARROW, _PARQUET = (".arrow",), (".parquet", ".pq")
_FORMS = (
    "a folder that save_to_disk wrote, a file .arrow or .parquet, a list of such files, a dict with the options of "
    "datasets.load_dataset, or a function that returns one of these or a dataset of that package"
)
_BLOCK = 1 << 14


def import_datasets() -> Any:
    """Import the package, which then neither draws bars nor logs what its exceptions say.

    :raises ConfigError: it is not installed
    """
    with optional_package("for HuggingFaceDataset", extra="huggingface"):
        import datasets
    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    return datasets


def open_table(source: Any, *, where: str, use_cache_manager: bool) -> Any:
    """Open a ``datasets.Dataset``.

    :param source: in one of the forms that the option ``dataset_opts`` takes
    :param where: prefix of errors
    :param use_cache_manager: the option of the dataset
    :raises ConfigError: the source has another form, or has several splits
    :raises DataError: a file is missing or damaged
    """
    datasets = import_datasets()
    name = source
    if callable(source) and not isinstance(source, datasets.Dataset):
        source = name = result_of_config(where, source)
    try:
        table = _opened(datasets, source, where=where, use_cache_manager=use_cache_manager)
    except (ConfigError, DataError):
        raise
    except Exception as exc:  # the package, and those below it, raise nearly anything
        text = "%s: %s cannot be read: %s. Is it damaged, or did a newer release of the package write it?"
        raise FileDataError(text % (where, shown(name), _cause(exc))) from exc
    if isinstance(table, Mapping):
        splits = ", ".join(map(repr, table))
        text = "%s: %s has the splits %s; choose one: %s"
        fix = "{..., 'split': %r}" if isinstance(source, Mapping) else "its subfolder %r"
        raise FileError(text % (where, shown(name), splits, fix % next(iter(table), "train")))
    if not isinstance(table, datasets.Dataset):
        raise FileError(
            "%s: %s gives %s, but must give a datasets.Dataset" % (where, shown(name), type(table).__name__)
        )
    return table


def _opened(datasets: Any, source: Any, *, where: str, use_cache_manager: bool) -> Any:
    if isinstance(source, Mapping) and not isinstance(source, datasets.DatasetDict):
        if source.get("streaming"):
            raise FileError("%s: a stream has no random access; leave out 'streaming'" % where)
        return datasets.load_dataset(**{str(key): value for key, value in source.items()})
    if isinstance(source, (str, os.PathLike)):
        source = os.fspath(source)
        if not source.endswith(_ARROW + _PARQUET):
            if not is_url(source) and not os.path.isdir(source):
                text = "%s: folder %r does not exist (current directory: %s)"
                raise FileDataError(text % (where, source, os.getcwd()))
            return datasets.load_from_disk(source)
        source = [source]
    if not isinstance(source, (list, tuple)):
        return source
    if not source:
        raise FileError("%s is empty, but must be %s" % (where, _FORMS))
    files = []
    for path in source:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).endswith(_ARROW + _PARQUET):
            raise FileError("%s: %s is not a file .arrow or .parquet; it must be %s" % (where, shown(path), _FORMS))
        files.append(local_copy(os.fspath(path), wanted=use_cache_manager))
    for path, file in zip(source, files):
        if not os.path.isfile(file):
            raise FileDataError(
                "%s: file %r does not exist (current directory: %s)" % (where, os.fspath(path), os.getcwd())
            )
    parts = [_of_file(datasets, file, os.fspath(path), where) for path, file in zip(source, files)]
    return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)


def _of_file(datasets: Any, file: str, name: str, where: str) -> Any:
    try:
        return datasets.Dataset.from_file(file) if file.endswith(_ARROW) else datasets.Dataset.from_parquet(file)
    except Exception as exc:
        raise FileDataError("%s: file %r cannot be read: %s" % (where, name, _cause(exc))) from exc


def _cause(exc: BaseException) -> str:
    """Return the first error of a chain, without the lines after its first one."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    lines = str(exc).strip().splitlines()
    return "%s: %s" % (type(exc).__name__, lines[0] if lines else "")


def check_columns(table: Any, columns: Sequence[str], where: str) -> None:
    """Check that a table has some columns.

    :raises ConfigError: one is missing
    """
    for column in columns:
        if column not in table.column_names:
            hint = did_you_mean(column, table.column_names, max_listed=20)
            raise FileError("%s: there is no column %r. %s" % (where, column, hint))


def changed(table: Any, change: Any, where: str) -> Any:
    """Return what a function of the config makes of a table.

    :param where: prefix of errors
    :raises ConfigError: it fails, or returns something else
    """
    datasets = import_datasets()
    try:
        result = change(table)
    except (ConfigError, DataError):
        raise
    except Exception as exc:
        raise FileError("%s: %s" % (where, error_in_config(exc) or _cause(exc))) from exc
    if not isinstance(result, datasets.Dataset):
        raise FileError("%s returns %s, but must return a datasets.Dataset" % (where, type(result).__name__))
    return result


def lengths_of(table: Any, column: str, where: str) -> NDArray[np.int64]:
    """Return the number of entries in each row of a column of lists, or of characters of one of texts.

    :raises ConfigError: it is a column of something else
    """
    import_datasets()
    with optional_package("for HuggingFaceDataset", extra="huggingface"):
        import pyarrow
        import pyarrow.compute
    found = []
    view = table.with_format("arrow", columns=[column])
    for start in range(0, len(table), _BLOCK):
        values = view[start : start + _BLOCK].column(column)
        kind = values.type
        if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            counts = pyarrow.compute.utf8_length(values)
        elif pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
            counts = pyarrow.compute.list_value_length(values)
        else:
            raise FileError("%s: the column %r has the type %s, but must have lists or texts" % (where, column, kind))
        found.append(pyarrow.compute.fill_null(counts, 0).to_numpy())
    lengths: NDArray[np.int64] = np.concatenate(found).astype(np.int64)
    return lengths


def numbers_of(table: Any, column: str, where: str) -> NDArray[Any]:
    """Return a column of numbers.

    :raises ConfigError: it is a column of something else
    :raises DataError: a row has none
    """
    values = np.asarray(table.with_format("numpy", columns=[column])[:][column])
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise FileError("%s: the column %r must have a number in each row" % (where, column))
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        text = "%s: the column %r must have a number in each row, but row %d has none"
        raise FileDataError(text % (where, column, missing[0]))
    return values
