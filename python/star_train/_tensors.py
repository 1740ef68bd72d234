"""Whether the tensors of a script are still those that the job trains.

A script may replace a tensor (``p.data = …``, ``model.double()``, a buffer by assignment) or change one in place.
Each step compares identity and version of all tensors, which takes 8 to 10 µs for 100 of them (``bench/torch_checks.py``).
What is written through ``p.data`` changes no version: reading ``p.data`` keeps a copy of the parameter, which the next step compares.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, cast

import torch

_version: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
_address = torch.Tensor.data_ptr
_data: Any = cast(Any, torch.Tensor).data  # the descriptor, whatever a class has in its place


def data(t: torch.Tensor) -> torch.Tensor:
    """``t.data``, without a trace of having been read."""
    out: torch.Tensor = _data.__get__(t)
    return out


def set_data(t: torch.Tensor, value: torch.Tensor) -> None:
    """``t.data = value``, without a trace of it."""
    _data.__set__(t, value)


class _Copy(NamedTuple):
    value: torch.Tensor
    alias: Callable[[], Optional[torch.Tensor]]  # a weak reference to what was read: as long as it lives, the parameter may be written through it


class Changes(NamedTuple):
    """Which tensors: parameters come first, then the rest."""

    replaced: List[int]  # the model has another object there
    moved: List[int]  # the object has other storage
    written: List[int]  # parameters that have other values in the same storage


class Tensors:
    """The tensors that a job and a script share. versions: whether writing to a parameter is a change, too."""

    def __init__(self, model: torch.nn.Module, params: Sequence[torch.Tensor], rest: Sequence[torch.Tensor], versions: bool) -> None:
        places: Dict[int, Any] = {}
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, t in tensors.items():
                    if t is not None:
                        places.setdefault(id(t), (tensors, name))
        self.tensors: List[torch.Tensor] = [*params, *rest]
        self._dicts = [places[id(t)][0] for t in self.tensors]
        self._names = [places[id(t)][1] for t in self.tensors]
        # Comparing whole dicts takes half the time of looking up each name. Python compares the values with == only where
        # they are not identical, and the result of == of two tensors is no single truth value, unless both have one element.
        self._owners = [m._parameters for m in model.modules() if m._parameters]
        owned = set(map(id, self._owners))
        self._looked_up = [i for i, t in enumerate(self.tensors) if id(self._dicts[i]) not in owned or t.numel() == 1]
        self.kinds = [self.kind(t) for t in self.tensors]
        self._at = {id(t): i for i, t in enumerate(self.tensors)}
        self._count = len(params)
        self._compared = versions
        self._moved: Set[int] = set()
        self._copies: Dict[int, _Copy] = {}
        self.watching = False
        self.known = False  # addresses and versions are those of now
        self.settle()

    @staticmethod
    def kind(t: torch.Tensor) -> str:
        return "%s of %s on %s" % (list(t.shape), str(t.dtype)[6:], t.device)

    def settle(self) -> None:
        """Changes are those from now on."""
        if not self.known:
            self._addresses = list(map(_address, self.tensors[self._count :]))
            self._versions = list(map(_version, self.tensors[: self._count])) if self._compared else []
            self._version_sum = sum(self._versions)
            self._owned = list(map(dict.copy, self._owners))
            self._some_dicts = [self._dicts[i] for i in self._looked_up]
            self._some_names = [self._names[i] for i in self._looked_up]
            self._some = [self.tensors[i] for i in self._looked_up]
        self._moved.clear()
        copies, self._copies = self._copies, {}
        for i, copy in copies.items():
            alias = copy.alias()
            if alias is not None:
                self._copies[i] = _Copy(data(self.tensors[i]).clone(), copy.alias)

    def put(self, i: int, t: torch.Tensor) -> None:
        """Another object has taken the place of a tensor."""
        del self._at[id(self.tensors[i])]
        self.tensors[i], self._at[id(t)] = t, i

    def now(self, i: int) -> Optional[torch.Tensor]:
        """What has the place of a tensor in the model; None: nothing."""
        out: Optional[torch.Tensor] = self._dicts[i].get(self._names[i])
        return out

    def read(self, p: torch.Tensor, alias: torch.Tensor) -> None:
        """The script has read ``p.data``."""
        i = self._at.get(id(p), self._count)
        if i < self._count and self._compared:
            before = self._copies.get(i)
            self._copies[i] = _Copy(data(p).clone() if before is None else before.value, weakref.ref(alias))

    def written(self, p: torch.Tensor) -> None:
        """The script has set ``p.data``."""
        if id(p) in self._at:
            self._moved.add(self._at[id(p)])

    def keep(self) -> None:
        """The script is about to write parameters, maybe with what they have."""
        for i in range(self._count if self._compared else 0):
            if i not in self._copies:
                self._copies[i] = _Copy(data(self.tensors[i]).clone(), _nothing)

    def _same_objects(self) -> bool:
        """Whether the model has the same tensors as before. False: it may have others."""
        try:
            same: bool = self._owners == self._owned
        except Exception:  # == of two different tensors
            return False
        return same and all(map(operator.is_, map(dict.get, self._some_dicts, self._some_names), self._some))

    def changes(self) -> Optional[Changes]:
        """What has changed since :meth:`settle`; None: nothing."""
        tensors, n = self.tensors, self._count
        still = self._same_objects() and not self._moved and list(map(_address, tensors[n:])) == self._addresses
        # Versions only grow, so that equal sums mean equal versions.
        if still and not self._copies and (not self._compared or sum(map(_version, tensors[:n])) == self._version_sum):
            self.known = True  # the job writes the memory, which changes neither
            return None
        self.known = False
        replaced = [i for i in range(len(tensors)) if self.now(i) is not tensors[i]]
        moved = self._moved | {n + k for k, (t, a) in enumerate(zip(tensors[n:], self._addresses)) if t.data_ptr() != a}
        written = []
        for i, version in enumerate(self._versions):
            copy = self._copies.get(i)
            if copy is not None and i not in moved:
                if not _equal(copy.value, data(tensors[i])):
                    written.append(i)
            elif tensors[i]._version != version:
                written.append(i)
        if not (replaced or moved or written):
            return None
        return Changes(replaced, sorted(moved - set(replaced)), written)


def _nothing() -> None:
    return None


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


_watched: Optional[Tensors] = None


def watch(tensors: Optional[Tensors]) -> None:
    """Hears of ``p.data`` and of ``load_state_dict`` from now on; None: of none any more."""
    global _watched
    _watched = tensors
    if tensors is None:
        if "data" in torch.nn.Parameter.__dict__:
            delattr(torch.nn.Parameter, "data")
        torch.nn.Module.load_state_dict = _load_state_dict  # type: ignore[method-assign]
        return
    setattr(torch.nn.Parameter, "data", property(_get, _set))  # noqa: B010
    torch.nn.Module.load_state_dict = _loading  # type: ignore[method-assign]


def _get(p: torch.Tensor) -> torch.Tensor:
    alias = data(p)
    if _watched is not None and _watched.watching:
        _watched.read(p, alias)
    return alias


def _set(p: torch.Tensor, value: torch.Tensor) -> None:
    if _watched is not None and _watched.watching:
        _watched.written(p)
    set_data(p, value)


_load_state_dict: Any = torch.nn.Module.load_state_dict


def _loading(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    if _watched is not None and _watched.watching:
        _watched.keep()
    return _load_state_dict(self, *args, **kwargs)
