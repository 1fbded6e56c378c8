"""The step of a row of ``bench/align.py`` in PyTorch: CTC with its softmax, loss and gradient."""

from __future__ import annotations

import os
import sys
from typing import Callable

import torch
from align_rows import ROWS
from workers import serve


def make_steps() -> dict[str, Callable[[], float]]:
    """Return CTC for the row that the command line names."""
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    row = ROWS[sys.argv[1]]
    scores, *rest = (torch.from_numpy(x) for x in row.draw())
    lens, labels, label_lens = (x.long() for x in rest)
    x = scores.requires_grad_()

    def step() -> float:
        probs = torch.nn.functional.log_softmax(x, dim=2)
        loss = torch.nn.functional.ctc_loss(probs, labels, lens, label_lens, blank=row.blank, reduction="sum")
        torch.autograd.grad(loss, x)
        return float(loss.detach())

    return {"ctc": step}


serve(make_steps)
