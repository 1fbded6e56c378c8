"""Settings: this program as a module that RASR imports."""

from __future__ import annotations

from typing import Any, Callable, Optional

from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting


@register_settings
class RasrSettings(SettingGroup):
    """Inside of RASR."""

    topic_order = 100

    sprint_interface_dataset_opts: Optional[dict[str, Any]] = setting(
        None, help="options for what RASR feeds, as of ExternSprintDataset, e.g. input_stddev"
    )
    sprint_interface_custom_dataset: Optional[Callable[..., Any]] = setting(
        None, help="function of sprint_dataset=, which RASR feeds, that returns the dataset to train on"
    )
    SprintInterfacePythonFeatureScorer: Optional[Callable[..., Any]] = setting(
        None, help="class of the feature scorer; gets the keywords of RASR's init"
    )
    prior_scale: Optional[float] = setting(
        None, help="scale of the log priors in the scores of a feature scorer; 0 = none"
    )
    prior_file: str = setting("", help="text file with the log prior of each class, one per line")
