"""Settings: epochs, steps and failed steps; pretraining."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.config import readers
from returnn_tf.config.options import at_least, between
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting

#: Seed of all random numbers, unless set otherwise.
DEFAULT_SEED = 42
_MAX_SEED = 2**31 - 1


def _is_seed(value: int) -> Optional[str]:
    return None if 0 <= value <= _MAX_SEED else "must be from 0 to %d" % _MAX_SEED


def _is_auto_or_epoch(value: Union[int, str]) -> Optional[str]:
    return None if value == "auto" or isinstance(value, int) else "must be an epoch or 'auto'"


#: The networks of all epochs are planned before the first one.
MAX_EPOCHS = 100_000


@register_settings
class TrainingSettings(SettingGroup):
    """Training."""

    topic_order = 40

    num_epochs: int = setting(5, help="number of epochs to train", check=between(0, MAX_EPOCHS), between_runs=True)
    random_seed: int = setting(
        DEFAULT_SEED,
        help="seed of initial parameters, dropout and noise on gradients",
        check=_is_seed,
        differs="the random numbers of a seed are other ones",
    )
    start_epoch: Union[int, str] = setting(
        "auto",
        help="first epoch, whatever checkpoints exist; auto: the one after the newest checkpoint",
        check=_is_auto_or_epoch,
        between_runs=True,
    )
    start_batch: Union[int, str] = setting(
        "auto",
        help="first batch",
        choices=["auto", 0],
        inert="training resumes where its checkpoint was saved",
    )
    stop_on_nonfinite_train_score: bool = setting(True, help="stop at a loss of NaN or Inf; otherwise skip such steps")
    max_skipped_steps: int = setting(
        50,
        help="maximum number of consecutive skipped steps",
        needs=["stop_on_nonfinite_train_score = False", "loss_spike", "mixed_precision", "loss_scaling"],
    )
    loss_spike: Any = setting(
        None, help="what to do when the loss jumps: True, or a dict with factor, measure, policy, warmup, decay"
    )
    failure_params: Optional[bool] = setting(
        None, help="save the parameters with a failed step; by default if below 100 MiB"
    )
    calculate_exp_loss: bool = setting(False, help="log exp(loss), the perplexity")
    requeue_exit_code: Optional[int] = setting(
        None,
        help="exit code after SIGTERM or SIGUSR1, for a cluster that then starts the job again",
        check=between(1, 255),
    )
    stop_for_resubmission_when_low_time_left: bool = setting(
        False,
        help="in a job of Slurm: save and end, as after SIGUSR1, before its time limit",
        between_runs=True,
    )
    stop_for_resubmission_when_low_time_left_safety_factor: float = setting(
        2.0,
        help="how many times the seconds of the slowest step and checkpoint so far have to be left, at least 60 s",
        check=at_least(1),
        needs="stop_for_resubmission_when_low_time_left",
        between_runs=True,
    )
    search_train_network_layers: Union[None, str, list[str]] = setting(
        None,
        help="layers of a second network that searches while training, e.g. 'decision', whose errors are reported as "
        "'extra.search:decision'",
    )
    use_last_best_model: Union[None, bool, dict[str, Any]] = setting(
        None,
        help="begin an epoch with the best model so far instead of the last one: True, or a dict with modulo, "
        "first_epoch, only_last_n, filter_score, min_score_dist",
    )
    callbacks: Optional[list[Any]] = setting(
        None,
        help="objects of returnn_tf.Callback, told of each step and epoch, or functions to call after each epoch; they "
        "may end the training",
        between_runs=True,
    )
    init_new_network_callback: Any = setting(
        None, help="function to call for each new network", unsupported="do it in get_network(epoch)"
    )
    init_train_epoch_posthook: Any = setting(
        None, help="code to run before each epoch", unsupported="do it in get_network(epoch), or in startup_callback"
    )
    wrap_tf_session: Any = setting(
        None, help="function that replaces the session of TensorFlow", unsupported="there is no session; remove it"
    )

    # pretraining
    pretrain: Any = setting(
        None,
        help='networks that grow over the first epochs: "default" or a dict of options',
        reader=readers.read_bool_or_other,
    )
    pretrain_repetitions: Any = setting(
        None,
        help="with pretrain: number of epochs of each step",
        old='pretrain = {"repetitions": ...}',
        needs="pretrain",
    )
    pretrain_construction_algo: Any = setting(
        None,
        help="with pretrain: from_output, from_input or a function",
        old='pretrain = {"construction_algo": ...}',
        needs="pretrain",
    )
    pretrain_copy_output_layer: Any = setting(
        None,
        help="with pretrain: carry the output layers over: True, False or ifpossible",
        old='pretrain = {"copy_output_layer": ...}',
        reader=readers.read_bool_or_other,
        needs="pretrain",
    )
    pretrain_greedy: Optional[bool] = setting(
        None,
        help="with pretrain: train only the layers that are new in a step",
        old='pretrain = {"greedy": ...}',
        needs="pretrain",
    )
