"""What an optimizer remembers as bytes, for other workers and checkpoints: a length, JSON, and the tensors that it names. Never pickle."""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Dict, List

import torch

from ._link import EXIT_DATA, EXIT_DISAGREE, StarError

_TENSOR = "tensor"  # the key of a tensor's description in JSON: type, shape, and place in bytes
_LENGTH = struct.Struct("<Q")
_DTYPES = {str(d)[6:]: d for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}


def pack(state: "Dict[str, Any]") -> bytes:
    """state is a state_dict() of an optimizer."""
    tensors: List[bytes] = []
    size = 0

    def encode(v: Any, where: str) -> Any:
        nonlocal size
        if isinstance(v, torch.Tensor):
            name = str(v.dtype)[6:]
            if name not in _DTYPES or v.layout != torch.strided:
                raise StarError("%s is a tensor of %s, %s: a state of dense numbers is what others can be told" % (where, v.dtype, v.layout), EXIT_DISAGREE)
            flat = v.detach().cpu().contiguous().view(-1)
            data = bytearray(flat.numel() * flat.element_size())
            if data:
                torch.frombuffer(data, dtype=v.dtype).copy_(flat)
            tensors.append(bytes(data))
            size += len(data)
            return {_TENSOR: [name, list(v.shape), size - len(data)]}
        if isinstance(v, dict):
            if not all(isinstance(k, (str, int)) for k in v):
                raise StarError("%s has keys that are neither text nor numbers" % where, EXIT_DISAGREE)
            return {"dict": [[k, encode(x, "%s[%r]" % (where, k))] for k, x in v.items()]}
        if isinstance(v, (list, tuple)):
            return {"tuple" if isinstance(v, tuple) else "list": [encode(x, "%s[%d]" % (where, i)) for i, x in enumerate(v)]}
        if v is None or isinstance(v, (bool, int, float, str)):
            return v
        raise StarError("%s is a %s: only tensors, numbers and text in an optimizer's state can be sent to other workers" % (where, type(v).__name__), EXIT_DISAGREE)

    text = json.dumps(encode(state, "the state")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *tensors])


def each(f: Callable[[Any], Any], state: Any) -> Any:
    """The state with f of each tensor in the place of the tensor."""
    if isinstance(state, torch.Tensor):
        return f(state)
    if isinstance(state, dict):
        return {k: each(f, v) for k, v in state.items()}
    return type(state)(each(f, v) for v in state) if isinstance(state, (list, tuple)) else state


def unpack(data: bytes, own: "Dict[str, Any]") -> "Dict[str, Any]":
    """The state_dict() for an optimizer with its own state_dict() own, which has the number of parameters."""
    try:
        state = _decoded(data)
        sizes = [len(g["params"]) for g in state["param_groups"]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError, struct.error) as e:
        raise StarError("the state of the job's optimizer is damaged: %s: %s" % (type(e).__name__, e), EXIT_DATA) from None
    if sizes != [len(g["params"]) for g in own["param_groups"]]:
        raise StarError("the job's optimizer has other groups of parameters than this one", EXIT_DISAGREE)
    return state


def _decoded(data: bytes) -> "Dict[str, Any]":
    (n,) = _LENGTH.unpack_from(data)
    body = memoryview(data)[_LENGTH.size + n :]

    def decode(v: Any) -> Any:
        if not isinstance(v, dict):
            return v
        ((kind, x),) = v.items()
        if kind == "dict":
            return {k: decode(y) for k, y in x}
        if kind in ("list", "tuple"):
            return (tuple if kind == "tuple" else list)(decode(y) for y in x)
        name, shape, at = x
        t = torch.empty(shape, dtype=_DTYPES[name])
        size = t.numel() * t.element_size()
        if size:
            t.view(-1).copy_(torch.frombuffer(bytearray(body[at : at + size]), dtype=t.dtype))
        return t

    state: Dict[str, Any] = decode(json.loads(data[_LENGTH.size : _LENGTH.size + n].decode()))
    return state
