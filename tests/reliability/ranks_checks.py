"""What several processes check together in one run, see `ranks_checks_run`: importing TensorFlow takes longer.

Each function ``check_...`` is called on all ranks.
"""

from __future__ import annotations

import os
import pathlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

import returnn_tf
from returnn_tf.engine.distributed import start_checks
from returnn_tf.engine.monitoring import reproducer
from returnn_tf.engine.passes.forward_pass import in_order
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.training.training_pass import find_faulty_rank
from tests.little_memory import LIMITED, Memory
from tests.reliability import toy
from tests.run_tasks import run_task
from tests.waiting import LONG

STEPS = 12
CLIP = 0.1  # below the norm of each step
FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
CHECKS: dict[str, Callable[[Any], Any]] = {}

#: for which it does not matter which sequences are in a batch
NETWORK: dict[str, Any] = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 12, "from": "data", "dropout": 0.2},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
}


def check(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate a function of the world as a check."""
    CHECKS[function.__name__[len("check_") :]] = function
    return function


def settings(*, normalized: bool = False, norm_layer: bool = False, **more: Any) -> dict[str, Any]:
    """Return the settings of a small net that all ranks train."""
    between = {"class": "batch_norm"} if norm_layer else {"class": "copy"}
    loss = {"loss": "ce", "target": "classes", "loss_opts": {"use_normalized_loss": normalized}}
    return {
        "extern_data": {"data": {"dim": 5}, "classes": {"dim": 3, "sparse": True}},
        "network": {
            "hidden": {"class": "linear", "activation": "tanh", "n_out": 7, "from": "data", "L2": 0.01},
            "between": {**between, "from": "hidden"},
            "output": {"class": "softmax", "from": "between", **loss},
        },
        "optimizer": {"class": "adam"},
        "gradient_clip_global_norm": CLIP,
        "learning_rate": 0.01,
        "use_horovod": True,
        # 100 bytes: the kernel of a layer is a message of its own, biases share one
        "distributed": {"bucket_size": 1e-4},
        **more,
    }


def by_itself(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with which a rank trains by itself."""
    return {**{name: value for name, value in given.items() if name != "distributed"}, "use_horovod": False}


def trainer_of(given: dict[str, Any]) -> Any:
    config = returnn_tf.Config(given)
    return StepTrainer(returnn_tf.Network.from_config(config, train=True), config)


def global_batches(steps: int = STEPS) -> list[dict[str, np.ndarray]]:
    """Return ragged batches of five sequences, the same on all ranks."""
    rng = np.random.default_rng(3)
    batches = []
    for _ in range(steps):
        lens = rng.integers(1, 7, 5).astype("int32")
        lens[0] = 6
        feed = {"data": rng.normal(size=(5, 6, 5)).astype("float32"), "classes": rng.integers(0, 3, (5, 6), "int32")}
        batches.append({**feed, "data/size0": lens, "classes/size0": lens})
    return batches


def part_of(world: Any, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the sequences of a rank, of which the first ranks may have one more: of two, three and two."""
    return {key: np.array_split(value, world.size)[world.rank] for key, value in feed.items()}


def arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the values of variables and tensors."""
    return {name: value.numpy() for name, value in values.items()}


def distance(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference of parameters, or of their averages."""
    assert set(ours) == set(theirs)
    return max(float(np.max(np.abs(ours[name] - theirs[name]))) for name in ours)


class Alone(NamedTuple):
    """What one rank has that trains by itself."""

    results: list[StepResult]
    params: dict[str, np.ndarray]  # those that are stored
    averages: dict[str, np.ndarray]


def train_alone(world: Any, given: dict[str, Any], feeds: Sequence[dict[str, np.ndarray]]) -> Alone:
    """Have the first rank train by itself, and return on all ranks what it has: tracing takes most of a check."""
    found = None
    if world.is_chief:
        trainer = trainer_of(by_itself(given))
        results = [trainer.step(feed) for feed in feeds]
        found = Alone(results, arrays(trainer.net.stored_params), arrays(trainer.averages.values()))
    return world.gather_values(found)[0]


def compare_with_one(world: Any, **given: Any) -> dict[str, Any]:
    """Train on parts, and alone on the whole batches."""
    alone = train_alone(world, settings(**given), global_batches())
    return compare(trainer_of(settings(**given)), alone, [part_of(world, feed) for feed in global_batches()])


def compare(ours: Any, alone: Alone, feeds: Sequence[Any]) -> dict[str, Any]:
    """Train with the feeds of this rank, and compare with one that has trained alone."""
    assert len(feeds) == len(alone.results)
    curves = list(zip(map(ours.step, feeds), alone.results))
    ours.ranks.check_same(ours, "at the end")
    first, first_alone = curves[0]
    return {
        "losses": {name: first.losses[name] / value for name, value in first_alone.losses.items()},
        "loss": max(abs(a.total_loss - b.total_loss) / abs(b.total_loss) for a, b in curves),
        "norm": max(abs(a.grad_norm - b.grad_norm) for a, b in curves),
        "counts": all(a.counts == b.counts for a, b in curves),
        "clipped": all(a.grad_norm > CLIP for a, b in curves),
        "params": distance(arrays(ours.net.stored_params), alone.params),
    }


@check
def check_world(world: Any) -> Any:
    import tensorflow as tf

    variable = tf.Variable([float(world.rank + 1)])
    world.broadcast([variable])
    arrays = world.gather_values({"x": np.arange(world.rank + 1)})
    return {
        "any": [world.any(world.rank == 1), world.any(False)],
        "gather": world.gather({"rank": world.rank, "float": 0.1 + world.rank, "text": "ä\n"}),
        "arrays": [part["x"].tolist() for part in arrays],
        "broadcast": variable.numpy().tolist(),
        "hosts": len(world.hosts()),
    }


@check
def check_summed_loss(world: Any) -> Any:
    return compare_with_one(world)


@check
def check_early_messages(world: Any) -> Any:
    """Gradients of the first layer are held back until this rank has the sums of the last layer's over all ranks."""
    import tensorflow as tf

    summed, found = threading.Event(), []

    def wait(_: Any) -> bool:
        found.append(summed.wait(LONG))
        return found[-1]

    def note(_: Any) -> bool:
        summed.set()
        return True

    def run(function: Callable[[Any], bool], x: Any) -> Any:
        return tf.numpy_function(function, [x], tf.bool, stateful=False)  # TensorFlow would order stateful ones

    @tf.custom_gradient
    def held_back(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            return tf.where(run(wait, dy), dy, tf.zeros_like(dy))

        return tf.identity(x), gradient

    sum_group = world.collectives.sum_group

    def noting(tensors: Sequence[Any], name: str, **options: Any) -> list[Any]:
        sums = sum_group(tensors, name, **options)
        if name != "returnn.gradients.0":
            return sums
        noted = run(note, sums[0])
        return [tf.where(noted, value, tf.zeros_like(value)) for value in sums]

    given = settings(distributed={"bucket_size": 5e-5})  # 52 bytes: the kernels are messages of their own
    given["network"]["between"] = {"class": "eval", "from": "hidden", "eval": lambda source, **_: held_back(source(0))}
    world.collectives.sum_group = noting
    try:
        trainer_of(given).step(part_of(world, global_batches(1)[0]))
    finally:
        del world.collectives.sum_group
    return found


@check
def check_normalized_loss(world: Any) -> Any:
    return compare_with_one(world, normalized=True)


@check
def check_out_of_memory(world: Any) -> Any:
    """One rank runs out of memory in every second step, and computes its batch in two halves; the others do not."""
    network = settings()["network"]
    network["between"] = {**LIMITED, "from": "hidden"}
    alone = train_alone(world, settings(network=network), global_batches())
    ours = trainer_of(settings(network=network))
    tight: list[int] = []
    step = ours.step

    def little(feed: Any) -> Any:
        Memory.sequences = 1 if world.rank == 1 and len(tight) % 2 else 100
        tight.append(Memory.sequences)
        try:
            return step(feed)
        finally:
            Memory.all_fit()

    ours.step = little
    found = compare(ours, alone, [part_of(world, feed) for feed in global_batches()])
    found["means"] = ours.ranks.why_not_again(means=True)
    return found


@check
def check_decoupled_constraints(world: Any) -> Any:
    return compare_with_one(world, decouple_constraints=True)


@check
def check_output_constraints(world: Any) -> Any:
    network = settings()["network"]
    network["hidden"].update(n_out=9, spatial_smoothing=0.1)
    return compare_with_one(world, network=network)


@check
def check_loss_on_a_parameter(world: Any) -> Any:
    """Once in total, but once for each sequence if it has a batch axis."""
    network = settings()["network"]
    network["v"] = {"class": "variable", "shape": (7,), "add_batch_axis": False, "init": 0.5}
    network["size"] = {"class": "eval", "from": "v", "eval": "source(0) ** 2", "loss": "as_is"}
    network["w"] = {"class": "variable", "shape": (7,), "add_batch_axis": True, "init": 0.5}
    network["sizes"] = {"class": "eval", "from": "w", "eval": "source(0) ** 2", "loss": "as_is", "loss_scale": 0.1}
    network["between"] = {"class": "combine", "kind": "add", "from": ["hidden", "v", "w"]}
    return compare_with_one(world, network=network)


@check
def check_adapters(world: Any) -> Any:
    lora = {"layers": ["hidden", "output"], "rank": 2}
    fine_tune = {"from": "not read here", "lora": lora, "train": ["*/b"], "rates": {"output": 0.5}}
    return compare_with_one(world, fine_tune=fine_tune)


@check
def check_accumulated(world: Any) -> Any:
    return compare_with_one(world, accum_grad_multiple_step=3)


@check
def check_losses_on_gradients(world: Any) -> Any:
    """Second updates: a sum over the numbers of a layer, and a mean."""
    network = settings()["network"]
    network["guess"] = {"class": "linear", "activation": None, "n_out": 7, "from": "hidden"}
    network["t"] = {"class": "tikhonov_regularization", "meta_loss_scale": 0.1, "from": "hidden"}
    network["between"] = {"class": "synthetic_gradient", "gradient": "guess", "from": "t"}
    found = compare_with_one(world, network=network)
    found["meta"] = max(abs(quotient - 1) for quotient in found["losses"].values())
    return found


@check
def check_kept_states(world: Any) -> Any:
    """Each rank keeps the states of its own sequences from batch to batch."""
    network = settings()["network"]
    lstm = {"class": "rec", "unit": "lstm", "n_out": 7, "from": "hidden", "initial_state": "keep_over_epoch"}
    cell = {"class": "rnn_cell", "unit": "gru", "n_out": 7, "initial_state": "keep_over_epoch_no_init"}
    unit = {"output": {**cell, "from": ["data:source", "prev:output"]}}
    network["lstm"], network["between"] = lstm, {"class": "rec", "from": "lstm", "unit": unit}
    return compare_with_one(world, network=network)


@check
def check_batch_norm(world: Any) -> Any:
    """Each rank has the whole batch; one that trains alone has it once for each of them."""
    given = settings(norm_layer=True)
    repeated = [{key: np.concatenate([value] * world.size) for key, value in feed.items()} for feed in global_batches()]
    return compare(trainer_of(given), train_alone(world, given, repeated), global_batches())


@check
def check_fp16(world: Any) -> Any:
    return compare_with_one(world, horovod_compression="fp16")


@check
def check_average_grad(world: Any) -> Any:
    """The mean of the gradients of all ranks: with SGD the step is that of one rank with a rate divided by the size."""
    sgd = {"optimizer": {"class": "sgd"}, "gradient_clip_global_norm": 0.0}
    ours = trainer_of(settings(horovod_avg_grad=True, **sgd))
    alone = trainer_of(by_itself(settings(**sgd)))
    for name in ours.net.params:
        assert np.array_equal(ours.net.params[name], alone.net.params[name])
    feed = global_batches(1)[0]
    before = {name: var.numpy() for name, var in alone.net.params.items()}
    ours.step(part_of(world, feed), 0.1)
    alone.step(feed, 0.1)
    l2 = {"hidden/W": 2 * 0.01, "hidden/b": 2 * 0.01}  # the constraint counts once on each rank, so wholly in the mean
    worst = 0.0
    for name, start in before.items():
        moved = alone.net.params[name].numpy() - start
        constraint = -0.1 * l2.get(name, 0.0) * start
        expected = (moved - constraint) / world.size + constraint
        worst = max(worst, float(np.max(np.abs(ours.net.params[name].numpy() - start - expected))))
    return worst


@check
def check_scaled_rate(world: Any) -> Any:
    return trainer_of(settings(horovod_scale_lr=True)).step(part_of(world, global_batches(1)[0]), 0.1).learning_rate


@check
def check_statistics(world: Any) -> Any:
    """Running means of layers are the same on all ranks after each step."""
    trainer = trainer_of(settings(norm_layer=True))
    for feed in global_batches(4):
        trainer.step(part_of(world, feed))
        trainer.ranks.check_same(trainer, "after a step")
    return True


@check
def check_dropout_differs(world: Any) -> Any:
    """Two ranks with the same data drop other units."""
    given = settings(use_horovod=True)
    given["network"]["hidden"]["dropout"] = 0.5
    trainer = trainer_of(given)
    graph = returnn_tf.Network.from_config(returnn_tf.Config(given), train=True)
    return [trainer.net.noise_seed, graph.noise_seed]


class _Batch:
    def __init__(self, number: int) -> None:
        self.number = number


@check
def check_join(world: Any) -> Any:
    """The first rank has five batches, the other one two: equal to one rank with what each step has together."""
    feeds = global_batches(5)
    together = [*feeds[:2], *({key: value[:3] for key, value in feed.items()} for feed in feeds[2:])]
    alone, ours = train_alone(world, settings(), together), trainer_of(settings())
    own = [(_Batch(i), part_of(world, feed)) for i, feed in enumerate(feeds[: 5 if world.rank == 0 else 2])]
    tags = []
    for batch, tensors in ours.ranks.join(own, None):
        result = ours.step(tensors)
        tags.append([isinstance(batch, _Batch), result.own, ours.ranks.control.active])
    return {"steps": tags, "params": distance(arrays(ours.net.stored_params), alone.params)}


@check
def check_no_data_at_all(world: Any) -> Any:
    """A rank without any batch takes part with what it is given to compute."""
    trainer = trainer_of(settings())
    own = [(_Batch(0), global_batches(1)[0])] if world.rank == 0 else []
    steps = [trainer.step(tensors).own for _, tensors in trainer.ranks.join(own, lambda: global_batches(1)[0])]
    nobody = list(trainer.ranks.join([], lambda: global_batches(1)[0]))
    trainer.ranks.check_same(trainer, "at the end")
    return [steps, len(nobody)]


def mean_of(world: Any, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the mean of what all ranks have."""
    parts = world.gather_values(arrays(values))
    return {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}


@check
def check_param_sync(world: Any) -> Any:
    """Own updates for three steps, then the mean of what each rank would have alone."""
    given = {"horovod_reduce_type": "param", "horovod_param_sync_step": 3}
    ours, alone = trainer_of(settings(**given)), trainer_of(by_itself(settings()))
    alone.net.noise_seed = ours.net.noise_seed
    ours.ranks.control.more = True
    apart = []
    for feed in global_batches(3):
        ours.step(part_of(world, feed))
        alone.step(part_of(world, feed))
        apart.append(distance(arrays(ours.net.stored_params), arrays(alone.net.stored_params)))
    worst = distance(arrays(ours.net.params), mean_of(world, alone.net.params))
    before_whole = len(set(world.gather(str([var.numpy().tolist() for var in ours.state().values()]))))
    ours.ranks.synchronize(ours)
    ours.ranks.check_same(ours, "after an epoch")
    return {"apart": apart[:2], "mean": worst, "slots_before": before_whole}


@check
def check_averages(world: Any) -> Any:
    """Averages of parameters: those of one that trains alone; of ranks that train apart, their mean."""
    kinds = {
        "moving": {"weight_average": {"decay": 0.5}},
        "of_optimizer": {"optimizer": {"class": "schedulefreeadamw"}},
    }
    worst = {}
    for kind, given in kinds.items():
        ours = trainer_of(settings(**given))
        of_one = train_alone(world, settings(**given), global_batches())
        for feed in global_batches():
            ours.step(part_of(world, feed))
        ours.ranks.check_same(ours, "at the end")
        worst[kind] = distance(arrays(ours.averages.values()), of_one.averages)

        apart = settings(horovod_reduce_type="param", horovod_param_sync_step=3, **given)
        ours, alone = trainer_of(apart), trainer_of(by_itself(settings(**given)))
        alone.net.noise_seed = ours.net.noise_seed
        ours.ranks.control.more = True
        for feed in global_batches(3):
            ours.step(part_of(world, feed))
            alone.step(part_of(world, feed))
        ours.ranks.synchronize(ours)
        ours.ranks.check_same(ours, "after an epoch")
        means = mean_of(world, alone.averages.values())
        worst[kind + " apart"] = distance(arrays(ours.averages.values()), means)
    return worst


@check
def check_param_join(world: Any) -> Any:
    """Five and two batches, synchronised each two steps; and by time, where all wait for the slower one."""
    steps = []
    for more in ({"horovod_param_sync_step": 2}, {"horovod_param_sync_time_diff": 0.05}):
        trainer = trainer_of(settings(horovod_reduce_type="param", horovod_avg_param_on_cpu=True, **more))
        own = [(_Batch(i), part_of(world, feed)) for i, feed in enumerate(global_batches(5 if world.rank == 0 else 2))]
        steps.append(sum(trainer.step(tensors).own for _, tensors in trainer.ranks.join(own, None)))
        values = world.gather([var.numpy().tolist() for var in trainer.net.params.values()])
        steps.append(values[0] == values[1])
    return steps


@check
def check_pause(world: Any) -> Any:
    """One rank wants a pause: all hear of it with the same step."""
    trainer = trainer_of(settings())
    heard = []
    for number, feed in enumerate(global_batches(4)):
        trainer.ranks.control.wants_pause = lambda number=number: world.rank == 1 and number == 2
        trainer.step(part_of(world, feed))
        heard.append(trainer.ranks.control.any_pause)
    return heard


@check
def check_nan(world: Any) -> Any:
    """NaN in the batch of one rank: all raise before the update, and name rank, sequences and key; it is kept."""
    given = settings(model=str(FOLDER / "nan" / "m"))
    trainer, tags = trainer_of(given), ["seq-%i" % world.rank]
    before = {name: var.numpy() for name, var in trainer.net.params.items()}
    feed = part_of(world, global_batches(1)[0])
    if world.rank == 1:
        feed["data"] = feed["data"] * np.float32("nan")
    try:
        with reproducer.keep_on_failure(returnn_tf.Config(given), trainer, 1, feed, tags):
            try:
                trainer.step(feed)
            except NonFiniteError as exc:
                raise find_faulty_rank(world, exc, tags, lambda: first_bad_layer(trainer.net, feed, step=0)) from None
    except NonFiniteError as exc:
        same = all(np.array_equal(before[name], var.numpy()) for name, var in trainer.net.params.items())
        failure, kept = reproducer.load(reproducer.folder_of(given["model"], 0, 1))
        seeds = [failure.noise_seed, trainer.net.noise_seed]
        return [str(exc), same, os.listdir(str(FOLDER / "nan")), bool(np.isnan(kept["data"]).any()), seeds]
    return "no error"


@check
def check_other_step(world: Any) -> Any:
    """Ranks that are not at the same step are an error on all of them."""
    trainer = trainer_of(settings())
    try:
        trainer.step(part_of(world, global_batches(1)[0]), 0.1 * (1 + world.rank))
    except returnn_tf.config.DataError as exc:
        return str(exc)
    return "no error"


@check
def check_diverged(world: Any) -> Any:
    """A parameter that changed on one rank."""
    trainer = trainer_of(settings())
    if world.rank == 1:
        trainer.net.params["output/b"].assign_add([1e-6, 0.0, 0.0])
    try:
        trainer.ranks.check_same(trainer, "train epoch 1")
    except returnn_tf.config.DataError as exc:
        return str(exc)
    return "no error"


@check
def check_start(world: Any) -> Any:
    """Ranks with other settings, networks or data."""
    facts = {
        "settings": {"settings": {"batch_size": str(5 + world.rank), "same": "1"}},
        "network": {"network": {"hidden/W": "float32 [5, %d]" % (7 + world.rank)}},
        "data": {"data of 'train'": {"sequences": "100"} if world.rank else {}},
        "same": {"settings": {"batch_size": "5"}},
    }
    found = {}
    for name, given in facts.items():
        try:
            start_checks.check_same(world, given)
            found[name] = ""
        except returnn_tf.ConfigError as exc:
            found[name] = str(exc)
    return found


@check
def check_in_order(world: Any) -> Any:
    """Batches of other sizes on each rank, in the order of all sequences."""
    own = list(range(world.rank, 11, world.size))
    sizes = [1, 4, 1] if world.rank == 0 else [3, 2]
    batches = [own[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]
    return list(in_order(world, batches))


def run_tasks(folder: pathlib.Path, name: str, **more: Any) -> None:
    """Run evaluation, search and forwarding of the model in a folder."""
    base = {
        "num_epochs": 2,
        "network": NETWORK,
        "eval": {"class": "Task12AXDataset", "num_seqs": 9, "fixed_random_seed": 3},
        **more,
    }
    for task, own in (
        ("eval", {"eval_output_file": str(folder / (name + ".scores"))}),
        (
            "eval",
            {"eval_output_file_per_seq": str(folder / (name + ".seqs")), "loss_name": "output", "dev": None},
        ),
        ("forward", {"output_file": str(folder / (name + ".hdf"))}),
    ):
        config = returnn_tf.Config.from_file(str(folder / "toy.config"))
        config.update({**base, **own, "task": task, "learning_rate_file": None, "use_horovod": True, **more})
        run_task(config)


@check
def check_training(world: Any) -> Any:
    """A whole training of two epochs, then evaluation and forwarding by all ranks and by the first one alone."""
    folder = FOLDER / "training"
    if world.is_chief:
        toy.write_config(folder)
    world.barrier("config")
    os.chdir(folder)
    config = returnn_tf.Config.from_file("toy.config")
    config.update(
        {
            "use_horovod": True,
            "network": NETWORK,
            "num_epochs": 2,
            "save_every_steps": 20,
            "learning_rate_control": "newbob",
        }
    )
    code = run_task(config)
    run_tasks(folder, "together")
    if world.is_chief:
        run_tasks(folder, "alone", use_horovod=False)
    world.barrier("alone")
    return [code, sorted(os.listdir(folder / "net"))]
