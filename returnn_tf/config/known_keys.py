"""The top-level settings that mean something, with one line of help each, and the search for misspelt ones."""

from __future__ import annotations

from typing import Iterable, Optional

from returnn_tf.config.errors import edit_distance

KNOWN_KEYS = {
    # network and data
    "behavior_version": "selects between old and new semantics; absent means 0",
    "network": "the network dictionary: layer name -> options",
    "get_network": "function(epoch) -> network dictionary, instead of network",
    "extern_data": "data key -> its dims and dtype",
    "num_inputs": "old form of extern_data: dim of the input",
    "num_outputs": "old form of extern_data: data key -> (dim, ndim)",
    "target": "data key which layers use as target by default; 'classes'",
    "train": "dataset to train on",
    "dev": "dataset for scores during training",
    "eval": "another dataset for scores",
    "eval_datasets": "further datasets for scores: name -> dataset",
    "need_data": "False if a task needs no data",
    "use_tensorflow": "old switch; only True makes sense",
    "task": "what to do: train, eval, forward, search, ...",
    "device": "cpu, gpu or gpu<index>; found out if absent",
    "random_seed": "seed of parameter initialisation and dropout",
    # sequences and batches
    "batch_size": "frames in a batch, padding included; int or data key -> int",
    "max_seqs": "most sequences in a batch; -1 for no limit",
    "max_seq_length": "longer sequences are left out; int or data key -> int",
    "min_seq_length": "shorter sequences are left out; int or data key -> int",
    "max_pad_size": "most padding frames in a batch",
    "max_total_num_seqs": "stop the epoch after that many sequences",
    "inc_seq_length": "added to max_seq_length each epoch",
    "seq_drop": "drops sequences at random",
    "seq_drop_freq": "with seq_drop",
    "shuffle_batches": "shuffles cached lists of batches",
    "batching": "sequence order of datasets which don't set seq_ordering",
    "chunking": "cuts sequences: 'size:step', a pair, or a pair of dicts",
    "chunking_variance": "random chunk sizes",
    "min_chunk_size": "shorter last chunks are left out",
    "chunk_eval": "chunk dev and eval datasets, too",
    "on_size_limit": "'chunk': cut sequences at batch_size",
    "window": "stacks context frames",
    "context_window": "extra frames at both sides of chunks",
    "cache_size": "memory for the data",
    "shuffle_frames_of_nseqs": "old option of cached HDF files",
    # training
    "num_epochs": "number of epochs to train; 5",
    "start_epoch": "epoch to begin with; 'auto'",
    "start_batch": "batch to begin with; 'auto'",
    "save_interval": "a checkpoint every n-th epoch; 1",
    "submit": "options of returnn-tf submit: {'time': '24:00:00', 'gpus': 1, ...}",
    "save_every_steps": "also checkpoints within epochs, every n-th step; 0: none",
    "save_every_minutes": "also checkpoints within epochs, after so many minutes; 0: none",
    "requeue_exit_code": "exit code after SIGTERM or SIGUSR1, for a cluster which then starts the job again",
    "save_epoch1_initial_model": "writes the initial model as epoch 0",
    "cleanup_old_models": "deletes checkpoints: True, or keep_last_n, keep_best_n, keep",
    "model": "where checkpoints are written: path prefix",
    "load": "checkpoint to start from if there is no own one",
    "load_epoch": "epoch of the checkpoint to load",
    "epoch": "epoch to evaluate",
    "import_model_train_epoch1": "checkpoint whose weights start epoch 1",
    "init_params": "checkpoint for initial weights, also of parts: a path, or a dict as in preload_from_files",
    "preload_from_files": "weights of parts of the network from other checkpoints",
    "use_last_best_model": "goes back to the best model when scores get worse",
    "pretrain": "network construction which grows over the first epochs",
    "pretrain_repetitions": "with pretrain: epochs of each step",
    "pretrain_construction_algo": "with pretrain: from_output, from_input or a function",
    "pretrain_copy_output_layer": "with pretrain: carry the output layers over: True, False or ifpossible",
    "pretrain_greedy": "with pretrain: train only the layers which are new in a step",
    "pretrain_learning_rate": "rate of pretraining epochs without use_learning_rate_control_always",
    "stop_on_nonfinite_train_score": "stops at a score of NaN or Inf; True",
    "max_skipped_steps": "so many steps in a row may be left out; 50",
    "loss_spike": "what to do when the loss jumps: True, or a dict with factor, measure, policy, warmup, decay",
    "failure": "task replay: the folder which a failed step left behind",
    "failure_params": "keep the parameters with a failed step; by default if they are below 100 MiB",
    "calculate_exp_loss": "logs exp(loss), the perplexity",
    "accum_grad_multiple_step": "updates after that many steps",
    "startup_callback": "function which is called before the task",
    "reset_updater_vars_mod_step": "resets the optimizer state every n-th step",
    # learning rate
    "learning_rate": "initial learning rate; 1.0",
    "learning_rates": "learning rates of the first epochs: list, or epoch -> rate",
    "min_learning_rate": "decays stop here; 0",
    "learning_rate_control": "constant, newbob, newbob_abs, newbob_multi_epoch",
    "learning_rate_file": "where rates and scores of the epochs are written",
    "learning_rate_decay": "factor (or function) of a decay; 0.5",
    "learning_rate_growth": "factor (or function) otherwise; 1.0",
    "learning_rate_control_error_measure": "score that decides, e.g. dev_score",
    "learning_rate_control_relative_error_relative_lr": "relative error is divided by lr / initial lr",
    "learning_rate_control_min_num_epochs_per_new_lr": "a rate stays for at least that many epochs; 0",
    "use_learning_rate_control_always": "control the rate in pretraining epochs, too",
    "newbob_learning_rate_decay": "older name of learning_rate_decay",
    "newbob_learning_rate_growth": "older name of learning_rate_growth",
    "newbob_relative_error_threshold": "a relative error above decays the rate; -0.01",
    "newbob_relative_error_grow_threshold": "with newbob_multi_epoch: an error below lets the rate grow",
    "newbob_relative_error_div_by_old": "divide by the older error",
    "newbob_error_threshold": "with newbob_abs; -0.01",
    "newbob_multi_num_epochs": "with newbob_multi_epoch: number of epochs to look at; 5",
    "newbob_multi_update_interval": "with newbob_multi_epoch: every n-th epoch",
    "dynamic_learning_rate": "function or dict: learning rate of each step",
    # updater
    "optimizer": "dict with class (or name) and options",
    "adam": "True for the Adam optimizer",
    "nadam": "True for the Nadam optimizer",
    "adadelta": "True for the Adadelta optimizer",
    "adagrad": "True for the Adagrad optimizer",
    "rmsprop": "True for the RMSprop optimizer",
    "momentum": "momentum of SGD",
    "optimizer_epsilon": "epsilon of Adam and its relatives",
    "gradient_clip": "clips each gradient value",
    "gradient_clip_norm": "clips each gradient by its norm",
    "gradient_clip_avg_norm": "clips each gradient by its mean norm",
    "gradient_clip_global_norm": "clips all gradients by their common norm",
    "gradient_nan_inf_filter": "sets gradients of NaN or Inf to zero",
    "gradient_noise": "standard deviation of noise on the gradients",
    "decouple_constraints": "L2 acts on the weights, apart from the gradient",
    "decouple_constraints_factor": "with decouple_constraints",
    "grad_norm_to_clip_to_zero": "a larger gradient norm drops the update",
    "maximize_grad_norm": "factor of a reward for large gradients",
    "extra_updates": "variable name -> function which runs after its update",
    "updater_opts": "further options of the updater",
    # other tasks
    "loss_name": "layer whose loss is written per sequence",
    "eval_output_file": "scores of task eval",
    "eval_output_file_per_seq": "scores of each sequence",
    "output_per_seq_format": "fields of eval_output_file_per_seq",
    "output_per_seq_file_format": "txt or py",
    "output_file": "file which forward or compute_priors writes",
    "forward_batch_size": "batch size of task forward",
    "forward_output_layer": "layer which task forward writes",
    "forward_override_hdf_output": "True to overwrite the HDF file",
    "forward_use_search": "forward with search",
    "forward_callback": "function or object which gets the outputs",
    "forward_data": "dataset of task forward",
    "combine_labels": "old option of task forward",
    "search_data": "dataset of task search, its name or the dataset itself; 'eval'",
    "search_do_eval": "scores in task search; True",
    "search_output_layer": "layer which task search writes; 'output'",
    "search_output_file": "file which task search writes",
    "search_output_file_format": "txt or py",
    "search_train_network_layers": "layers to search in while training",
    "beam_size": "beam size, where layers read it from the config",
    "sil_label_idx": "task analyze: index of silence",
    "ctc_prior_file": "priors of a CTC output",
    "analyze_dataset": "dataset of task analyze_data; 'train'",
    "statistics_save_prefix": "files which analyze_data writes",
    "statistics_dtype": "task analyze_data",
    "data_key": "data key of analyze_data",
    "dry_run": "cleanup_old_models: only say what would be deleted",
    "web_server_port": "task search_server",
    # logging and debugging
    "log": "log files, besides the terminal",
    "log_verbosity": "log level 0 - 5, one for each log target; 3",
    "log_format": "default, timed, raw, verbose",
    "log_batch_size": "sizes in the line of each step",
    "tf_log_dir": "directory of TensorBoard events; None switches them off",
    "tf_log_memory_usage": "memory in the line of each step",
    "tf_session_opts": "old options of TensorFlow sessions",
    "sprint_interface_dataset_opts": "options of datasets that an outer program feeds",
    "profile": "traces some steps for TensorBoard: True, or a dict with first_step, steps, every",
    "store_metadata_mod_step": "profiles every n-th step",
    "debug_print_layer_output_template": "prints the dims of each layer",
    "debug_print_layer_output_shape": "prints the shape of each layer at run time",
    "debug_add_check_numerics_ops": "checks for NaN and Inf everywhere",
    "debug_add_check_numerics_on_output": "checks the output layers for NaN and Inf",
    "debug_grad_summaries": "gradients in TensorBoard events",
    "patch_atfork": "old switch without effect",
    "flat_net_construction": "old switch without effect",
    "optimize_move_layers_out": "whether layers leave loops where possible",
    # several processes
    "use_horovod": "train with several processes",
    "horovod_dataset_distribution": "shard or random_seed_offset",
    "horovod_reduce_type": "grad or param",
    "horovod_param_sync_step": "steps between averaging parameters",
    "horovod_param_sync_time_diff": "seconds between averaging parameters",
    "horovod_scale_lr": "multiplies the rate by the number of processes",
    "horovod_avg_grad": "takes the mean of the gradients of all processes instead of their sum",
    "horovod_avg_param_on_cpu": "averages parameters in the memory of the host",
    "horovod_compression": "none or fp16: how gradients are sent",
    "horovod_timeout": "seconds without progress of a process until all end",
    "horovod_check_world_size": "whether the number of processes must be that of the scheduler",
}

# shorter names are too likely to be meant as they are
_MIN_LENGTH = 4
# in shorter ones the first letter must be right (or swapped with the second): "mask" is not "task"
_LENGTH_OF_FREE_START = 8


def misspelt(key: str, known: Optional[Iterable[str]] = None) -> Optional[str]:
    """The known key which ``key`` is probably meant to be, or None if it is known or far from all of them."""
    known = KNOWN_KEYS if known is None else known
    if key in known or len(key) < _MIN_LENGTH:
        return None
    plain = key.lower().replace("_", "")
    best: Optional[str] = None
    best_distance = 1 + (1 if len(key) < 8 else 2 if len(key) < 14 else 3)
    for candidate in known:
        if candidate.lower().replace("_", "") == plain:
            return candidate
        if abs(len(candidate) - len(key)) >= best_distance or len(candidate) < _MIN_LENGTH:
            continue
        if len(key) >= _LENGTH_OF_FREE_START or key[0].lower() in candidate[:2]:
            distance = edit_distance(key.lower(), candidate.lower())
            if distance < best_distance:
                best, best_distance = candidate, distance
    return best
