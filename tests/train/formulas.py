"""Optimizers in NumPy, in float64, as their papers and torch write them: what the trees are compared with."""

from __future__ import annotations

import numpy as np


def sgd(w, g, s, t, rate, momentum=0.0, nesterov=False, weight_decay=0.0):
    g = g + weight_decay * w
    s["v"] = momentum * s.get("v", 0) + g
    return w - rate * (g + momentum * s["v"] if nesterov else s["v"])


def rmsprop(w, g, s, t, rate=1e-2, decay=0.99, epsilon=1e-8, momentum=0.0, centered=False):
    s["v"] = decay * s.get("v", 0) + (1 - decay) * g**2
    spread = s["v"]
    if centered:
        s["m"] = decay * s.get("m", 0) + (1 - decay) * g
        spread = spread - s["m"] ** 2
    s["b"] = momentum * s.get("b", 0) + g / (np.sqrt(spread) + epsilon)
    return w - rate * s["b"]


def adagrad(w, g, s, t, rate=1e-2, rate_decay=0.0, initial_sum=0.0, epsilon=1e-10):
    s["v"] = s.get("v", initial_sum) + g**2
    return w - rate / (1 + (t - 1) * rate_decay) * g / (np.sqrt(s["v"]) + epsilon)


def adadelta(w, g, s, t, rate=1.0, decay=0.9, epsilon=1e-6):
    s["v"] = decay * s.get("v", 0) + (1 - decay) * g**2
    change = np.sqrt(s.get("u", 0) + epsilon) / np.sqrt(s["v"] + epsilon) * g
    s["u"] = decay * s.get("u", 0) + (1 - decay) * change**2
    return w - rate * change


def _means(g, s, beta1, beta2):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g**2


def adam(w, g, s, t, rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0):
    g = g + weight_decay * w
    _means(g, s, beta1, beta2)
    return w - rate * s["m"] / (1 - beta1**t) / (np.sqrt(s["v"] / (1 - beta2**t)) + epsilon)


def adamw(w, g, s, t, rate=1e-3, weight_decay=1e-2, **numbers):
    return adam(w * (1 - rate * weight_decay), g, s, t, rate, **numbers)


def adamax(w, g, s, t, rate=2e-3, beta1=0.9, beta2=0.999, epsilon=1e-8):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["u"] = np.maximum(beta2 * s.get("u", 0), np.abs(g) + epsilon)
    return w - rate / (1 - beta1**t) * s["m"] / s["u"]


def lamb(w, g, s, t, rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=1e-2):
    _means(g, s, beta1, beta2)
    change = s["m"] / (1 - beta1**t) / (np.sqrt(s["v"] / (1 - beta2**t)) + epsilon) + weight_decay * w
    norms = np.linalg.norm(w), np.linalg.norm(change)
    return w - rate * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * change


def lars(w, g, s, t, rate, momentum=0.9, trust=1e-3, weight_decay=0.0):
    above, below = trust * np.linalg.norm(w), np.linalg.norm(g) + weight_decay * np.linalg.norm(w)
    scale = above / below if min(above, below) > 0 else 1.0
    s["b"] = momentum * s.get("b", 0) + rate * scale * (g + weight_decay * w)
    return w - s["b"]


def lion(w, g, s, t, rate=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0):
    w = w * (1 - rate * weight_decay)
    m = s.get("m", 0)
    s["m"] = beta2 * m + (1 - beta2) * g
    return w - rate * np.sign(beta1 * m + (1 - beta1) * g)
