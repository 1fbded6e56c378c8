"""``from returnn.util.basic import BehaviorVersion``: the behavior version that code asks for."""

from __future__ import annotations

from typing import ClassVar, Optional

from returnn_tf.config.behavior_versions import CHANGES
from returnn_tf.config.errors import CodeError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.user_code import config_in_use
from returnn_tf.logging.log import log


class RequirementNotFulfilled(CodeError):
    """Raised where a version forbids what an earlier one allows."""


class BehaviorVersion:
    """The version of the config in use, or the one that code set for the templates that it computes by itself.

    The version of a network that is trained is always that of its config.
    """

    RequirementNotFulfilled = RequirementNotFulfilled
    _latest_behavior_version = max(CHANGES)
    _version: ClassVar[Optional[int]] = None

    @classmethod
    def get(cls) -> int:
        """Return the version; 0 if there is none."""
        if cls._version is not None:
            return cls._version
        config = config_in_use()
        return 0 if config is None else NetworkSettings(config).behavior_version

    @classmethod
    def get_if_set(cls) -> Optional[int]:
        """Return the version that code set, or None."""
        return cls._version

    @classmethod
    def is_set(cls) -> bool:
        """Return whether code set a version."""
        return cls._version is not None

    @classmethod
    def set(cls, version: Optional[int]) -> None:
        """Set the version of templates that code computes by itself.

        :param version: None: that of the config in use
        :raises ConfigError: there is no such version
        """
        if version is not None and not 0 <= version <= cls._latest_behavior_version:
            raise CodeError(
                "BehaviorVersion.set: there is no version %r. The latest one is %d."
                % (version, cls._latest_behavior_version)
            )
        cls._version = version

    @classmethod
    def set_min_behavior_version(cls, min_behavior_version: int) -> None:
        """Raise the version to at least this one, as `set` does."""
        cls.set(max(cls.get(), min_behavior_version))

    @classmethod
    def require(cls, condition: bool, message: str, version: int) -> None:
        """Raise an error from a version on unless a condition holds; before, log it.

        :raises ConfigError: it does not hold
        """
        if condition:
            return
        text = "%s (since behavior_version %d; here it is %d)" % (message, version, cls.get())
        if cls.get() >= version:
            raise RequirementNotFulfilled(text)
        log.warn(text)
