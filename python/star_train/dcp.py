"""STAR's checkpoints for ``torch.distributed.checkpoint`` (DCP), and back: so that another trainer continues a job of STAR, and STAR one of another trainer.

>>> from star_train import dcp
>>> dcp.load("star-out", model, optimizer)                     # also sharded ones (FSDP2), on any number of ranks
>>> dcp.convert("dcp-folder", "star-in", like="star-out")      # then: star run --resume star-in

Needs PyTorch 2.6 or newer. docs/checkpoints.md has the names of tensors.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as pt
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.futures import Future

from . import _link
from ._link import EXIT_DATA, EXIT_DISAGREE, EXIT_USAGE, StarError

__all__ = ["StarReader", "convert", "load"]

_MISSING = 66
_TYPES = {
    "": torch.float32,
    "F32": torch.float32,
    "F64": torch.float64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "C128": torch.complex128,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_SLOTS = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # those with PyTorch's names


class _Piece(NamedTuple):
    """Elements of a flat vector in a file: from first to end."""

    path: str
    at: int  # bytes, of first
    first: int
    end: int


class _Stored(NamedTuple):
    shape: Tuple[int, ...]
    dtype: torch.dtype
    begin: int  # bytes in the flat vector
    pieces: Sequence[_Piece]


def _header(path: str) -> Tuple[Dict[str, Any], int]:
    """The header of a safetensors file, and where its data begin."""
    try:
        with open(path, "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            if n > os.path.getsize(path):
                raise ValueError("its header is longer than the file")
            head = json.loads(f.read(n))
    except FileNotFoundError:
        raise StarError("%s is missing: star checkpoint verify %s lists what is damaged" % (path, os.path.dirname(path)), _MISSING) from None
    except (OSError, ValueError, struct.error) as e:
        raise StarError("%s is damaged: %s; star checkpoint verify says more" % (path, e), EXIT_DATA) from None
    return head, 8 + n


def _newest(place: str) -> str:
    """The checkpoint at a place: one, a folder of them, or the folder of a job."""
    for folder in (place, os.path.join(place, "checkpoints")):
        if os.path.exists(os.path.join(folder, "manifest.json")):
            return folder
        found = []
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            version, _, life = name[len("ckpt-") :].partition("-g")
            if name.startswith("ckpt-") and version.isdigit() and life.isdigit() and os.path.exists(os.path.join(folder, name, "manifest.json")):
                found.append((int(life), int(version), os.path.join(folder, name)))
        if found:
            return max(found)[2]
    raise StarError("%s has no checkpoint of STAR: give a folder with manifest.json, a folder of such folders, or --out of a job" % place, _MISSING)


class StarReader(pt.StorageReader):
    """Reads a checkpoint of STAR: parameters and buffers as ``model.NAME``, the optimizer's state as ``optim.state.NAME.SLOT``, like a state of
    ``{"model": …, "optim": …}``. Other first parts of the names: model and optim; "": none, as in ``model.state_dict()``. A tensor is read in the pieces
    that a rank wants."""

    def __init__(self, place: str, model: str = "model", optim: str = "optim") -> None:
        self.folder = _newest(os.fspath(place))
        try:
            with open(os.path.join(self.folder, "manifest.json"), encoding="utf-8") as f:
                self.manifest: Dict[str, Any] = json.load(f)["manifest"]
            self.tensors = self._tensors(model + "." if model else "", optim + "." if optim else "")
        except (KeyError, TypeError, ValueError) as e:
            raise StarError("%s is damaged: %s: %s; star checkpoint verify says more" % (os.path.join(self.folder, "manifest.json"), type(e).__name__, e), EXIT_DATA) from None
        self.load_id = ""

    def _tensors(self, model: str, optim: str) -> Dict[str, _Stored]:
        m, out = self.manifest, {}
        vectors: Dict[str, List[_Piece]] = {}
        for shard in m["shards"]:
            path = os.path.join(self.folder, shard["name"])
            head, data = _header(path)
            for name, t in head.items():
                if name != "__metadata__":
                    vectors.setdefault(name, []).append(_Piece(path, data + t["data_offsets"][0], 4 * shard["from"], 4 * shard["to"]))
        for t in m["layout"]:
            shape, begin = tuple(t["shape"]), 4 * t["offset"]
            out[model + t["name"]] = _Stored(shape, torch.float32, begin, vectors["params"])
            state = "%sstate.%s." % (optim, t["name"])
            for slot in _SLOTS:
                if slot in vectors:
                    out[state + slot] = _Stored(shape, torch.float32, begin, vectors[slot])
            if "exp_avg" in vectors:
                out[state + "step"] = _Stored((), torch.float32, m["steps"], ())
        if m.get("buffer_layout"):
            path = os.path.join(self.folder, m["buffers"]["name"])
            head, data = _header(path)
            ((_, whole),) = [(name, t) for name, t in head.items() if name != "__metadata__"]
            begin, end = whole["data_offsets"]
            for t in m["buffer_layout"]:
                out[model + t["name"]] = _Stored(tuple(t["shape"]), _TYPES[t.get("dtype", "")], 4 * t["offset"], [_Piece(path, data + begin, 0, end - begin)])
        return out

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            raise StarError("a StarReader has its folder already: leave checkpoint_id out", EXIT_USAGE)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: Dict[str, Any] = {}
        for name, t in self.tensors.items():
            size = torch.Size(t.shape)
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype=t.dtype), size, [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])
        return Metadata(tensors, storage_data={MetadataIndex(k): k for k in tensors}, storage_meta=StorageMeta(load_id=self.load_id))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: pt.LoadPlan) -> pt.LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[pt.LoadPlan]) -> List[pt.LoadPlan]:
        return plans

    def read_data(self, plan: pt.LoadPlan, planner: pt.LoadPlanner) -> "Future[None]":
        for item in plan.items:
            part = self._read(item.storage_index.fqn, item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            if target.size() != part.size():
                raise StarError("%s: %s is wanted in the shape %s, and has %s" % (self.folder, item.storage_index.fqn, list(target.size()), list(part.size())), EXIT_DISAGREE)
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """A part of a tensor. Of its first dimension only the rows of the part are read."""
        t = self.tensors[name]
        if not t.shape:
            if not t.pieces:
                return torch.tensor(float(t.begin))
            offsets, lengths = (0,), (1,)
        shape = t.shape or (1,)
        width = torch.empty(0, dtype=t.dtype).element_size()
        row = width
        for n in shape[1:]:
            row *= n
        data = bytearray(row * lengths[0])
        first = t.begin + row * offsets[0]
        got = 0
        for p in t.pieces:
            lo, hi = max(first, p.first), min(first + len(data), p.end)
            if lo < hi:
                with open(p.path, "rb") as f:
                    f.seek(p.at + lo - p.first)
                    got += f.readinto(memoryview(data)[lo - first : hi - first])
        if got != len(data):
            raise StarError("%s: %d of %d bytes of %s are missing: star checkpoint verify %s says where" % (self.folder, len(data) - got, len(data), name, self.folder), EXIT_DATA)
        rows = torch.frombuffer(data, dtype=t.dtype).view(lengths[0], *shape[1:]) if data else torch.empty((lengths[0], *shape[1:]), dtype=t.dtype)
        for d in range(1, len(shape)):
            rows = rows.narrow(d, offsets[d], lengths[d])
        return rows.reshape(torch.Size(lengths) if t.shape else torch.Size(()))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def load(place: str, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None) -> Dict[str, Any]:
    """Loads a checkpoint of STAR into a model, and its optimizer if it is given, on every rank at once; without a process group into this process. Rates and
    other settings of the optimizer stay. Returns the manifest: ``version``, ``samples``, ``optimizer``, …"""
    reader = StarReader(place)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    models, optims = get_state_dict(model, [] if optimizer is None else [optimizer], options=options)
    # Counters of batch normalisation are not in models of Go.
    counters = {"model." + k for k in models if k.endswith("num_batches_tracked")} - set(reader.tensors)
    state = {"model." + k: v for k, v in models.items() if "model." + k not in counters}
    state.update(("optim." + k, v) for k, v in optims.items() if k.startswith("state."))
    _same(reader, state, optimizer is not None)
    try:
        pt.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    except pt.CheckpointException as e:  # DCP wraps what a rank raises
        for failed, _ in e.failures.values():
            if isinstance(failed, StarError):
                raise failed from None
        raise
    for names, first in ((models, "model."), (optims, "optim.")):
        names.update((k, state[first + k]) for k in names if first + k in state)
    set_state_dict(model, [] if optimizer is None else [optimizer], model_state_dict=models, optim_state_dict=optims, options=options)
    return reader.manifest


def _same(reader: StarReader, state: Dict[str, Any], optimizer: bool) -> None:
    """An error if a model or optimizer is another one than the checkpoint's."""
    stored = {k: t for k, t in reader.tensors.items() if optimizer or not k.startswith("optim.")}
    for name in [*state, *stored]:
        if name not in stored:
            slots = sorted({k.rsplit(".", 1)[1] for k in reader.tensors if k.startswith("optim.")})
            why = (
                "its optimizer is %s, with the state %s" % (reader.manifest["optimizer"], ", ".join(slots) or "of its own that PyTorch has no name for")
                if name.startswith("optim.")
                else "it is of another model: %s" % reader.manifest["model"]
            )
            raise StarError("%s has no %s: %s" % (reader.folder, name, why), EXIT_DISAGREE)
        if name not in state:
            raise StarError("%s has %s, which this model and optimizer have not: they are others than those of the job" % (reader.folder, name), EXIT_DISAGREE)
        shape = getattr(state[name], "shape", None)
        if shape is not None and tuple(shape) != stored[name].shape:
            raise StarError("%s has %s in the shape %s, this model in %s: it is of another model" % (reader.folder, name, list(stored[name].shape), list(shape)), EXIT_DISAGREE)


def convert(source: str, folder: str, like: str, model: str = "model", optim: str = "optim") -> str:
    """Makes a checkpoint of STAR in a folder of one that another trainer has written with DCP, of a state of ``{"model": …, "optim": …}`` or with other first parts
    of names (model, optim; "": none); in this process, without a process group. like: a checkpoint of a STAR job with that model and optimizer. Without a
    state in source the optimizer begins new. Returns the folder of the checkpoint."""
    reader = _dcp_reader(source)
    metadata = reader.read_metadata().state_dict_metadata
    prefix, states = model + "." if model else "", (optim + "." if optim else "") + "state."
    names: Dict[str, str] = {}  # in source: in the file
    for name, t in metadata.items():
        if not isinstance(t, TensorStorageMetadata):
            continue
        if name.startswith(states):
            names[name] = "optim.state." + name[len(states) :]
        elif name.startswith(prefix):
            names[name] = name[len(prefix) :]
    if all(to.startswith("optim.state.") for to in names.values()):
        some = ", ".join(sorted(metadata)[:5]) or "none"
        raise StarError("%s has no tensors %s…: its names are %s, …; give model= and optim=" % (source, prefix, some), EXIT_DATA)
    state: Dict[str, Any] = {k: torch.empty(metadata[k].size, dtype=metadata[k].properties.dtype) for k in names}  # type: ignore[union-attr]
    pt.load(state, storage_reader=reader, no_dist=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = os.path.join(scratch, "state.safetensors")
        _write(file, {names[k]: v for k, v in state.items()})
        done = subprocess.run([_link._agent(), "checkpoint", "convert", file, folder, "--like", like, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise StarError(done.stderr.strip().replace(file, os.fspath(source)), done.returncode)
    to: str = json.loads(done.stdout)["to"]
    return to


def _dcp_reader(source: str) -> Any:
    if os.path.exists(os.path.join(source, ".metadata")):
        return pt.FileSystemReader(source)
    if os.path.isdir(source) and any(n.endswith(".safetensors") for n in os.listdir(source)):
        try:
            from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        except ImportError as e:
            raise StarError("%s has safetensors, which DCP reads from PyTorch 2.8 on, with the package safetensors: %s" % (source, e), EXIT_USAGE) from None
        return HuggingFaceStorageReader(source)
    raise StarError("%s has no checkpoint of torch.distributed.checkpoint: neither .metadata nor files *.safetensors" % source, _MISSING)


def _write(path: str, tensors: Dict[str, torch.Tensor]) -> None:
    """A safetensors file."""
    types = {v: k for k, v in _TYPES.items() if k}
    head: Dict[str, Any] = {}
    at = 0
    for name, t in tensors.items():
        if t.dtype not in types:
            raise StarError("%s is %s, which a checkpoint of STAR cannot have" % (name, t.dtype), EXIT_DISAGREE)
        head[name] = {"dtype": types[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.numel() * t.element_size()]}
        at += t.numel() * t.element_size()
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            if t.numel():
                f.write(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
