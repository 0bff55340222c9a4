"""What PyTorch loads for `torch.compile(..., backend="tensorsmith")` where `tensorsmith.interop.torch` was not imported.

PyTorch registers what it loads; importing `interop.torch` registers the backend too, so this module does not import it yet.
"""

from __future__ import annotations

from typing import Any


def tensorsmith_backend(module: Any, examples: Any, **options: Any) -> Any:
    """The backend of `interop/torch/backend.py`."""
    from tensorsmith.interop.torch import tensorsmith_backend

    return tensorsmith_backend(module, examples, **options)
