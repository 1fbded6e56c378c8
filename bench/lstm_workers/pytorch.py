"""The step in PyTorch: torch.nn.LSTM and GRU, packed sequences where lengths differ."""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
from rows import LABELS, RATE, Row, serve


class Model(torch.nn.Module):
    """The network of a row."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row
        unit = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[row.unit]
        self.rnn = unit(row.dim, row.hidden, num_layers=row.layers, bidirectional=row.bidirectional)
        self.output = torch.nn.Linear(row.hidden * (2 if row.bidirectional else 1), LABELS + (row.loss == "ctc"))

    def forward(self, x: Any, lengths: Any) -> Any:
        """Return the logits of x [frames, batch, dim]."""
        if self.row.shortest < 1:
            x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
        x, _ = self.rnn(x)
        if self.row.shortest < 1:
            x, _ = torch.nn.utils.rnn.pad_packed_sequence(x)
        return self.output(x[-1] if self.row.loss == "last" else x)


def make_step(row: Row) -> Callable[[], Any]:
    """Return a whole training step with Adam."""
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    model, data = Model(row), {key: torch.from_numpy(value) for key, value in row.data().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    x, labels = data["x"].transpose(0, 1).contiguous(), data["labels"].long()

    def loss_of(logits: Any) -> Any:
        if row.loss == "ctc":
            log_probs = logits.log_softmax(-1)
            sizes = data["lengths"].long(), data["label_lengths"].long()
            return torch.nn.functional.ctc_loss(log_probs, labels, *sizes, blank=LABELS, zero_infinity=True)
        if row.loss == "frame":
            return torch.nn.functional.cross_entropy(logits.reshape(-1, LABELS), labels.t().reshape(-1))
        return torch.nn.functional.cross_entropy(logits, labels)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(model(x, data["lengths"]))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


serve(make_step)
