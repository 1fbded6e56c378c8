"""Task ``search``: searches all sequences of a dataset, writes the hypotheses, and counts the errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Optional

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.requested import with_outputs
from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, SearchError, did_you_mean
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets import Dataset
from returnn_tf.engine.data.data_source import DataSource, dataset_name, evaluation_names
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.distributed import world
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.search.end_labels import loop_of_search
from returnn_tf.engine.search.errors import ErrorReport, decided_layers
from returnn_tf.engine.search.labels import labels_of
from returnn_tf.engine.search.lexicon_words import with_words_of_search
from returnn_tf.engine.search.output import SearchOutput
from returnn_tf.engine.search.posteriors import check_reference, references
from returnn_tf.engine.search.search_pass import SearchPass
from returnn_tf.engine.search.searcher import Searcher, searched_node
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import TranscriptGraph, TranscriptOptions, beam_of, wanted_layers
from returnn_tf.engine.search.words_of_choice import searched_choice, words_layer
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task


@register_task("search")
def search(config: Config) -> int:
    """Search ``search_data``; write the hypotheses of ``search_output_layer`` to ``search_output_file``."""
    return search_and_write(config)


def search_and_write(config: Config, nbest: Optional[int] = None, reference: str = "") -> int:
    """Run task ``search``.

    :param nbest: hypotheses that are written, if the format has several; None: all of a layer, or of a transcript
    :param reference: see `_searches`
    :return: exit code
    """
    settings, layers = TaskSettings(config), output_layers(config)
    try:
        _dataset_name(config)
    except ConfigError as exc:
        _check_searches(config, exc)
        raise
    path = settings.search_output_file
    output = SearchOutput(path, settings.search_output_file_format, layers) if path else None
    if nbest is not None and nbest > 1:
        plan = search_plan(config)
        layers = [beam_of(searched_node(plan, layer)).path for layer in layers]
        output = None if output is None else output.of_layers(layers)
    ((one_pass, is_chief),) = _searches(config, layers, output, nbest, reference)
    one_pass.log_errors()
    if output is not None and is_chief:
        rows = one_pass.rows()
        output.write(rows)
        text = "Wrote %s: %s for %i sequences, %s" % (path, ", ".join(layers), len(rows), output.content)
        log.write(3, text)
    return 0


def errors_of_search(
    config: Config, name: str, points: Sequence[Mapping[str, float]], reference: str = ""
) -> Iterator[ErrorReport]:
    """Search ``search_data`` with different scales, without writing; yield the errors in one of the searches.

    :param name: of a layer of the search, see `searched_choice`
    :param points: values of the same options of the layer that `with_words` adds; there is one graph for all of them
    :param reference: see `_searches`
    :raises ConfigError: no layer counts errors
    """
    plan = search_plan(config, [name] if name else [])
    choice = searched_choice(plan, name)
    assert choice is not None
    nodes = plan.by_path()
    loops = {entry.layer: loop_of_search(plan, nodes[entry.layer]) for entry in decided_layers(plan)}
    own = [layer for layer, loop in loops.items() if loop is not None and loop.path == choice.loop.path]
    if not own or not TaskSettings(config).search_do_eval:
        raise SearchError(
            "There is no error rate: the network has no 'decide' layer with the loss 'edit_distance' for the labels of "
            "%r, or search_do_eval is False." % choice.node.path
        )
    path = words_layer(choice)
    scales = [{(path, option): value for option, value in point.items() if path in plan.layers} for point in points]
    for one_pass, _ in _searches(config, output_layers(config), None, reference=reference, points=scales):
        yield one_pass.report(own[0])


def _searches(
    config: Config,
    layers: list[str],
    output: Optional[SearchOutput],
    nbest: Optional[int] = None,
    reference: str = "",
    points: Sequence[Mapping[tuple[str, str], float]] = (MappingProxyType({}),),
) -> Iterator[tuple[SearchPass, bool]]:
    """Search the dataset once for each of some values of scales; yield the pass, and whether this process writes it.

    :param reference: data key with labels that make up the words to compare with; "": those of the reference labels
    :param points: values of the same options of layers, by path and name
    """
    settings, target = TaskSettings(config), NetworkSettings(config).target
    options = None if output is None or output.of_transcripts is None else TranscriptOptions.of(settings)
    outputs = [] if options is None else wanted_layers(search_plan(config), layers[0], options)
    members = world.start(config)
    net, choice = load_network(config, search=True, outputs=outputs)
    decided = decided_layers(net.plan) if settings.search_do_eval else []
    if output is None and not decided:
        raise SearchError(why_nothing_searches(net.plan) or _nothing_kept(config))
    if reference and not decided:
        raise SearchError(
            "decode_reference: no errors are counted, since the network has no 'decide' layer with the loss "
            "'edit_distance', or search_do_eval is False. Add the layer, or remove the setting."
        )
    wanted = list(dict.fromkeys(layers + [entry.layer for entry in decided]))
    targets = [entry.target for entry in decided if entry.target.extern_key is None]
    graph = None if options is None else TranscriptGraph(net.plan, layers[0], options)
    searcher = Searcher(
        net,
        wanted,
        with_losses=settings.search_do_eval,
        references=targets,
        needed=graph.needed if graph else (),
        further=graph.emit if graph else None,
        scales=points[0],
    )
    source = _source(config, _dataset_name(config), searcher, members)
    try:
        labels = {
            layer: labels_of(node.output, source.dataset, net.extern_data, (node.layer.target_names or [target])[0])
            for layer, node in searcher.nodes.items()
        }
        epoch = choice.epoch or 1
        said = _references(reference, source.dataset, LabelNames(net.plan, config), epoch) if reference else None
        transcriber = None
        if graph is not None and output is not None:
            own_target = (searcher.nodes[layers[0]].layer.target_names or [target])[0]
            transcriber = Transcriber.of(graph, net, source.dataset, own_target)
            _check_times(output, graph, transcriber.frame_seconds)
        check = None if output is None else output.check
        for searcher.scales in map(dict, points):
            texts = {
                layer: with_words_of_search(labels[layer], net.plan, node, searcher.scales)
                for layer, node in searcher.nodes.items()
            }
            reports = [ErrorReport(entry, labels[entry.layer], texts[entry.layer], said) for entry in decided]
            one_pass = SearchPass(searcher, source, texts, reports, transcriber, check, nbest)
            with net.sinks:
                one_pass.run(epoch)
            yield one_pass, source.world.is_chief
    finally:
        source.close()


def _references(key: str, dataset: Dataset, names: LabelNames, epoch: int) -> dict[str, list[str]]:
    """Return the words of the references by tag.

    :raises ConfigError: there is no such data key, or it has no labels
    """
    check_reference(dataset, key, "decode_reference")
    return references(dataset, key, dataset.label_names.get(key) or names.of_key(key), epoch)


def _check_times(output: SearchOutput, graph: TranscriptGraph, seconds: Optional[float]) -> None:
    """Check that times are known, if the format of the output needs them; say in the log where they come from.

    :raises ConfigError: they are not
    """
    missing = ""
    if graph.times is None:
        missing = (
            "the network has no output of CTC on the labels and no attention weights that tell when words were said. "
            "Name a layer in search_times"
        )
    elif graph.input is None:
        missing = (
            "the frames of layer %r, which tells them, are not computed from those of one data key. Name another layer "
            "in search_times" % graph.times.path
        )
    elif seconds is None:
        missing = "the dataset does not say how long a frame is. Set search_frame_seconds, e.g. 0.01"
    if missing and output.of_transcripts is not None and output.of_transcripts.needs_times:
        raise SearchError(
            "search_output_file_format = %r needs times, but %s. Or choose a format that does without, e.g. 'jsonl'."
            % (output.name, missing)
        )
    if graph.times is not None:
        frames = "" if graph.input is None else ", in frames of %r" % graph.input.key
        source = "%s: %s%s" % (graph.times.path, graph.times.kind.value, frames)
        log.write(3, "Times in %s: %s" % (output.path, "none, as " + missing if missing else source))


def _check_searches(config: Config, cause: ConfigError) -> None:
    """Check that the network has something to search, if its dataset is missing: that would not help.

    :raises ConfigError: it chooses no labels, or is wrong
    """
    reason = why_nothing_searches(search_plan(config))
    if reason:
        raise SearchError(reason) from cause


def search_plan(config: Config, outputs: Sequence[str] = ()) -> Plan:
    """Return the plan of the network after all pretraining, for search.

    :param outputs: paths of layers that are planned even if nothing needs them
    """
    schedule = NetworkSchedule(config)
    return plan_from_config(with_outputs(schedule.at(schedule.pretrain_epochs + 1).config, outputs), search=True)


def why_nothing_searches(plan: Plan) -> str:
    """Return the reason why a network, planned for search, chooses no labels; "" if it does."""
    if decided_layers(plan) or any(node.output.sparse or node.output.beam for node in plan.roots()):
        return ""
    return (
        "The network does not search: it has no layer 'choice' in a loop with 'decide' after it, nor another output of "
        "labels. For its scores, ++task eval; for the values of a layer, ++task forward."
    )


def _nothing_kept(config: Config) -> str:
    text = "The search would keep nothing: set search_output_file, e.g. 'hypotheses.txt'"
    if not TaskSettings(config).search_do_eval:
        return text + "."
    return text + ", or give the network a 'decide' layer with the loss 'edit_distance', which counts the errors."


def _source(config: Config, name: str, searcher: Searcher, members: world.World) -> DataSource:
    """Return the dataset; if it lacks data needed only for the losses, the error explains how to disable them."""
    net = searcher.net
    try:
        used = {key: net.extern_data[key] for key in searcher.used_data_keys}
        return DataSource(config, name, used, members, finite=True)
    except ConfigError as exc:
        searched = net.data_keys(list(searcher.nodes.values()), with_losses=False)
        if any(repr(key) in str(exc) for key in searcher.used_data_keys if key not in searched):
            raise SearchError("%s To search without references, set search_do_eval = False." % exc) from exc
        raise


def output_layers(config: Config) -> list[str]:
    """Return the layers of ``search_output_layer``, a name or a list of names."""
    given = TaskSettings(config).search_output_layer or "output"
    return list(dict.fromkeys([given] if isinstance(given, str) else given))


def _dataset_name(config: Config) -> str:
    """Return the name in ``search_data``; that dataset must exist."""
    name = dataset_name("search_data", TaskSettings(config).search_data)
    if name == "search_data":
        return name  # a dataset itself
    there = ["train"] * bool(DataSettings(config).train) + evaluation_names(config)
    if name not in there:
        raise SearchError(
            "There is no dataset %r to search. Add it, or name another one in search_data. %s"
            % (name, did_you_mean(name, there))
        )
    return name
