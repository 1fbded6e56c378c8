# Looks for a better learning rate, size and batch for 12ax.config, in 16 short trainings:
#     returnn-tf sweep demos/12ax/sweep.py --processes 2        some minutes; writes to out/sweep in the working folder

config = "12ax.config"
metric = "dev_score"
trials = 16
folder = "out/sweep"
first = [{"learning_rate": 0.02, "units": 32, "max_seqs": 40}]  # what the config has


def suggest(trial):
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "network/lstm/n_out": trial.suggest_int("units", 8, 128, log=True),
        "max_seqs": trial.suggest_categorical("max_seqs", [10, 20, 40, 80]),
    }
