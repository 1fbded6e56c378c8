"""The steps in PyTorch: its own layers where it has them."""

from __future__ import annotations

from typing import Any, Callable

import torch
from model_rows import DROPOUT, KERNEL, RATE, Model, flag, serve, threads
from torch import nn
from torch.nn import functional


class FeedForward(nn.Sequential):
    """The feed forward part of a block."""

    def __init__(self, m: Model) -> None:
        super().__init__(
            nn.LayerNorm(m.size), nn.Linear(m.size, m.hidden), nn.SiLU(), nn.Dropout(DROPOUT),
            nn.Linear(m.hidden, m.size), nn.Dropout(DROPOUT),
        )  # fmt: skip


class ConformerBlock(nn.Module):
    """Feed forward, attention, convolution, feed forward, layer norm."""

    def __init__(self, m: Model) -> None:
        super().__init__()
        self.first, self.last, self.norm = FeedForward(m), FeedForward(m), nn.LayerNorm(m.size)
        self.norm_att, self.norm_conv = nn.LayerNorm(m.size), nn.LayerNorm(m.size)
        self.att = nn.MultiheadAttention(m.size, m.heads, dropout=DROPOUT, bias=False, batch_first=True)
        self.conv_in, self.conv_out = nn.Linear(m.size, 2 * m.size), nn.Linear(m.size, m.size)
        self.depth = nn.Conv1d(m.size, m.size, KERNEL, padding=KERNEL // 2, groups=m.size)
        self.batch_norm = nn.BatchNorm1d(m.size)

    def forward(self, x: Any, src_key_padding_mask: Any = None) -> Any:
        """Return the output [batch, time, size]."""
        x = x + 0.5 * self.first(x)
        y = self.norm_att(x)
        y = self.att(y, y, y, key_padding_mask=src_key_padding_mask, need_weights=False)[0]
        x = x + functional.dropout(y, DROPOUT)
        y = functional.glu(self.conv_in(self.norm_conv(x)))
        y = functional.silu(self.batch_norm(self.depth(y.transpose(1, 2)))).transpose(1, 2)
        x = x + functional.dropout(self.conv_out(y), DROPOUT)
        return self.norm(x + 0.5 * self.last(x))


class Decoder(nn.Module):
    """Additive attention with feedback of the weights, an LSTM, a readout layer."""

    def __init__(self, m: Model) -> None:
        super().__init__()
        n, enc = m.hidden, 2 * m.size
        self.emb, self.keys = nn.Embedding(m.labels, n), nn.Linear(enc, enc)
        self.lstm, self.context = nn.LSTMCell(n + enc, n), nn.Linear(n, enc, bias=False)
        self.feedback, self.energy = nn.Linear(1, enc, bias=False), nn.Linear(enc, 1, bias=False)
        self.readout = nn.Linear(n + enc + n, n)

    def forward(self, enc: Any, lengths: Any, labels: Any) -> Any:
        """Return the output [batch, labels, n]."""
        emb, keys, out = self.emb(functional.pad(labels[:, :-1], (1, 0))), self.keys(enc), []
        padding = torch.arange(enc.shape[1])[None] >= lengths[:, None]
        h = c = torch.zeros(len(enc), self.readout.out_features)
        att, total = torch.zeros(len(enc), enc.shape[2]), torch.zeros(enc.shape[:2])
        for step in range(labels.shape[1]):
            h, c = self.lstm(torch.cat([emb[:, step], att], 1), (h, c))
            hidden = torch.tanh(keys + self.context(h)[:, None] + self.feedback(total[:, :, None]))
            weights = self.energy(hidden)[..., 0].masked_fill(padding, -1e30).softmax(-1)
            att = torch.bmm(weights[:, None], enc)[:, 0]
            total = total + weights
            out.append(torch.cat([h, att, emb[:, step]], 1))
        return torch.tanh(self.readout(torch.stack(out, 1)))


class Network(nn.Module):
    """The network of a row."""

    def __init__(self, m: Model) -> None:
        super().__init__()
        self.m, n = m, m.size
        both = m.kind in ("attention", "ctc")
        if m.kind in ("attention", "ctc", "lm"):
            self.rnn = nn.LSTM(m.dim, n, m.layers, bidirectional=both, batch_first=True)
            n = 2 * n if both else n
        if m.kind == "attention":
            self.decoder, n = Decoder(m), m.hidden
        elif m.kind == "lm":
            self.emb = nn.Embedding(m.labels, m.dim)
        elif m.kind == "feed-forward":
            layers: list = [nn.Linear(m.dim, n), nn.ReLU()]
            for _ in range(m.layers - 1):
                layers += [nn.Dropout(DROPOUT), nn.Linear(n, n), nn.ReLU()]
            self.layers = nn.Sequential(*layers)
        elif m.kind != "ctc":
            options = {"dropout": DROPOUT, "batch_first": True, "norm_first": True}
            block = {
                "transformer": lambda: nn.TransformerEncoderLayer(n, m.heads, m.hidden, **options),
                "conformer": lambda: ConformerBlock(m),
            }[m.kind]
            self.blocks = nn.ModuleList([block() for _ in range(m.layers)])
            self.input, self.norm = nn.Linear(m.dim, n), nn.LayerNorm(n)
        self.output = nn.Linear(n, m.labels + (m.kind == "ctc"))

    def forward(self, x: Any, lengths: Any, labels: Any) -> Any:
        """Return the logits [batch, time, labels]."""
        if self.m.kind in ("attention", "ctc", "lm"):
            y = self._recurrent(self.emb(x) if self.m.kind == "lm" else x, lengths)
            y = self.decoder(y, lengths, labels) if self.m.kind == "attention" else y
        elif self.m.kind == "feed-forward":
            y = self.layers(x)
        else:
            padding = torch.arange(x.shape[1])[None] >= lengths[:, None] if self.m.shortest < 1 else None
            y = self.input(x)
            for block in self.blocks:
                y = block(y, src_key_padding_mask=padding)
            y = self.norm(y)
        return self.output(y)

    def _recurrent(self, x: Any, lengths: Any) -> Any:
        if self.m.shortest == 1:
            return self.rnn(x)[0]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def make_steps(m: Model) -> dict[str, Callable[[], Any]]:
    """Return the steps of `model_rows.serve`."""
    torch.set_num_threads(threads())
    arrays = m.data()
    data = {key: torch.from_numpy(value) for key, value in arrays.items()}
    x, lengths, labels = (data[key] for key in ("x", "lengths", "labels"))
    labels = labels.long()
    network = Network(m)
    if flag("compiled"):
        network.compile()
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    mask = torch.arange(labels.shape[1])[None] < data["label_lengths"][:, None]

    def loss_of() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=m.bfloat16):
            logits = network(x, lengths.long(), labels)
        logits = logits.float()
        if m.kind == "ctc":
            log_probs, sizes = logits.log_softmax(-1).transpose(0, 1), (lengths.long(), data["label_lengths"].long())
            return functional.ctc_loss(log_probs, labels, *sizes, blank=m.labels, zero_infinity=True)
        targets = labels if m.shortest == 1 else labels.masked_fill(~mask, -100)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)

    def gradients() -> Any:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    def step() -> float:
        loss = gradients()
        optimizer.step()
        return float(loss.detach())

    return {
        "step": step,
        "forward": lambda: float(loss_of().detach()),
        "gradients": lambda: float(gradients().detach()),
        "input": lambda: len([torch.tensor(value) for value in arrays.values()]),
    }


if __name__ == "__main__":
    serve(make_steps)
