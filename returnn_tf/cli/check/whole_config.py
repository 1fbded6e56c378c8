"""Checks all parts of a config without training: as far as possible, what a run of it would find hours later."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from returnn_tf.cli.shared.locator import messages
from returnn_tf.cli.submit.description import Description
from returnn_tf.compiler.describe import plan_of_task
from returnn_tf.compiler.lower import needed_extern_keys
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import CommandDataError, CommandError, ConfigError, DataError
from returnn_tf.config.options import check_options
from returnn_tf.config.settings import all_settings
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.user_code import error_in_config
from returnn_tf.datasets import dataset_from_config
from returnn_tf.datasets.config import without_auto
from returnn_tf.engine.checkpoints import preload
from returnn_tf.engine.checkpoints.checkpoint import strip_suffix
from returnn_tf.engine.checkpoints.fine_tuning import plan_sources
from returnn_tf.engine.checkpoints.selection import checkpoint_exists, find_checkpoints, find_step_checkpoints
from returnn_tf.engine.data.augmented import check_lengths_kept
from returnn_tf.engine.data.data_source import DataSource, dataset_name, evaluation_names
from returnn_tf.engine.distributed import world
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.learning_rate.schedule import described, schedule_from_config
from returnn_tf.engine.passes.forwarder import forwarded_node
from returnn_tf.engine.pretrain.checks import Planned, needed_data, planned_networks
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.search.beam import with_beam_size
from returnn_tf.engine.search.errors import decided_layers, ends_text
from returnn_tf.engine.search.searcher import searched_node
from returnn_tf.engine.update import averages
from returnn_tf.engine.update import options as update_options
from returnn_tf.graph.fine_tuning import fine_tuning_of
from returnn_tf.graph.layer import Node
from returnn_tf.tasks.registry import find_task
from returnn_tf.tasks.search import output_layers, why_nothing_searches
from returnn_tf.tasks.setting_checks import check_options_in_settings
from returnn_tf.tensor import Data

#: Tasks that read a dataset: the setting that names it.
_DATA_OF_TASK = {"search": "search_data", "forward": "forward_data", "hpx": "forward_data"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One mistake in a config.

    :param text: with the place
    :param topic: the pages of ``returnn-tf explain`` on it, separated by blanks
    :param is_data: whether only a data file or checkpoint is wrong
    :param network: the network dict that was being planned
    """

    text: str
    topic: str = ""
    is_data: bool = False
    network: Optional[Mapping[str, Any]] = dataclasses.field(default=None, compare=False, repr=False)


class ConfigCheck:
    """The parts of a config, checked one after the other; a fault in one does not hide those of the others.

    :param with_data: also open the datasets and look for checkpoints to load; without, only their options are read
    """

    def __init__(self, config: Config, *, with_data: bool = True) -> None:
        #: The config, with the defaults of settings that are wrong once these are checked.
        self.config = config
        #: The config with all its values.
        self.given = config
        self._with_data = with_data
        #: What a run would stop at.
        self.faults: list[Fault] = []
        #: What would only stop another task, or is missing for the task of the config.
        self.notes: list[Fault] = []
        #: What the task of the config does, although the network does not say so.
        self.remarks: list[str] = []
        #: What the task of the config needs of its dataset, if that is not the training data.
        self._task_data: Mapping[str, Data] = {}
        #: The networks of all epochs; None if one of them is wrong.
        self.planned: Optional[Planned] = None
        self.schedule: Optional[NetworkSchedule] = None
        #: The network of `shown_epoch` for the task of the config; None if one of the networks is wrong.
        self.plan: Optional[Plan] = None

    @property
    def last_epoch(self) -> int:
        """Return the last epoch that is trained."""
        pretrain_epochs = self.schedule.pretrain_epochs if self.schedule else 0
        return max(TrainingSettings(self.config).num_epochs, pretrain_epochs + 1)

    @property
    def shown_epoch(self) -> int:
        """Return the epoch whose network is shown: ``load_epoch``, ``epoch``, or the last one."""
        settings = CheckpointSettings(self.config)
        return settings.load_epoch or settings.epoch or self.last_epoch

    def run(self) -> None:
        """Check all parts."""
        for part in (
            self._settings,
            lambda: check_options_in_settings(self.config),
            self._submit,
            self._task,
            self._networks,
            self._search,
            self._forward,
            self._update,
            self._learning_rates,
            self._checkpoints,
            self._datasets,
            self._shown,
        ):
            with self._collecting():
                part()

    def raise_faults(self, show: Callable[[Fault], str] = lambda fault: fault.text) -> None:
        """Raise one error with all faults, if there are any.

        :param show: returns the text of a fault with the lines of the config that it is about
        :raises DataError: only data files or checkpoints are wrong
        :raises ConfigError: anything else is
        """
        if not self.faults:
            return
        text = "\n".join(map(show, self.faults))
        topics = dict.fromkeys(topic for fault in self.faults for topic in fault.topic.split())
        if len(self.faults) > 1:
            text = "%d mistakes:\n%s" % (len(self.faults), text)
        error = (DataError if all(fault.is_data for fault in self.faults) else ConfigError)(
            text, topic=" ".join(topics)
        )
        error.shows_text = True
        raise error

    @contextlib.contextmanager
    def _collecting(self, into: Optional[list[Fault]] = None) -> Iterator[None]:
        """Add what is raised within the context to the faults, or to another list; each text once."""
        found = self.faults if into is None else into
        try:
            yield
        except (ConfigError, DataError) as exc:
            for text in messages(str(exc)):
                if all(text != other.text for other in found):
                    found.append(Fault(text, exc.topic, isinstance(exc, DataError), exc.network))
        except Exception as exc:
            place = error_in_config(exc)
            if place is not None:
                found.append(Fault(place))
            elif isinstance(exc, OSError) and exc.filename is not None:
                found.append(Fault("%s: %s" % (exc.filename, exc.strerror or exc), is_data=True))
            else:
                raise

    def _settings(self) -> None:
        """Read every setting. The other parts see the defaults of wrong ones, so that these hide nothing."""
        wrong = []
        for info in all_settings().values():
            with self._collecting():
                wrong.append(info.key_in(self.config))
                info.read(self.config)
                wrong.pop()
        if wrong:
            self.config = derived(self.config, dict.fromkeys(wrong))

    def _submit(self) -> None:
        """Read the options for a job."""
        settings = TaskSettings(self.config)
        if settings.submit:
            check_options(Description, settings.submit, where=settings.describe_source("submit"))

    def _task(self) -> None:
        """Look up the task."""
        find_task(TaskSettings(self.config).task)

    def _networks(self) -> None:
        """Plan the networks of all epochs."""
        self.schedule = NetworkSchedule(self.config)
        entries = self.schedule.distinct(1, self.last_epoch)
        trains = TaskSettings(self.config).task == "train" and DataSettings(self.config).train
        if trains or len(entries) > 1:
            self.planned = planned_networks(self.schedule, 1, self.last_epoch)
        else:  # needs no loss
            search = TaskSettings(self.config).task == "search"
            self.planned = [(entries[0], plan_from_config(entries[0].config, train=not search, search=search))]

    def _search(self) -> None:
        """Plan the search of the last network: of task search, or to tell what a later search would stop at."""
        settings = TaskSettings(self.config)
        is_task = settings.task == "search"
        if self.schedule is None or not (is_task or settings.is_set("search_output_layer")):
            return
        later: list[Fault] = []
        with self._collecting(None if is_task else later):
            plan = plan_from_config(with_beam_size(self.schedule.at(self.last_epoch).config), search=True)
            nodes = [searched_node(plan, layer) for layer in output_layers(self.config)]
            if is_task:
                self.notes += map(Fault, filter(None, [why_nothing_searches(plan)]))
                self._set_task_data(plan, nodes)
                if settings.search_do_eval:
                    self.remarks += filter(None, map(ends_text, decided_layers(plan)))
        # without the step of pretraining
        known = [fault.text[max(fault.text.find("Layer "), 0) :] for fault in self.faults]
        new = [fault for fault in later if fault.text not in known]
        self.notes += [dataclasses.replace(fault, text="task search would fail: %s" % fault.text) for fault in new]

    def _forward(self) -> None:
        """Plan the network as the tasks that write the output of a layer do."""
        settings = TaskSettings(self.config)
        if self.schedule is None or settings.task not in ("forward", "hpx", "compute_priors"):
            return
        plan = plan_from_config(self.schedule.at(self.last_epoch).config, search=settings.forward_use_search)
        self._set_task_data(plan, [forwarded_node(plan, settings.forward_output_layer)])

    def _set_task_data(self, plan: Plan, nodes: Sequence[Node]) -> None:
        """Remember the data keys that the task needs for some layers."""
        self._task_data = {key: plan.extern_data[key] for key in needed_extern_keys(plan, nodes, False)}

    def _update(self) -> None:
        """Read the options of the update, of all parameters and of single layers."""
        options = update_options.from_config(self.config)
        for _, plan in self.planned or ():
            for name, spec in plan.params.items():
                options.for_layer(spec.updater_opts, "parameter %r" % name)
            trained = [name for name, spec in plan.params.items() if spec.trainable]
            of_params = update_options.options_of_params(plan, options, trained)
            averages.check(self.config, update_options.averaging_class(of_params))

    def _learning_rates(self) -> None:
        """Compute the learning rate of the first epoch; an existing learning-rate file is read."""
        rate = LearningRateControl.from_config(self.config).learning_rate(1)
        schedule = schedule_from_config(self.config)
        if schedule is not None and TaskSettings(self.config).task == "train":
            self.remarks.append(described(schedule, rate))

    def _checkpoints(self) -> None:
        """Look for the checkpoints to be loaded."""
        for entry in preload.entries(self.config):
            if self._with_data and not checkpoint_exists(strip_suffix(entry.filename)):
                raise CommandDataError("%s: there is no checkpoint %r" % (entry.where, entry.filename))
        given, model = fine_tuning_of(self.config), CheckpointSettings(self.config).model
        starts = TaskSettings(self.config).task == "train" and not find_checkpoints(model)
        if given is not None and self._with_data and self.planned and starts and not find_step_checkpoints(model):
            plan_sources(self.planned[0][1], given)

    def _datasets(self) -> None:
        """Open every dataset, and compare it with what the networks need.

        Without a plan only options and files are checked.
        """
        if not self._with_data:
            return
        settings = DataSettings(self.config)
        needed: Mapping[str, Data] = needed_data(self.planned) if self.planned else {}
        names = (["train"] if settings.train else []) + evaluation_names(self.config)
        task = TaskSettings(self.config).task
        if task == "train" and names and not settings.train:
            self.notes.append(Fault("there is no dataset to train on. Add train = {'class': ...}"))
        for name in names:
            with self._collecting():
                self._open(name, needed)
        for key in dict.fromkeys(_DATA_OF_TASK.values()):
            # a config without any dataset is that of a network alone
            if self.config.typed(key) or (names and _DATA_OF_TASK.get(task) == key):
                with self._collecting(None if _DATA_OF_TASK.get(task) == key else self.notes):
                    name = dataset_name(key, self.config.typed(key))
                    if _DATA_OF_TASK.get(task) == key:
                        self._open(name, self._task_data)
                    elif name not in names:
                        self._open(name, {})

    def _shown(self) -> None:
        """Find the network to show among the planned ones, or plan it for the task."""
        if self.schedule is None or self.planned is None:
            return
        entry = self.schedule.at(self.shown_epoch)
        search = TaskSettings(self.config).task == "search"
        fitting = [p for e, p in self.planned if p.search == search and p.train != search and entry.same_training(e)]
        self.plan = fitting[0] if fitting else plan_of_task(entry.config)

    def _open(self, name: str, needed: Mapping[str, Data]) -> None:
        """Open a dataset, and compare it with the data keys that the networks need, if these are known."""
        if needed:
            source = DataSource(without_auto(self.config), name, needed, world.World())
            source.close()
            if name == "train":
                check_lengths_kept(source.dataset, [plan for _, plan in self.planned or () if plan.train])
        elif dataset_from_config(self.config, name) is None:
            raise CommandError("The config has no dataset %r; add %s = {'class': ...}." % (name, name))
