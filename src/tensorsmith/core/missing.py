"""Names that PyTorch has and this package has not yet: an AttributeError that says why, and what to use instead."""

from __future__ import annotations

import re
from types import ModuleType

CPU_ONLY = "tensors live on the CPU only so far"

# The first pattern that matches the whole name decides.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"mps|xpu|Stream", CPU_ONLY),
    (r"(Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Tensor", "use ts.tensor(data, dtype=...)"),
    (r"autocast|amp|GradScaler", "mixed precision is not implemented so far; model.half() and model.bfloat16() are"),
    (r"jit|_dynamo|fx", "ts.compile makes one program of a function or a module"),
    (r"functionalize", "ts.compile traces a function that writes in place to a graph without writes"),
    (r"replace_all_batch_norm_modules_|rearrange", "this part of torch.func is not implemented so far"),
    (r"sparse.*|.*_sparse.*", "sparse tensors are not implemented so far"),
    (r".*grouped_mm|scaled_mm", "products of scaled 8-bit numbers and of groups of matrices are not implemented so far"),
    (r"(Distributed)?DataParallel", CPU_ONLY),
    (r"inv|inverse|det|logdet|slogdet|lstsq|eig.*|svd.*|qr|cholesky.*|lu.*|pinv|matrix_.+|solve_.+",
     "this part of linear algebra is not implemented so far; tensor.numpy() and numpy.linalg share its memory"),
)  # fmt: skip


def missing(module: ModuleType, name: str) -> AttributeError:
    """The error for a name that a module does not have."""
    text = f"module '{module.__name__}' has no attribute '{name}'"
    for pattern, reason in _REASONS:
        if re.fullmatch(pattern, name):
            return AttributeError(f"{text}: {reason}", name=name, obj=module)
    return AttributeError(text, name=name, obj=module)
