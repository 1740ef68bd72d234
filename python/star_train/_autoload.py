"""What an installed star-train does when torch is imported: it makes the name of its backend known. Nothing here may fail, or ``import torch`` would."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Makes the backend star known to torch.distributed. The code of the backend is imported when a group is made."""
    try:
        import torch.distributed

        dist: Any = torch.distributed
        if dist.is_available() and "star" not in dist.Backend.backend_list:
            dist.Backend.register_backend("star", _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception:  # a PyTorch without such backends: import star_train.backend says so
        return


def _create(opts: Any, options: Any = None) -> Any:
    from . import backend

    return backend.create(opts)
