"""What drawn programs are made of: tables of operations, written for Tensorsmith and PyTorch alike.

An operation is a function of a `Room` and three tensors: a and b are any values of the program, c an input. Values have the
shape of the room or one that broadcasts to it.

EXACT     on powers of two, zeros of both signs, NaN and infinities: results are exact in every order of computing
SMOOTH    elementary functions of drawn numbers; nothing that is discontinuous or ill-conditioned on computed values
INTEGERS  of int64, int32, uint8 and bool, where arithmetic wraps around
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Room:
    """Where a program runs: `m` is tensorsmith or torch, `full` the shape of its largest values."""

    m: ModuleType
    full: tuple[int, int]

    def fit(self, t: Any) -> Any:
        """Any value as one of the full shape."""
        return t if tuple(t.shape) == self.full else t.expand(self.full)

    def index(self, axis: int, count: int) -> Any:
        """Some places along an axis, the last first; some of them twice."""
        extent = self.full[axis]
        return self.m.tensor([(extent - 1 - 2 * i) % extent for i in range(count)] if extent else [], dtype=self.m.int64)


Operation = Callable[[Room, Any, Any, Any], Any]


def _images(r: Room, a: Any) -> Any:
    """Convolutions of single channels and of single pixels: with few rows a region whose channels lie last."""
    conv, rows = r.m.nn.functional.conv2d, r.full[0]
    taps = r.m.linspace(-0.5, 0.5, 9 * rows, dtype=a.dtype).reshape(rows, 1, 3, 3)
    x = r.fit(a)[None, :, :, None]
    for _ in range(3):
        x = conv(x, taps, padding=1, groups=rows).tanh()
    return (conv(x, taps[:, 0, :1, :1].expand(rows, rows, 1, 1)) * 2).sum((0, 3))


def _written_row(r: Room, a: Any, b: Any, c: Any) -> Any:
    a = r.fit(a).clone()
    a[-1:] = r.fit(b)[:1] * 2
    return a


def _written_through_views(r: Room, a: Any, b: Any, c: Any) -> Any:
    a = r.fit(a).clone()
    turned = a.t()
    turned[1:].add_(r.fit(b).t()[1:])
    a[:1].mul_(2)
    return turned.t() + a


def _written_twice(r: Room, a: Any, b: Any, c: Any) -> Any:
    a = r.fit(a).clone()
    before = a + 0.5
    a.copy_(r.fit(b))
    a.masked_fill_(r.fit(c) > 0, -2.0)
    return before - a


def _written_argument(r: Room, a: Any, b: Any, c: Any) -> Any:
    c.mul_(0.5)
    return a + c


def _put(r: Room, a: Any, b: Any, c: Any) -> Any:
    where = r.index(0, 2)
    return r.fit(a).index_put((where,), r.fit(b)[where] * 2)


EXACT: dict[str, Operation] = {
    "add": lambda r, a, b, c: a + b,
    "sub": lambda r, a, b, c: a - b,
    "mul": lambda r, a, b, c: a * b,
    "half": lambda r, a, b, c: a / 2,
    "by a constant": lambda r, a, b, c: (a * 4) * 0.5 - 2 * a,
    "neutral": lambda r, a, b, c: (a * 1 + 0) - 0.0,
    "minus zero": lambda r, a, b, c: (a + -0.0) * -1,
    "itself": lambda r, a, b, c: (a - a) + b * 0,
    "negatives": lambda r, a, b, c: a.neg().neg() + -b,
    "negative factors": lambda r, a, b, c: (-a) * (-b),
    "maximum": lambda r, a, b, c: r.m.maximum(a, b),
    "clamp": lambda r, a, b, c: a.clamp(-1, 2),
    "relu": lambda r, a, b, c: a.relu().relu(),
    "abs": lambda r, a, b, c: (-a).abs(),
    "where": lambda r, a, b, c: r.m.where(c > 0, a, b),
    "where not": lambda r, a, b, c: r.m.where(r.m.logical_not(c > 0), a, b),
    "mask": lambda r, a, b, c: a * (c > 0).to(a.dtype) + b.masked_fill(c <= 0, 1.0),
    "wide and back": lambda r, a, b, c: a.to(r.m.float32).to(r.m.float64).to(a.dtype),
    "sum": lambda r, a, b, c: r.fit(a).sum(0),
    "row sum": lambda r, a, b, c: r.fit(a).sum(1, keepdim=True),
    "sum of all": lambda r, a, b, c: r.fit(a * 0.5).sum() + b,
    "turned": lambda r, a, b, c: r.fit(a).t().reshape(r.full),
    "turned twice": lambda r, a, b, c: (r.fit(a).t() * 2).t() + r.fit(b).permute(1, 0).permute(1, 0),
    "slices": lambda r, a, b, c: r.m.cat([r.fit(a)[1:], r.fit(b)[:1]], 0),
    "slice of joined": lambda r, a, b, c: r.m.cat([r.fit(a), r.fit(b)], 1)[:, r.full[1] :],
    "stacked": lambda r, a, b, c: r.m.stack([r.fit(a), r.fit(b)], 1)[:, 0],
    "padded": lambda r, a, b, c: r.m.nn.functional.pad(r.fit(a), (1, 2))[:, 1 : 1 + r.full[1]] + r.fit(b).flip(0),
    "flipped": lambda r, a, b, c: r.fit(a).flip(1).flip(0, 1),
    "rolled": lambda r, a, b, c: r.fit(a).roll(1, 1),
    "triangle": lambda r, a, b, c: r.fit(a).tril() + r.fit(b).triu(1),
    "contraction": lambda r, a, b, c: (r.fit(a)[:, :, None] * r.fit(b).t()[None]).sum(1).sum(1, keepdim=True) + a,
    "product": lambda r, a, b, c: (r.fit(a) @ r.fit(b).t()).sum(1, keepdim=True),
    "turned product": lambda r, a, b, c: (r.fit(a).t() @ r.fit(b)).t().sum(0, keepdim=True) + r.fit(c),
    "twice": lambda r, a, b, c: (a + b) * (b + a),
    "power": lambda r, a, b, c: a**2,
    "written": lambda r, a, b, c: r.fit(a).clone().t().add_(1).mul_(2).t(),
    "row written": _written_row,
    "written through views": _written_through_views,
    "written twice": _written_twice,
    "argument written": _written_argument,
    "chosen": lambda r, a, b, c: r.fit(a)[r.index(0, r.full[0])],
    "gathered": lambda r, a, b, c: r.fit(a).index_select(1, r.index(1, 1)),
    "scattered": lambda r, a, b, c: r.fit(a).index_add(0, r.index(0, 3), r.fit(b)[r.index(0, 3)]),
    "put": _put,
    "running": lambda r, a, b, c: r.fit(a).cumsum(1),
    "constants": lambda r, a, b, c: a + r.m.full(r.full, 0.5, dtype=a.dtype) * 4,
    "counted": lambda r, a, b, c: a * 2 + r.m.arange(r.full[1]).to(a.dtype).flip(0),
}  # fmt: skip
# These need an element along every axis.
NOT_EMPTY: dict[str, Operation] = {"max": lambda r, a, b, c: r.fit(a).amax(1, keepdim=True) + b}
# A gradient of these is not exact (a maximum's is shared by ties), or none.
NO_GRADIENT = frozenset({"max", "maximum", "clamp", "relu", "abs", "argument written", "running"})

SMOOTH: dict[str, Operation] = {
    **{name: EXACT[name] for name in EXACT if name not in ("maximum", "relu", "abs", "clamp", "wide and back")},
    "exp": lambda r, a, b, c: a.tanh().exp(),
    "log of exp": lambda r, a, b, c: (a.tanh().exp().log() - b.sigmoid().log().exp()),
    "divided": lambda r, a, b, c: a / (b * b + 1),
    "by three": lambda r, a, b, c: (a / 3 + b / 7) * 0.1 * 3,
    "root": lambda r, a, b, c: (a * a + 1) ** 0.5 + (b * b + 1) ** -1 + (a * a + 0.5).rsqrt(),
    "sigmoid": lambda r, a, b, c: a.sigmoid() * b,
    "gelu": lambda r, a, b, c: r.m.nn.functional.gelu(a) - r.m.nn.functional.silu(b),
    "softplus": lambda r, a, b, c: r.m.nn.functional.softplus(a) + r.m.log1p(b.tanh().exp()),
    "softmax": lambda r, a, b, c: r.fit(a).softmax(1),
    "log softmax": lambda r, a, b, c: r.fit(a).log_softmax(0),
    "logsumexp": lambda r, a, b, c: r.fit(a).logsumexp(1, keepdim=True) + b,
    "normed": lambda r, a, b, c: r.m.nn.functional.layer_norm(r.fit(a) + c, (r.full[1],), eps=0.1),
    "mean": lambda r, a, b, c: r.fit(a).mean(0) - b,
    "sin": lambda r, a, b, c: a.sin() + b.cos(),
    "attention": lambda r, a, b, c: r.m.nn.functional.scaled_dot_product_attention(
        *(r.fit(t)[None, None] for t in (a.tanh(), b.tanh(), c.tanh()))
    )[0, 0],
}  # fmt: skip
NOT_EMPTY_SMOOTH: dict[str, Operation] = {
    "variance": lambda r, a, b, c: r.fit(a).var(1, keepdim=True, correction=0) + b,
    "images": lambda r, a, b, c: _images(r, a) + b,
    "filtered": lambda r, a, b, c: r.m.nn.functional.conv1d(
        r.fit(a)[None].tanh(), r.fit(b)[:, :1].tanh()[None], padding=0
    )[0] + r.fit(c),
    "averaged": lambda r, a, b, c: r.m.nn.functional.avg_pool1d(r.fit(a)[None], 1)[0] - b,
}  # fmt: skip

INTEGERS: dict[str, Operation] = {
    "add": lambda r, a, b, c: a + b,
    "sub": lambda r, a, b, c: a - b,
    "mul": lambda r, a, b, c: a * b,
    "neutral": lambda r, a, b, c: (a + 0) * 1 - 0,
    "itself": lambda r, a, b, c: (a - a) + b * 0,
    "negatives": lambda r, a, b, c: a.neg().neg() - -b,
    "minus one": lambda r, a, b, c: a * -1,
    "and": lambda r, a, b, c: a & b,
    "xor or": lambda r, a, b, c: (a ^ b) | b,
    "not": lambda r, a, b, c: ~~a + ~b,
    "shift": lambda r, a, b, c: (a << 1) + (b >> 1),
    "maximum": lambda r, a, b, c: r.m.maximum(a, b) + a.clamp(2, 5),
    "equal": lambda r, a, b, c: (a == b).to(a.dtype) + (a < c).to(a.dtype),
    "logic": lambda r, a, b, c: r.m.logical_and(a > 0, r.m.logical_not(r.m.logical_not(b > c))).to(a.dtype) + a,
    "where": lambda r, a, b, c: r.m.where(a > b, a, b),
    "narrow and back": lambda r, a, b, c: a.to(r.m.int8).to(a.dtype) + b,
    "wide and back": lambda r, a, b, c: a.to(r.m.int64).to(a.dtype) + b.clamp(0, 9).to(r.m.float64).to(b.dtype),
    "quotient": lambda r, a, b, c: r.m.div(a, 3, rounding_mode="floor") + r.m.remainder(b, 5),
    "power": lambda r, a, b, c: a**2,
    "sum": lambda r, a, b, c: r.fit(a).sum(0).to(a.dtype),
    "row sum": lambda r, a, b, c: r.fit(a).sum(1, keepdim=True).to(b.dtype),
    "any": lambda r, a, b, c: (r.fit(a) > 2).any(1, keepdim=True).to(a.dtype) + (r.fit(b) > 0).all(0).to(a.dtype),
    "running": lambda r, a, b, c: r.fit(a).cumsum(1).to(a.dtype),
    "product": lambda r, a, b, c: (r.fit(a).to(r.m.int64) @ r.fit(b).t().to(r.m.int64)).sum(1, keepdim=True).to(a.dtype),
    "contraction": lambda r, a, b, c: (r.fit(a)[:, :, None] * r.fit(b).t()[None]).sum(1).sum(1, keepdim=True).to(a.dtype) + a,
    "sorted": lambda r, a, b, c: r.fit(a).sort(1)[0] - r.m.argsort(r.fit(b), dim=1, stable=True).to(a.dtype),
    "turned": lambda r, a, b, c: r.fit(a).t().reshape(r.full),
    "slices": lambda r, a, b, c: r.m.cat([r.fit(a)[1:], r.fit(b)[:1]], 0),
    "chosen": lambda r, a, b, c: r.fit(a)[r.index(0, r.full[0])],
    "scattered": lambda r, a, b, c: r.fit(a).index_add(0, r.index(0, 3), r.fit(b)[r.index(0, 3)]),
    "written": lambda r, a, b, c: r.fit(a).clone().t().add_(1).mul_(2).t(),
    "row written": _written_row,
    "constants": lambda r, a, b, c: a + r.m.full(r.full, 3, dtype=a.dtype) * 4,
    "counted": lambda r, a, b, c: a + r.m.arange(r.full[1]).to(a.dtype),
}  # fmt: skip
NOT_EMPTY_INTEGERS: dict[str, Operation] = {
    "max": lambda r, a, b, c: r.fit(a).amax(1, keepdim=True) + b,
    "argmax": lambda r, a, b, c: r.fit(a).sort(0)[0].argmin(1, keepdim=True).to(a.dtype) + b,
}
