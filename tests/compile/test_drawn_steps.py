"""Drawn training steps leave the same state with every pass on, with each off, with drawn ones off, and with all off.

A step is a network of drawn layers on small images, a loss and an optimiser, with what training has around them: clipped
gradients, a schedule, gradients that are accumulated. Two steps are run; losses, parameters, buffers, gradients, the state of
the optimiser and the place of the random generator are compared with the eager run, and where no random numbers are drawn with
PyTorch's. `TENSORSMITH_FUZZ=2000` draws that many; without it a few.

float64 agrees within 1e-9 of the largest value, float32 within 1e-3: two steps of up to six layers round some hundred times,
and a norm divides by a small spread. float32 networks have smooth layers only: at a kink a rounding chooses the side.
"""

import os
import warnings

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorsmith as ts

EXAMPLES = int(os.environ.get("TENSORSMITH_FUZZ", "4"))
FEW = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=EXAMPLES < 50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
SEED = st.integers(0, 1 << 30)


def of_rows(make):
    """A module on sequences, run over the rows of every image: (N, C, H, W) as N sequences of H elements."""

    def build(m, shape):
        _, channels, height, width = shape
        inner = make(m, channels * width)

        def run(x):
            rows = x.permute(0, 2, 1, 3).reshape(x.shape[0], height, channels * width)
            found = inner(rows)
            found = found[0] if isinstance(found, tuple) else found
            return found.reshape(x.shape[0], height, channels, width).permute(0, 2, 1, 3)

        return inner, run

    return build


def attention(m, features):
    """Scaled dot products of projected rows."""
    project = m.nn.Linear(features, 3 * features)

    class Attention(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = project

        def forward(self, x):
            q, k, v = self.project(x).chunk(3, -1)
            return m.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]

    return Attention()


def plain(make):
    """A layer that is a module, or None where it does not fit the shape."""

    def build(m, shape):
        layer = make(m, shape[1])
        return layer, layer

    return build


def function(run):
    """A layer without parameters."""
    return lambda m, shape: (None, lambda x: run(m, x))


SMOOTH = {
    "3x3": plain(lambda m, c: m.nn.Conv2d(c, 4, 3, padding=1)),
    "strided": plain(lambda m, c: m.nn.Conv2d(c, 3, 3, stride=2, padding=1)),
    "1x1": plain(lambda m, c: m.nn.Conv2d(c, 6, 1, bias=False)),
    "depthwise": plain(lambda m, c: m.nn.Conv2d(c, c, 3, padding=1, groups=c)),
    "dilated": plain(lambda m, c: m.nn.Conv2d(c, 2, (3, 2), padding=(2, 1), dilation=2)),
    "transposed": plain(lambda m, c: m.nn.ConvTranspose2d(c, 3, 2, stride=2)),
    "batch norm": plain(lambda m, c: m.nn.BatchNorm2d(c, eps=0.1)),
    "group norm": plain(lambda m, c: m.nn.GroupNorm(1, c, eps=0.1)),
    "tanh": function(lambda m, x: x.tanh()),
    "gelu": function(lambda m, x: m.nn.functional.gelu(x)),
    "silu written": function(lambda m, x: m.nn.functional.silu(x * 1, inplace=True)),
    "average": function(lambda m, x: m.nn.functional.avg_pool2d(x, 3, stride=1, padding=1)),
    "pooled": function(lambda m, x: m.nn.functional.adaptive_avg_pool2d(x, (2, 3))),
    "larger": function(lambda m, x: m.nn.functional.interpolate(x, size=(5, 6), mode="bilinear", align_corners=False)),
    "residual": function(lambda m, x: x + x.flip(3) * 0.5),
    "joined": function(lambda m, x: m.cat([x, x[:, :1].sin()], 1)),
    "split": function(lambda m, x: sum(part * (i + 1) for i, part in enumerate(x.split(1, 1))).expand(-1, 2, -1, -1)),
    "written": function(lambda m, x: written(x)),
    "rows": of_rows(lambda m, f: m.nn.Linear(f, f)),
    "row norm": of_rows(lambda m, f: m.nn.LayerNorm(f, eps=0.1)),
    "attention": of_rows(attention),
    "recurrent": of_rows(lambda m, f: m.nn.GRU(f, f, batch_first=True)),
    "contraction": function(lambda m, x: (x[..., None] * x.mean((0, 1)).t()[None, None, None]).sum(3)),
}  # fmt: skip
KINKED = {
    "relu": function(lambda m, x: x.relu()),
    "largest": function(lambda m, x: m.nn.functional.max_pool2d(x, 2, ceil_mode=True)),
    "clamped": function(lambda m, x: x.clamp(-0.5, 1)),
    "chosen": function(lambda m, x: x.gather(3, x.argsort(3))),
}
RANDOM = {
    "dropout": plain(lambda m, c: m.nn.Dropout(0.3)),
    "noise": function(lambda m, x: x + 0.1 * m.randn_like(x)),
    "channel dropout": plain(lambda m, c: m.nn.Dropout2d(0.3)),
}


def written(x):
    x = x * 1
    x[:, 0].mul_(0.5)
    x[:, :, 0] += 1
    return x


OPTIMISERS = {  # a gradient that is zero but for rounding is no direction: eps is large
    "sgd": lambda m, p: m.optim.SGD(p, lr=0.1),
    "momentum": lambda m, p: m.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda m, p: m.optim.Adam(p, lr=0.01, eps=0.1, amsgrad=True),
    "adamw": lambda m, p: m.optim.AdamW(p, lr=0.01, eps=0.1),
    "rmsprop": lambda m, p: m.optim.RMSprop(p, lr=0.01, eps=0.1, momentum=0.5, centered=False),
    "adagrad": lambda m, p: m.optim.Adagrad(p, lr=0.05, eps=0.1),
}
LOSSES = {
    "classes": lambda m, y, labels: m.nn.functional.cross_entropy(y, labels, label_smoothing=0.1),
    "squares": lambda m, y, labels: ((y - m.nn.functional.one_hot(labels, 5).to(y.dtype)) ** 2).mean(),
    "embedded": lambda m, y, labels: m.nn.functional.mse_loss(y, m.nn.functional.embedding(labels, y.tanh())),
}


class Training:
    """A drawn network with its optimiser; `step` is what is compiled."""

    def __init__(self, m, layers, table, optimiser, loss, extras, seed, kind, state=None):
        self.m, self.loss, self.extras = m, LOSSES[loss], extras
        m.manual_seed(seed)
        modules, self.runs = m.nn.ModuleList(), []
        x = m.zeros(2, 3, 5, 6)
        for name in layers:
            module, run = table[name](m, tuple(x.shape))
            if module is not None:
                modules.append(module)
            self.runs.append(run)
            with m.no_grad():
                x = run(x)
        modules.append(head := m.nn.Linear(x.shape[1], 5))
        self.head, self.modules = head, modules.to(getattr(m, kind))
        for module in self.modules.modules():  # what building them has counted
            if isinstance(module, m.nn.BatchNorm2d):
                module.reset_running_stats()
        if state is not None:
            weights = {name: m.tensor(v.tolist(), dtype=getattr(m, str(v.dtype))) for name, v in state.items()}
            self.modules.load_state_dict(weights)
        self.optimiser = OPTIMISERS[optimiser](m, list(self.modules.parameters()))
        self.schedule = m.optim.lr_scheduler.ExponentialLR(self.optimiser, 0.5) if "schedule" in extras else None

    def step(self, x, labels):
        if "accumulated" not in self.extras:
            self.optimiser.zero_grad(set_to_none="kept" not in self.extras)
        for run in self.runs:
            x = run(x)
        loss = self.loss(self.m, self.head(x.mean((2, 3))), labels)
        loss.backward()
        if "clipped" in self.extras:
            self.m.nn.utils.clip_grad_norm_(self.modules.parameters(), 0.5)
        self.optimiser.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss.detach()

    def state(self):
        """Everything that a step leaves behind, by name."""
        found = dict(self.modules.state_dict())
        for i, p in enumerate(self.modules.parameters()):
            found[f"gradient {i}"] = p.grad
            found |= {f"{key} {i}": v for key, v in self.optimiser.state[p].items() if v is not None}
        return {key: as_array(value) for key, value in found.items() if value is not None}


def as_array(value):
    return np.array(value.detach().tolist() if hasattr(value, "detach") else value)


def agree(found, expected, tolerance, said):
    assert found.keys() == expected.keys(), said
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale, err_msg=f"{said}: {name}")


def left_out(number):
    """Passes that are left out: none, all, one of them, and those a number draws."""
    every = ts.passes.names()
    return ((), every, (every[number % len(every)],), tuple(name for i, name in enumerate(every) if number >> i & 1))


def run_steps(training, call, seed, kind):
    """Two steps, and what they leave behind."""
    m, random = training.m, np.random.default_rng(seed)
    m.manual_seed(seed)
    losses = []
    for _ in range(2):
        x = m.tensor(random.normal(size=(2, 3, 5, 6)).tolist(), dtype=getattr(m, kind))
        losses.append(call(x, m.tensor(random.integers(0, 2, size=2).tolist())).item())
    return {"losses": np.array(losses), "drawn": np.array(m.rand(1).tolist()), **training.state()}


def check(layers, table, optimiser, loss, extras, seed, number, kind):
    tolerance = 1e-9 if kind == "float64" else 1e-3
    said = f"{kind} {layers} {optimiser} {loss} {sorted(extras)}"
    given = (layers, table, optimiser, loss, extras, seed, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = Training(ts, *given)
        weights = {name: value.numpy() for name, value in start.modules.state_dict().items()}
        weights = {name: value.copy() for name, value in weights.items()}
        expected = run_steps(start, start.step, seed, kind)
        if not RANDOM.keys() & set(layers):
            torchs = Training(torch, *given, state=weights)
            theirs = run_steps(torchs, torchs.step, seed, kind)
            shared = {name: expected[name] for name in theirs.keys() & expected.keys() if name != "drawn"}
            agree({name: theirs[name] for name in shared}, shared, tolerance, said + " as PyTorch")
        for disable in left_out(number):
            training = Training(ts, *given)
            found = run_steps(training, ts.compile(training.step, disable=disable), seed, kind)
            agree(found, expected, tolerance, f"{said}, without {disable}")


def names(*tables, least=1):
    every = [name for table in tables for name in table]
    return st.lists(st.sampled_from(every), min_size=least, max_size=6)


EXTRAS = st.sets(st.sampled_from(["clipped", "schedule", "accumulated", "kept"]), max_size=2)


@FEW
@given(
    layers=names(SMOOTH, KINKED, RANDOM), optimiser=st.sampled_from(list(OPTIMISERS)), loss=st.sampled_from(list(LOSSES)),
    extras=EXTRAS, seed=SEED, number=SEED,
)  # fmt: skip
def test_steps_in_float64(layers, optimiser, loss, extras, seed, number):
    check(layers, {**SMOOTH, **KINKED, **RANDOM}, optimiser, loss, extras, seed, number, "float64")


@FEW
@given(
    layers=names(SMOOTH), optimiser=st.sampled_from(list(OPTIMISERS)), loss=st.sampled_from(list(LOSSES)), extras=EXTRAS,
    seed=SEED, number=SEED,
)  # fmt: skip
def test_steps_in_float32(layers, optimiser, loss, extras, seed, number):
    check(layers, SMOOTH, optimiser, loss, extras, seed, number, "float32")


def test_a_difference_is_found():
    f = ts.scalar.functions
    ts.passes.register("wrong", pattern=lambda x: f.tanh(x), rewrite=lambda x: f.sin(x))
    try:
        np.testing.assert_raises(AssertionError, check, ["tanh"], SMOOTH, "sgd", "squares", set(), 0, 0, "float64")
    finally:
        ts.passes.unregister("wrong")
