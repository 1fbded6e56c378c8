"""A whole LSTM layer, forward and backward, by our kernels and by PyTorch, on the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from tests.native.cuda.memory import STREAM
from tests.native.cuda.recurrences import BFLOAT16, FLOAT, FLOAT16, TF32, Kernels, sequences

#: name: ``RtfNumbers``, PyTorch's type, whether its products may be those of TF32
KINDS = {
    "f32": (FLOAT, "float32", False),
    "tf32": (TF32, "float32", True),
    "bf16": (BFLOAT16, "bfloat16", False),
    "f16": (FLOAT16, "float16", False),
}
RESULTS = ("h", "dx", "dW", "dR", "db")


@dataclass
class Problem:
    """Inputs of a layer, in float64; as many features come in as there are units. Gates: j, i, f, o."""

    frames: int
    batch: int
    units: int
    lengths: Optional[np.ndarray]  # int32 [batch], the longest first; None: all are whole
    arrays: dict[str, Any]  # x, dh [T, B, H], W, R [H, 4H], b [4H]

    @property
    def size(self) -> tuple[int, int, int]:
        """Return frames, batch, units."""
        return self.frames, self.batch, self.units


def make_problem(torch: Any, device: str, size: tuple[int, int, int], ragged: bool) -> Problem:
    """Return random numbers; ragged: lengths evenly from all frames down to half of them."""
    frames, batch, units = size
    generator = torch.Generator(device=device).manual_seed(1)
    whole = (frames, batch, units)
    shapes = {"x": whole, "dh": whole, "W": (units, 4 * units), "R": (units, 4 * units), "b": (4 * units,)}
    scales = {"x": 1.0, "dh": 1.0, "W": units**-0.5, "R": units**-0.5, "b": 0.1}
    arrays = {
        name: scales[name] * torch.randn(*shape, generator=generator, device=device, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    lengths = None
    if ragged:
        lengths = np.ceil(np.linspace(frames, (frames + 1) // 2, batch)).astype("int32")
        runs = torch.arange(frames)[:, None] < torch.from_numpy(lengths)[None]
        for name in ("x", "dh"):
            arrays[name] *= runs.to(device)[..., None]
    return Problem(frames, batch, units, lengths, arrays)


class Ours:
    """Products of PyTorch around our recurrence. The gates take the memory of z, and dz that of the gates.

    :param kernels: of the GPU, or of the emulator if the problem is in the memory of the host
    """

    def __init__(self, torch: Any, kernels: Kernels, problem: Problem, kind: str) -> None:
        self.numbers, dtype, _ = KINDS[kind]
        self._torch, self._kernels = torch, kernels
        self.x, self.dh, self.w, self.r, self.b = (
            problem.arrays[name].to(getattr(torch, dtype)).contiguous() for name in ("x", "dh", "W", "R", "b")
        )
        frames, batch, units = problem.size
        self._lengths = problem.lengths
        self.shape = sequences(frames, batch, units, problem.lengths, False)
        self.gates = self.x.new_empty(frames, batch, 4 * units)
        self.h, self.c = (self.x.new_empty(problem.size) for _ in range(2))
        self.zero = self.x.new_zeros(batch, units)  # initial states, and gradients of the last ones
        self.ends = [self.x.new_empty(batch, units) for _ in range(2)]
        sizes = [kernels.workspace_bytes(self.shape, self.numbers, backward) for backward in (False, True)]
        self._workspace = torch.empty(max(sizes) + 256, dtype=torch.uint8, device=self.x.device)

    def _launch(self, backward: bool, arrays: list[Any]) -> None:
        start = self._workspace.data_ptr()
        stream = self._torch.cuda.current_stream().cuda_stream if self.x.is_cuda else STREAM
        self._kernels.launch(
            self.shape, self.numbers, backward, [x.data_ptr() for x in arrays], start + -start % 256, stream
        )

    def recurrence(self) -> None:
        """Run the forward pass on what is in the gates."""
        self._launch(False, [self.gates, self.r, self.zero, self.zero, self.h, self.c, self.gates, *self.ends])

    def recurrence_backward(self) -> None:
        """Run the backward pass; the gates become dz."""
        inputs = [self.r, self.zero, self.c, self.gates, self.dh, self.zero, self.zero]
        self._launch(True, [*inputs, self.gates, *self.ends])

    def step(self) -> dict[str, Any]:
        """Run forward and backward."""
        torch, width = self._torch, self.x.shape[2]
        x, dz = self.x.view(-1, width), self.gates.view(-1, 4 * width)
        torch.addmm(self.b, x, self.w, out=dz)
        self.recurrence()
        self.recurrence_backward()
        batch = self.x.shape[1]
        dr = self.h[:-1].reshape(-1, width).T @ dz[batch:]
        return {"h": self.h, "dx": (dz @ self.w.T).view(self.x.shape), "dW": x.T @ dz, "dR": dr, "db": dz.sum(0)}


class Torch:
    """``torch.nn.LSTM``: cuDNN on a GPU. Ragged batches are packed, beforehand."""

    def __init__(self, torch: Any, problem: Problem, dtype: str) -> None:
        self._torch, self._problem = torch, problem
        arrays = {name: x.to(getattr(torch, dtype)) for name, x in problem.arrays.items()}
        self.lstm = torch.nn.LSTM(problem.units, problem.units).to(arrays["x"])
        self.order = [1, 2, 0, 3]  # its gates: i, f, j, o
        given = [self._gates(arrays[name]).t() for name in ("W", "R", "b")] + [torch.zeros_like(arrays["b"])]
        with torch.no_grad():
            for parameter, value in zip(self.lstm.parameters(), given):
                parameter.copy_(value)
        self.x, self.dh = arrays["x"].clone(), arrays["dh"]
        if problem.lengths is not None:
            self.x, self.dh = self._pack(self.x), self._pack(self.dh).data
        self.leaf = (self.x if problem.lengths is None else self.x.data).requires_grad_()

    def _pack(self, x: Any) -> Any:
        lengths = self._torch.from_numpy(self._problem.lengths).long()
        return self._torch.nn.utils.rnn.pack_padded_sequence(x, lengths)

    def _gates(self, x: Any) -> Any:
        return x.unflatten(-1, (4, -1))[..., self.order, :].flatten(-2)

    def step(self) -> Any:
        """Run forward and backward."""
        self.leaf.grad = None
        for parameter in self.lstm.parameters():
            parameter.grad = None
        y = self.lstm(self.x)[0]
        (y if self._problem.lengths is None else y.data).backward(self.dh)
        return y

    def results(self) -> dict[str, Any]:
        """Return the results of a step, as `Ours.step` returns them."""
        y, dx = self.step(), self.leaf.grad
        if self._problem.lengths is not None:
            unpack = self._torch.nn.utils.rnn.pad_packed_sequence
            y, dx = (unpack(self.x._replace(data=part), total_length=self._problem.frames)[0] for part in (y.data, dx))
        back = sorted(range(4), key=self.order.__getitem__)
        w, r, b, _ = (p.grad.unflatten(0, (4, -1))[back].flatten(0, 1).t() for p in self.lstm.parameters())
        return {"h": y.detach(), "dx": dx, "dW": w, "dR": r, "db": b}
