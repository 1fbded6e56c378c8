"""Optimizers as their papers write them, in numpy and float64, one class each: step by step, for one parameter."""

from __future__ import annotations

from typing import Any

import numpy as np


class Recurrence:
    """A parameter ``w`` with its state; ``step(g)`` changes both.

    :param options: the numbers of the paper
    """

    def __init__(self, w: np.ndarray, rate: float, **options: Any) -> None:
        self.w, self.rate, self.t = np.array(w, "float64"), rate, 0
        self.__dict__.update(options)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def __getattr__(self, name: str) -> Any:  # the options, for mypy
        raise AttributeError(name)

    def step(self, g: np.ndarray) -> np.ndarray:
        self.t += 1
        self.change(g)
        return self.w

    def change(self, g: np.ndarray) -> None:
        raise NotImplementedError

    def moments(self, g: np.ndarray) -> None:
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2

    def unbiased(self) -> tuple[np.ndarray, np.ndarray]:
        return self.m / (1 - self.beta1**self.t), self.v / (1 - self.beta2**self.t)


class AdamW(Recurrence):
    """Loshchilov and Hutter 2019, with epsilon as in the text of Kingma and Ba 2015 before their section 2.1."""

    def change(self, g: np.ndarray) -> None:
        self.moments(g)
        rate = self.rate * np.sqrt(1 - self.beta2**self.t) / (1 - self.beta1**self.t)
        self.w = self.w - self.rate * self.weight_decay * self.w - rate * self.m / (np.sqrt(self.v) + self.epsilon)


class RAdam(Recurrence):
    """Algorithm 2 of arXiv 1908.03265, with epsilon in the denominator."""

    def change(self, g: np.ndarray) -> None:
        self.moments(g)
        longest = 2 / (1 - self.beta2) - 1
        length = longest - 2 * self.t * self.beta2**self.t / (1 - self.beta2**self.t)
        m, v = self.unbiased()
        if length > 4:
            r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            m = np.sqrt(r) * m / (np.sqrt(v) + self.epsilon)
        self.w = self.w - self.rate * (m + self.weight_decay * self.w)


class Lion(Recurrence):
    """Algorithm 2 of arXiv 2302.06675."""

    def change(self, g: np.ndarray) -> None:
        c = self.beta1 * self.m + (1 - self.beta1) * g
        self.w = self.w - self.rate * (np.sign(c) + self.weight_decay * self.w)
        self.m = self.beta2 * self.m + (1 - self.beta2) * g


class Lamb(Recurrence):
    """Algorithm 2 of arXiv 1904.00962, whose function of the norm is the norm."""

    def change(self, g: np.ndarray) -> None:
        self.moments(g)
        m, v = self.unbiased()
        u = m / (np.sqrt(v) + self.epsilon) + self.weight_decay * self.w
        size, of_step = np.sqrt((self.w**2).sum()), np.sqrt((u**2).sum())
        self.w = self.w - self.rate * (size / of_step if size and of_step else 1) * u


class Adafactor(Recurrence):
    """Algorithms 4 and 5 of arXiv 1804.04235; the rate is the constant in its relative step size."""

    def __init__(self, w: np.ndarray, rate: float, **options: Any) -> None:
        super().__init__(w, rate, **options)
        self.row, self.col = (np.zeros(w.shape[:-1]), np.zeros(w.shape[-1:])) if w.ndim == 2 else (None, None)

    def change(self, g: np.ndarray) -> None:
        beta2 = 1 - self.t**self.beta2_decay
        square = g**2 + self.epsilon1
        if self.w.ndim == 2:
            self.row = beta2 * self.row + (1 - beta2) * square.sum(1)
            self.col = beta2 * self.col + (1 - beta2) * square.sum(0)
            v = np.outer(self.row, self.col) / self.row.sum()
        else:
            v = self.v = beta2 * self.v + (1 - beta2) * square
        u = g / np.sqrt(v)
        u = u / max(1, rms(u) / self.clip_threshold)
        self.w = self.w - max(self.epsilon2, rms(self.w)) * min(self.rate, 1 / np.sqrt(self.t)) * u


class Muon(Recurrence):
    """The text on the web page that its class names, for matrices as [in, out]."""

    def change(self, g: np.ndarray) -> None:
        self.m = self.momentum * self.m + g
        n_in, n_out = self.w.shape
        x = (g + self.momentum * self.m).T  # [out, in], as there
        x = x / np.sqrt((x**2).sum())
        if n_out > n_in:
            x = x.T
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x if n_out > n_in else x.T
        scale = np.sqrt(max(1, n_out / n_in)) if self.scale == "original" else 0.2 * np.sqrt(max(n_in, n_out))
        self.w = self.w - self.rate * (scale * x + self.weight_decay * self.w)


class ScaledAdam(Recurrence):
    """Section 3.3 of arXiv 2310.11230: parameter and scale, each with Adam."""

    n, q = 0.0, 0.0

    def change(self, g: np.ndarray) -> None:
        self.moments(g)
        h = (g * self.w).sum()
        self.n = self.beta1 * self.n + (1 - self.beta1) * h
        self.q = self.beta2 * self.q + (1 - self.beta2) * h**2
        rate = self.rate * np.sqrt(1 - self.beta2**self.t) / (1 - self.beta1**self.t)
        step = -rate * max(rms(self.w), self.min_rms) * self.m / (np.sqrt(self.v) + self.epsilon)
        of_scale = -self.scale_rate * rate * self.n / (np.sqrt(self.q) + self.epsilon) * self.w
        self.w = self.w + step + of_scale


class ScheduleFreeAdamW(Recurrence):
    """Algorithm 1 of arXiv 2405.15682; ``w`` is y, where gradients are taken, ``x`` the average."""

    def __init__(self, w: np.ndarray, rate: float, **options: Any) -> None:
        super().__init__(w, rate, **options)
        self.x, self.z, self.weights = self.w, self.w, 0.0

    def change(self, g: np.ndarray) -> None:
        y = (1 - self.beta1) * self.z + self.beta1 * self.x
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        rate = self.rate * min(1, self.t / self.warmup_steps)
        denominator = np.sqrt(self.v / (1 - self.beta2**self.t)) + self.epsilon
        self.z = self.z - rate * g / denominator - rate * self.weight_decay * y
        self.weights += rate**2
        self.x = self.x + rate**2 / self.weights * (self.z - self.x)
        self.w = (1 - self.beta1) * self.z + self.beta1 * self.x


def rms(x: np.ndarray) -> Any:
    return np.sqrt((x**2).mean())


_BETAS = {"beta1": 0.8, "beta2": 0.95}
#: Optimizer dict, its recurrence: numbers that are not the defaults.
CASES: list[tuple[dict[str, Any], type[Recurrence]]] = [
    ({"class": "radam", **_BETAS, "epsilon": 1e-4, "weight_decay": 0.1}, RAdam),
    ({"class": "lion", **_BETAS, "weight_decay": 0.1}, Lion),
    ({"class": "lamb", **_BETAS, "epsilon": 1e-4, "weight_decay": 0.2}, Lamb),
    ({"class": "adafactor", "beta2_decay": -0.7, "epsilon1": 1e-8, "epsilon2": 0.1, "clip_threshold": 0.8}, Adafactor),
    ({"class": "muon", "momentum": 0.8, "scale": "original", "weight_decay": 0.1}, Muon),
    ({"class": "muon", "momentum": 0.9, "scale": "match_rms_adamw", "weight_decay": 0.0}, Muon),
    ({"class": "scaledadam", **_BETAS, "epsilon": 1e-4, "scale_rate": 0.2, "min_rms": 0.3}, ScaledAdam),
    (
        {"class": "schedulefreeadamw", **_BETAS, "epsilon": 1e-4, "weight_decay": 0.1, "warmup_steps": 3},
        ScheduleFreeAdamW,
    ),
]


def recurrence(options: dict[str, Any], cls: type[Recurrence], w: np.ndarray, rate: float) -> Recurrence:
    return cls(w, rate, **{name: value for name, value in options.items() if name != "class"})
