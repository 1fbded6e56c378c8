"""Training on what RASR feeds: a thread trains, RASR computes the features in its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, DataError, RasrDataError, RasrError
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.user_code import call_of_config, error_in_config
from returnn_tf.logging.log import log
from returnn_tf.rasr.datasets.fed import FedDataset
from returnn_tf.rasr.settings import RasrSettings
from returnn_tf.tasks.setting_checks import check_all_settings
from returnn_tf.tasks.train import train
from returnn_tf.tensor import Data, extern_data_options, parse_extern_data


def fed_dataset(config: Config) -> FedDataset:
    """Return the dataset that RASR feeds: dims from ``extern_data``, options from ``sprint_interface_dataset_opts``.

    :raises ConfigError: extern_data lacks "data", or an option is wrong
    """
    dims = declared_dims(config)
    given = dict(RasrSettings(config).sprint_interface_dataset_opts or {})
    order = DataSettings(config).batching
    options: dict[str, Any] = {"name": "train", "seq_ordering": order or "default", **given}
    return FedDataset(**{**options, "input_dim": dims["data"], "output_dim": dims.get("classes", 0)})


def declared_dims(config: Config) -> dict[str, int]:
    """Return the dim of each data key that ``extern_data`` declares.

    :raises ConfigError: there is no "data" with features
    """
    settings = NetworkSettings(config)
    declared = {
        "extern_data": settings.extern_data,
        "num_inputs": settings.num_inputs,
        "num_outputs": settings.num_outputs,
    }
    data: Mapping[str, Data] = parse_extern_data(extern_data_options(declared))
    dims = {key: int(template.dim) for key, template in data.items() if template.dim}
    if "data" not in dims:
        raise RasrError("RASR feeds the data key 'data', so extern_data must declare it with a dim")
    return dims


def _around(dataset: FedDataset, config: Config) -> Any:
    """Return the dataset to train on: the fed one, wrapped by a function of the config if it has one."""
    custom = RasrSettings(config).sprint_interface_custom_dataset
    if custom is None:
        return dataset
    try:
        return call_of_config("sprint_interface_custom_dataset", custom, sprint_dataset=dataset)
    except (ConfigError, DataError):
        raise
    except Exception as exc:  # code of the config may raise anything
        text = error_in_config(exc) or "%s: %s" % (type(exc).__name__, exc)
        raise RasrError("sprint_interface_custom_dataset: %s" % text) from exc


class TrainingInRasr:
    """One training: RASR gets the segments of epoch after epoch, and feeds their data.

    :param config: with the task train; its dataset ``train`` is replaced
    """

    def __init__(self, config: Config):
        self.dataset = fed_dataset(config)
        config.set("train", _around(self.dataset, config))
        check_all_settings(config)
        self._config = config
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._train, name="training", daemon=True)
        self._thread.start()

    def _train(self) -> None:
        try:
            train(self._config)
        except BaseException as exc:  # raised in the thread of RASR
            self._error = exc
            log.write(1, "error: %s" % exc)
        finally:
            self.dataset.finish()

    def segments(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the segments of all epochs, one after the other; see `FedDataset.segments`."""
        yield from self.dataset.segments(list(names))
        self.check()

    def check_dims(self, input_dim: int, output_dim: int) -> None:
        """Compare the dims of RASR with those of the config.

        :raises ConfigError: they differ
        """
        opts = self.dataset.opts
        if input_dim != opts.input_dim or (output_dim > 0 and opts.output_dim and output_dim != opts.output_dim):
            raise RasrError(
                "RASR has %d features and %d classes, but extern_data declares %d and %d. Correct it, or "
                "*.trainer-output-dimension of RASR" % (input_dim, output_dim, opts.input_dim, opts.output_dim)
            )

    def feed(self, tag: str, features: Any, targets: Mapping[str, Any]) -> None:
        """Add a sequence; raises the error that has ended the training."""
        self.check()
        self.dataset.feed(tag, features, targets)

    def check(self) -> None:
        """Raise the error that has ended the training, if any."""
        if self._error is not None:
            raise RasrDataError("the training has failed: %s" % self._error) from self._error

    def end(self) -> None:
        """Wait for the end of the training, to which RASR feeds nothing more.

        :raises DataError: it has failed, or lacks data
        """
        self.dataset.finish()
        self._thread.join()
        self.check()
