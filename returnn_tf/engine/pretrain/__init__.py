"""Networks which change during training: ``pretrain``, ``get_network`` and `WrapEpochValue`.

**Pretraining.** ``pretrain = {...}`` (or ``"default"`` with the keys ``pretrain_repetitions`` and so on) builds the
network of the config in steps. Each step is trained for some epochs, then the network of the config itself. Options:

* ``construction_algo``: a function ``(idx, net_dict) -> net_dict or None`` which is asked for steps 0, 1, 2, ... until
  it returns None, with an own copy of the config's network each time; a list of network dicts; "from_output" (the
  default) or "from_input". "from_output" leaves out the hidden layers next to the output, fewer with every step;
  "from_input" keeps the hidden layers which are at most so many layers away from the input. Both begin with the lowest
  hidden layers; they differ where branches are of different lengths.
* ``repetitions``: epochs per step: an int; a list, whose last entry counts for all further steps; or a dict from step
  to epochs, with "default" (1) for the others and "final" for the last step. 0 leaves a step out.
* ``copy_param_mode``: what happens to a parameter which has another shape in the next network: None is an error,
  "ifpossible" starts it anew, "subset" copies the block which both have, "reset" copies no parameters at all.
* ``copy_output_layer``: True, False or "ifpossible": the same for the output layers (default with "from_input" and
  "from_output": "ifpossible"). ``greedy``: train only the layers which are new in a step, and the output.

A network dict may hold ``#config``, settings which replace those of the config while the step lasts (learning_rate and
learning_rates among them), ``#copy_param_mode`` for the way into this step, and ``#info``, which is only shown.
Without ``use_learning_rate_control_always`` pretraining is done with ``pretrain_learning_rate`` (default:
``learning_rate``) unless learning_rates says something for the epoch.

**By epoch.** ``get_network(epoch, **kwargs)`` returns the network dict of an epoch, and ``WrapEpochValue(lambda epoch:
...)`` in a network dict stands for a value that changes. Both are asked for all epochs before the first one, so they
should depend on nothing but the epoch. Nothing is built anew while the dict stays equal.

**From one network to the next** parameters are carried over by name; new ones are initialised as always, and the
optimizer starts anew. The blocks of "subset" are taken for each part of an axis: for each gate of a recurrent cell, and
for each source of an input which is several sources side by side. All networks and all such transitions are checked
before the first epoch, and by ``returnn-tf check``.
"""
