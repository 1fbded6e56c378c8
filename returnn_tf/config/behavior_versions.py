"""The changes of each ``behavior_version``. The code of a change compares with its number; a test compares both."""

from __future__ import annotations

#: version -> the differences from it on, each a sentence
CHANGES: dict[int, tuple[str, ...]] = {
    1: ("Every layer with inputs needs ``from``; before, a layer without it has the source ``data``.",),
    3: (
        "``dot`` needs ``reduce``, or ``red1`` and ``red2``; before, they default to -1 and -2, and ``var1`` and "
        "``var2`` to -2 and -1.",
        "``dot`` adds no axis of size 1 where the second source has no axis of its own, unless "
        "``add_var2_if_empty`` says so.",
    ),
    4: (
        "Where several sources are combined or concatenated, one of them needs all axes; else ``out_shape``, or "
        "``allow_broadcast_all`` of ``combine``, has to allow that axes are added to all of them.",
    ),
    5: ("Axes have no numbers: ``axis`` is a name such as ``T``, ``F`` or ``dim:<size>``, or a dim.",),
    6: (
        "``merge_dims`` merges the axes in the given order (``keep_order``); before, they are sorted first, with the "
        "batch in front.",
    ),
    7: ("An axis is not named by its position in a group either, such as ``spatial:0``.",),
    8: ("Convolutions and pooling don't choose among more axes than the filter has: ``in_spatial_dims`` names them.",),
    10: ("``conv`` has a bias by default (``with_bias``).",),
    11: ("Where sources are combined or gathered, an axis of size 1 is no other axis that happens to be larger.",),
    12: (
        "``batch_norm`` needs ``masked_time``.",
        "``batch_norm`` has the defaults ``momentum`` 0.1 in place of 0.99, ``param_version`` 2 in place of 0, and "
        "True for ``update_sample_only_in_training`` and ``delay_sample_update``.",
    ),
    14: ("``dot`` pairs axes of the same dim only; before, also different ones of the same size.",),
    17: ("The unit ``zoneoutlstm`` outputs h after zoneout (``use_zoneout_output``).",),
    18: (
        "``window`` puts the axis of its frames first and the window before the time axis; before, it is "
        "[batch, time, window, others].",
    ),
    21: (
        "``pad`` puts the right padding directly after the last frame of each sequence (``handle_dynamic_dims``); "
        "before, at the end of the array.",
    ),
    30: (
        "CTC: a sequence with fewer frames than its labels need has the gradient 0; before, native CTC gives it that "
        "of the softmax.",
    ),
}
#: The newest rules.
NEWEST_VERSION = max(CHANGES)
