#!/usr/bin/env python3
"""Writes the job script of a training for Slurm or SGE, and submits it.

    tools/submit.py --time 48:00:00 --gpus 1 my.config ++num_epochs 20
    tools/submit.py --tasks 4 --cpus 8 --mem 16G --queue long --dry-run my.config     shows the script
    tools/submit.py --scheduler sge --tasks 4 a.config b.config                       an array of two jobs

The options may as well stand in the config: submit = {"time": "48:00:00", "gpus": 1}. A job which is preempted, or
reaches the end of its time, saves, goes back to the queue and resumes. See docs/training-on-clusters.md.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from returnn_tf.cli.jobs.submission import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(doc=__doc__))
