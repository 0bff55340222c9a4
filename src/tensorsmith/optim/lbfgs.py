"""LBFGS: quasi-Newton steps from the last gradients, with an optional line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorsmith.ops.complex_numbers import view_as_real
from tensorsmith.ops.registry import TABLE
from tensorsmith.optim.line_search import Point, strong_wolfe
from tensorsmith.optim.optimizer import Optimizer, Parameters, check_rate, number_of, run_closure, zeros_like
from tensorsmith.tensor.modes import modes, no_grad
from tensorsmith.tensor.tensor import Tensor


class LBFGS(Optimizer):
    """p = p + t d, d = -H g, H the inverse Hessian that the last `history_size` changes of parameters and gradients suggest.

    One `step(closure)` makes up to max_iter iterations with up to max_eval (default 1.25 max_iter) calls of the closure,
    which clears gradients, computes the loss, calls backward and returns the loss. t is lr (the first: at most
    lr / sum|g|), or with line_search_fn="strong_wolfe" a step length that satisfies the strong Wolfe conditions.
    tolerance_grad, tolerance_change: stop where no gradient, no change of loss or parameters is larger.
    One group of parameters only. State, under the first parameter: func_evals, n_iter, d, t, old_dirs, old_stps, ro,
    H_diag, al, prev_flat_grad, prev_loss.
    Source: Liu and Nocedal (1989), in PyTorch's form. ValueError for a bad rate or several groups, RuntimeError for
    another line search.

    >>> import tensorsmith as ts
    >>> p = ts.tensor([3.0, -2.0], requires_grad=True)
    >>> optimizer = ts.optim.LBFGS([p], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((p - 1) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> _ = optimizer.step(closure)
    >>> bool((p - 1).abs().max() < 1e-5)
    True
    """

    def __init__(
        self, params: Parameters, lr: float | Tensor = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        check_rate(lr)
        defaults = {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change, "history_size": history_size,
            "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _parameters(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def _gradient(self) -> Any:
        """All gradients in one vector; parts of complex ones one after the other."""
        found = []
        for p in self._parameters:
            grad = zeros_like(p) if p.grad is None else p.grad
            found.append((view_as_real(grad) if grad.is_complex() else grad).reshape(-1))
        return TABLE["cat"].function(found, 0)

    def _move(self, step: float, direction: Any) -> None:
        offset = 0
        for p in self._parameters:
            target: Any = view_as_real(p) if p.is_complex() else p
            target.add_(direction[offset : offset + target.numel()].view(target.shape), alpha=step)
            offset += target.numel()

    def _evaluator(self, closure: Callable[[], Any], direction: Any) -> Callable[[float], Point]:
        start: list[Any] = [p.detach().clone() for p in self._parameters]

        def evaluate(step: float) -> Point:
            self._move(step, direction)
            loss = float(run_closure(closure))
            gradient = self._gradient()
            for p, value in zip(self._parameters, start):
                p.copy_(value)
            return Point(step, loss, gradient, gradient.dot(direction).item())

        return evaluate

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Up to max_iter iterations; returns the loss before the first. The closure is required."""
        if closure is None:
            raise TypeError("LBFGS.step() missing 1 required positional argument: 'closure'")
        if modes.tracer is not None:
            raise NotImplementedError("LBFGS: a step cannot be compiled: its iterations follow from values")
        group = self.param_groups[0]
        lr, most, most_calls = number_of(group["lr"]), group["max_iter"], group["max_eval"]
        tolerance_grad, tolerance_change = group["tolerance_grad"], group["tolerance_change"]
        search = group["line_search_fn"]
        if search not in (None, "strong_wolfe"):
            raise RuntimeError(f"only 'strong_wolfe' is supported, got line_search_fn={search!r}")
        state = self.state[self._parameters[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)

        first_loss = run_closure(closure)
        loss, calls = float(first_loss), 1
        state["func_evals"] += 1
        gradient = self._gradient()
        if _largest(gradient) <= tolerance_grad:
            return first_loss
        for iteration in range(1, most + 1):
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                state.update(d=gradient.neg(), old_dirs=[], old_stps=[], ro=[], H_diag=1)
                step = min(1.0, 1.0 / gradient.abs().sum().item()) * lr
            else:
                self._learn(state, gradient, group["history_size"])
                step = lr
            direction = state["d"]
            state["prev_flat_grad"], before, state["prev_loss"] = gradient.clone(), loss, loss
            state["t"] = step
            slope = gradient.dot(direction).item()
            if slope > -tolerance_change:
                break
            made = 0
            if search is not None:
                start = Point(0.0, loss, gradient, slope)
                evaluate = self._evaluator(closure, direction)
                point, made = strong_wolfe(evaluate, start, step, _largest(direction), most_calls - calls)
                loss, gradient, step = point.loss, point.gradient, point.step
                state["t"] = step
                self._move(step, direction)
            else:
                self._move(step, direction)
                if iteration != most:  # after the last iteration nobody asks for the loss
                    loss, made = float(run_closure(closure)), 1
                    gradient = self._gradient()
            calls += made
            state["func_evals"] += made
            if (
                iteration == most
                or calls >= most_calls
                or _largest(gradient) <= tolerance_grad
                or _largest(direction) * abs(step) <= tolerance_change
                or abs(loss - before) < tolerance_change
            ):
                break
        return first_loss

    @staticmethod
    def _learn(state: dict[str, Any], gradient: Any, history_size: int) -> None:
        """Take the last change into the history, and make the next direction from it (the two-loop recursion)."""
        change, moved = gradient.sub(state["prev_flat_grad"]), state["d"].mul(state["t"])
        curvature = change.dot(moved)
        dirs, steps, ro = state["old_dirs"], state["old_stps"], state["ro"]
        if curvature.item() > 1e-10:
            if len(dirs) == history_size:
                for entries in (dirs, steps, ro):
                    entries.pop(0)
            dirs.append(change)
            steps.append(moved)
            ro.append(1.0 / curvature)
            state["H_diag"] = curvature / change.dot(change)
        al = state.setdefault("al", [None] * history_size)
        q = gradient.neg()
        for i in range(len(dirs) - 1, -1, -1):
            al[i] = steps[i].dot(q) * ro[i]
            q.sub_(dirs[i] * al[i])
        q = q.mul(state["H_diag"])
        for i in range(len(dirs)):
            q.add_(steps[i] * (al[i] - dirs[i].dot(q) * ro[i]))
        state["d"] = q


def _largest(values: Any) -> float:
    return values.abs().max().item()
