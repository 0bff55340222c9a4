"""What RECURRENT and RECURRENT_GRADIENT mean, in NumPy, by the formulas of `ir/recurrent.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsmith.ir.graph import Node, Primitive
from tensorsmith.ir.recurrent import gradients, results, shapes_of, states_of, steps

Arrays = Sequence[np.ndarray]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _filled(shapes: dict[str, tuple[int, int]], dtype: np.dtype) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def _forward(node: Node, arrays: Arrays) -> dict[str, np.ndarray]:
    mode, count = node.attrs["mode"], states_of(node.attrs["mode"])
    a, h, w = arrays[0], arrays[1].copy(), arrays[1 + count]
    c = arrays[2].copy() if count == 2 else None
    bias = arrays[2 + count] if len(arrays) > 2 + count else 0.0
    found = _filled(results(mode, True, len(a), *h.shape), a.dtype)
    for at, n, _, _ in steps(node.attrs["runs"], node.attrs["reverse"]):
        rows = slice(at, at + n)
        p = h[:n] @ w.T + bias
        if c is not None:
            i, forget, g, o = np.split(a[rows] + p, 4, 1)
            i, forget, g, o = _sigmoid(i), _sigmoid(forget), np.tanh(g), _sigmoid(o)
            c[:n] = forget * c[:n] + i * g
            h[:n] = o * np.tanh(c[:n])
            found["cells"][rows] = c[:n]
            found["parts"][rows] = np.concatenate([i, forget, g, o], 1)
        elif mode == "gru":
            (a_r, a_z, a_n), (p_r, p_z, p_n) = np.split(a[rows], 3, 1), np.split(p, 3, 1)
            r, z = _sigmoid(a_r + p_r), _sigmoid(a_z + p_z)
            new = np.tanh(a_n + r * p_n)
            h[:n] = new + z * (h[:n] - new)
            found["parts"][rows] = np.concatenate([r, z, new, p_n], 1)
        else:
            h[:n] = np.tanh(a[rows] + p) if mode == "rnn_tanh" else np.maximum(a[rows] + p, 0.0)
        found["states"][rows] = h[:n]
    found["hidden"] = h
    if c is not None:
        found["cell"] = c
    return found


def _backward(node: Node, arrays: Arrays) -> dict[str, np.ndarray]:
    mode, count = node.attrs["mode"], states_of(node.attrs["mode"])
    grads, dh, flat = arrays[0], arrays[1].copy(), arrays[1 + count]
    dc = arrays[2].copy() if count == 2 else None
    first, w = arrays[2 + count : 2 + 2 * count], arrays[2 + 2 * count]
    of_kept = arrays[3 + 2 * count] if len(arrays) > 3 + 2 * count else np.zeros_like(flat)
    kept, own, start = {}, {}, 0
    for name, shape in results(mode, True, len(grads), *dh.shape).items():
        end = start + shape[0] * shape[1]
        kept[name], own[name] = flat[start:end].reshape(shape), of_kept[start:end].reshape(shape)
        start = end
    found = _filled(gradients(mode, len(grads), *dh.shape), grads.dtype)
    for at, n, before, linked in reversed(steps(node.attrs["runs"], node.attrs["reverse"])):
        rows = slice(at, at + n)
        grad = grads[rows] + dh[:n]
        h = kept["states"][rows]
        if dc is not None:
            i, forget, g, o = np.split(kept["parts"][rows], 4, 1)
            t = np.tanh(kept["cells"][rows])
            old = np.concatenate([kept["cells"][before : before + linked], first[1][linked:n]])
            change = dc[:n] + grad * o * (1 - t * t) + own["cells"][rows]
            e = np.split(own["parts"][rows], 4, 1)
            parts = [(change * g + e[0]) * i * (1 - i), (change * old + e[1]) * forget * (1 - forget),
                     (change * i + e[2]) * (1 - g * g), (grad * t + e[3]) * o * (1 - o)]  # fmt: skip
            dc[:n] = change * forget
            product = np.concatenate(parts, 1)
            dh[:n] = product @ w
        elif mode == "gru":
            r, z, new, p_n = np.split(kept["parts"][rows], 4, 1)
            old = np.concatenate([kept["states"][before : before + linked], first[0][linked:n]])
            e = np.split(own["parts"][rows], 4, 1)
            to_new = (grad * (1 - z) + e[2]) * (1 - new * new)
            parts = [(to_new * p_n + e[0]) * r * (1 - r), (grad * (old - new) + e[1]) * z * (1 - z), to_new]
            product = np.concatenate([*parts[:2], to_new * r + e[3]], 1)
            found["product"][rows] = product
            dh[:n] = product @ w + grad * z
        else:
            parts = [grad * (1 - h * h) if mode == "rnn_tanh" else np.where(h <= 0, 0.0, grad)]
            dh[:n] = parts[0] @ w
        found["gates"][rows] = np.concatenate(parts, 1)
    found["hidden"] = dh
    if dc is not None:
        found["cell"] = dc
    return found


def recurrent(node: Node, arrays: Arrays) -> np.ndarray:
    """The flat value of either primitive."""
    found = (_backward if node.op is Primitive.RECURRENT_GRADIENT else _forward)(node, arrays)
    return np.concatenate([found[name].ravel() for name in shapes_of(node)])
