"""gumbel_softmax: samples of classes that are differentiable by their logits (Jang et al., 2017; Maddison et al., 2017)."""

from __future__ import annotations

from tensorsmith.ops.checks import need_tensors
from tensorsmith.ops.creation import full_like
from tensorsmith.ops.registry import public
from tensorsmith.ops.softmax import softmax
from tensorsmith.tensor.tensor import Tensor


@public("softmax", namespace="nn.functional", method=False, kind="composite")
def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """softmax((logits + g) / tau) along dim, with g drawn from Gumbel(0, 1); any shape.

    hard: 1 at the largest and 0 elsewhere, with the gradient of the soft sample. eps is not used, as in PyTorch.
    """
    need_tensors("gumbel_softmax", logits=logits)
    gumbels = -full_like(logits.detach(), 0).exponential_().log()
    soft = softmax((logits + gumbels) / tau, dim)
    if not hard:
        return soft
    chosen = full_like(soft.detach(), 0).scatter_(dim, soft.detach().argmax(dim, keepdim=True), 1.0)
    return chosen - soft.detach() + soft
