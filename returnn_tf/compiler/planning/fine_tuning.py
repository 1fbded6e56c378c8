"""The setting ``fine_tune`` on a plan: which parameters are trained, by adapters or not, and how fast."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.config.settings.fine_tuning import Lora
from returnn_tf.graph.fine_tuning import SETTING, FineTuning
from returnn_tf.graph.param_spec import ADAPTER_PARTS, Adapter, ParamSpec
from returnn_tf.ops.initial_values import Constant, variance_scaling


def fine_tune(plan: Plan, given: FineTuning) -> None:
    """Freeze parameters, add adapters and set rates, in a plan that is not sealed.

    :raises ConfigError: a pattern that fits nothing, an adapter where there is no product or of too high a rank, or
        nothing is left to train
    """
    options = given.options
    trained = [spec for spec in plan.params.values() if spec.trainable]
    frozen = matching(plan.params.values(), options.freeze, SETTING + "['freeze']")
    new = matching(plan.params.values(), options.new_layers, SETTING + "['new_layers']")
    kept = set(new)  # trained beside adapters
    for option, patterns, other, excluded in (
        ("['train']", options.train, "freeze", frozen),
        ("['new_labels']['layers']", [] if given.labels is None else given.labels.layers, "new_layers", new),
    ):
        for pattern in patterns:
            chosen = matching(plan.params.values(), [pattern], SETTING + option)
            if chosen <= excluded:
                raise SettingError(
                    "%s%s: %r is in %r, too. Remove it from one of them." % (SETTING, option, pattern, other)
                )
            kept |= chosen
    if given.lora is not None:
        _adapt(plan, given.lora, kept=kept, frozen=frozen)
        frozen |= {spec.name for spec in trained} - kept
    for spec in trained:
        spec.frozen = spec.name in frozen
        spec.trainable = not spec.frozen
    if not any(spec.trainable for spec in plan.params.values()):
        raise SettingError("%s['freeze']: no parameter is left to train. Name fewer layers." % SETTING)
    _set_rates(plan, options.rates)


def matching(specs: Collection[ParamSpec], patterns: Sequence[str], where: str) -> set[str]:
    """Return the names of the parameters that patterns fit: by their own name, or by that of a layer that has them.

    :raises ConfigError: a pattern fits none
    """
    found: set[str] = set()
    for pattern in patterns:
        fitting = {spec.name for spec in specs if _fits(pattern, spec.name) or _fits(pattern, spec.layer_path)}
        if not fitting:
            names = sorted({name for spec in specs for name in (spec.name, spec.layer_path)})
            raise SettingError(
                "%s: %r fits no parameter, and no layer with parameters. %s"
                % (where, pattern, did_you_mean(pattern, names))
            )
        found |= fitting
    return found


def _fits(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, pattern + "/*")


def _adapt(plan: Plan, lora: Lora, *, kept: set[str], frozen: set[str]) -> None:
    """Add adapters to the factors of products of some layers.

    :param kept: names of parameters that get none, as they are trained themselves
    :param frozen: names of parameters that get none, as ``freeze`` has them
    """
    without = kept | frozen
    where = SETTING + "['lora']"
    factors = _factors(plan)
    for pattern in lora.layers:
        chosen = _factors_of(plan, factors, pattern, where + "['layers']")
        if frozen.issuperset(chosen):
            raise SettingError(
                "%s['layers']: %r is in 'freeze', too. Remove it from one of them; a matrix with an adapter is frozen "
                "without 'freeze'." % (where, pattern)
            )
        if without.issuperset(chosen):
            raise SettingError(
                "%s['layers']: %r is trained whole, by 'train', 'new_layers' or 'new_labels'. Remove it from one of "
                "them." % (where, pattern)
            )
        for name in chosen:
            if name not in without and factors[name].adapter is None:
                factors[name].adapter = _adapter(factors[name], lora, where)
    for node in plan.all_nodes():
        adapters = [spec.adapter for spec in node.owned if spec.adapter is not None]
        node.owned += [spec for adapter in adapters for spec in (adapter.first, adapter.second)]


def _factors_of(plan: Plan, factors: Mapping[str, ParamSpec], pattern: str, where: str) -> list[str]:
    """Return the factors of products that a pattern fits, by their own name or that of a layer that reads them.

    :param factors: by name
    :raises ConfigError: there are none
    """
    fitting = [node for node in plan.visible_nodes() if _fits(pattern, node.path)]
    read = {spec.name for node in fitting for spec in node.params.values() if isinstance(spec, ParamSpec)}
    read |= {name for name in plan.params if _fits(pattern, name)}
    chosen = sorted(read & set(factors))
    if chosen:
        return chosen
    if read or fitting:
        paths = [plan.params[name].layer_path for name in sorted(read)]
        layer = next(node for node in [*fitting, *plan.all_nodes()] if fitting or node.path == paths[0])
        raise SettingError(
            "%s: %r has no product with a matrix, to which an adapter could be added: layer %r is of class %r, with %s."
            % (where, pattern, layer.path, layer.layer.class_name, ", ".join(sorted(read)) or "no parameters")
        )
    names = {node.path for node in plan.visible_nodes()} | set(factors)
    hint = did_you_mean(pattern, sorted(names))
    raise SettingError("%s: %r fits no layer and no parameter. %s" % (where, pattern, hint))


def _factors(plan: Plan) -> dict[str, ParamSpec]:
    """Return the parameters that layers multiply by, or read rows of, by name."""
    found = {}
    for node in plan.all_nodes():
        for name in node.layer.channel_axes() if node.params else ():
            spec = node.params.get(name)
            if isinstance(spec, ParamSpec) and len(spec.shape) > 1:
                found[spec.name] = spec
    return found


def _adapter(spec: ParamSpec, lora: Lora, where: str) -> Adapter:
    rows, columns = spec.size // spec.shape[-1], spec.shape[-1]
    if lora.rank > min(rows, columns):
        raise SettingError(
            "%s['rank'] is %d, but the parameter %r is a matrix of %d x %d, whose rank is at most %d. Choose a smaller "
            "rank." % (where, lora.rank, spec.name, rows, columns, min(rows, columns))
        )

    def matrix(name: str, shape: tuple[int, int], init: object) -> ParamSpec:
        return ParamSpec(
            "%s/%s" % (spec.name, name), shape, spec.dtype, init, True, spec.layer_path, spec.updater_opts, spec.device
        )

    return Adapter(
        matrix(ADAPTER_PARTS[0], (rows, lora.rank), variance_scaling(1.0, "fan_in", "truncated_normal")),
        matrix(ADAPTER_PARTS[1], (lora.rank, columns), Constant(0.0)),
        lora.scale,
    )


def _set_rates(plan: Plan, rates: object) -> None:
    where = SETTING + "['rates']"
    if isinstance(rates, (int, float)):
        distances = _distances(plan)
        for node in plan.all_nodes():
            for spec in node.owned:
                spec.rate = float(rates) ** distances[_top(node.path)]
    elif isinstance(rates, Mapping):
        specs = plan.params
        for pattern, factor in rates.items():
            chosen = matching(specs.values(), [pattern], where)
            if not any(specs[name].trainable for name in chosen):
                raise SettingError("%s: %r is frozen, so that it has no rate. Remove one of them." % (where, pattern))
            for name in chosen:
                specs[name].rate = float(factor)


def _distances(plan: Plan) -> dict[str, int]:
    """Return how many layers with a matrix follow each layer of the outermost network, at most, on the way to an end.

    What is inside of a layer counts as that layer.
    """
    with_matrix = {_top(node.path) for node in plan.all_nodes() if any(len(spec.shape) > 1 for spec in node.owned)}
    distances = {_top(node.path): 0 for node in plan.all_nodes()}
    edges = [(_top(node.path), _top(before.path)) for node in reversed(plan.nodes) for before in node.deps]
    for _ in distances:  # usually once: layers inside of others may be needed by later ones
        known = dict(distances)
        for name, before in edges:
            if name != before:
                distances[before] = max(distances[before], distances[name] + (name in with_matrix))
        if distances == known:
            break
    return distances


def _top(path: str) -> str:
    return path.split("/")[0]
