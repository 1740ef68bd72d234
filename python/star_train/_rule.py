"""An optimizer of PyTorch in the words of the job."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, cast

import torch

from . import _link
from ._link import StarError


def settings(optimizer: Any, scheduled: bool = False) -> List[Any]:
    """What a scheduler could change of the groups; the rate only if none is known."""
    names = ("weight_decay", "momentum", "betas") if scheduled else ("lr", "weight_decay", "momentum", "betas")
    return [{k: v for k, v in g.items() if k in names} for g in optimizer.param_groups]


def scheduled(optimizer: Any) -> bool:
    """Whether a scheduler was made for the optimizer: it counts its steps (torch 1.13: _with_counter)."""
    step = vars(optimizer).get("step")
    return hasattr(step, "_with_counter") or hasattr(step, "_wrapped_by_lr_sched")


SLOTS = {"sgd": (), "momentum": ("momentum_buffer",), "nesterov": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")}


def steps(optimizer: torch.optim.Optimizer, name: str, named: Sequence[Tuple[str, torch.Tensor]]) -> Optional[int]:
    """The number of steps in the optimizer's state; None: it has no state. A state that the job cannot continue with is an error."""

    def no(what: str, parameter: str) -> StarError:
        return StarError(
            "the optimizer remembers %s of %s, with which the job cannot go on: give star.attach an optimizer that is new, or own=True, in a job with --arch allreduce"
            % (what, parameter),
            _link.EXIT_USAGE,
        )

    made: Dict[int, str] = {}
    for parameter, p in named:
        state = {k: v for k, v in optimizer.state.get(p, {}).items() if v is not None}
        if not state:
            continue
        for key, v in state.items():
            if key != "step" and key not in SLOTS[name]:
                raise no(key, parameter)
            if key != "step" and (not isinstance(v, torch.Tensor) or v.shape != p.shape):
                raise no("a %s of another shape" % key, parameter)
        made.setdefault(int(state.get("step", 0)), parameter)
    if len(made) > 1:
        (a, one), (b, other) = list(made.items())[:2]
        raise no("%d steps of %s, and %d" % (a, one, b), other)
    return next(iter(made), None) if SLOTS[name] else None


def slots(optimizer: torch.optim.Optimizer, name: str, params: Sequence[Any], whole: Callable[[Any], Any]) -> bytes:
    """What the optimizer remembers, vector after vector, as the link has it. whole makes the tensor of what the optimizer has."""
    out = []
    for slot in SLOTS[name]:
        for _, p, _ in params:
            v = optimizer.state.get(p, {}).get(slot)
            out.append((torch.zeros(p.shape) if v is None else whole(v)).detach().to("cpu", torch.float32).reshape(-1))
    return cast(bytes, torch.cat(out).numpy().tobytes()) if out else b""


def rule(optimizer: torch.optim.Optimizer, params: Sequence[Any], rates: Optional[List[float]] = None) -> "Dict[str, Any]":
    """The optimizer in the words of the job; rates of its groups, if not those that it has now."""

    def no(what: str) -> StarError:
        return StarError(
            "%s %s: the job updates by SGD, Adam and AdamW, or by --optimizer muon. star.attach(…, own=True) and --arch allreduce have any optimizer make its steps in this process"
            % (type(optimizer).__name__, what),
            _link.EXIT_USAGE,
        )

    groups = optimizer.param_groups
    first = groups[0]

    def same(*names: str) -> None:
        for n in names:
            if any(g.get(n) != first.get(n) for g in groups):
                raise no("has groups that differ in %s, not only in lr and weight_decay" % n)

    if any(g.get("maximize") for g in groups):
        raise no("with maximize")
    kinds = [k.__name__ for k in type(optimizer).__mro__]
    if "SGD" in kinds:
        same("momentum", "nesterov", "dampening")
        if first.get("dampening"):
            raise no("with dampening")
        name = "sgd" if not first["momentum"] else "nesterov" if first["nesterov"] else "momentum"
        rule: Dict[str, Any] = {"name": name}
        if first["momentum"]:
            rule["momentum"] = float(first["momentum"])
    elif "AdamW" in kinds or "Adam" in kinds:
        same("betas", "eps")
        if any(g.get("amsgrad") for g in groups):
            raise no("with amsgrad")
        decoupled = "AdamW" in kinds or bool(first.get("decoupled_weight_decay"))
        rule = {"name": "adamw" if decoupled else "adam", "beta1": float(first["betas"][0]), "beta2": float(first["betas"][1]), "epsilon": float(first["eps"])}
    else:
        raise no("is unknown to it")
    if rates is None:
        rates = [float(g["lr"]) for g in groups]
    base = next((r for r in rates if r > 0), 0.0)
    rule["lr"] = base
    rule["weight_decay"] = float(first["weight_decay"])
    of = {id(p): (g, r) for g, r in zip(groups, rates) for p in g["params"]}
    out: List[Dict[str, Any]] = []
    for _, p, at in params:
        g, rate = of[id(p)]
        factor = rate / base if base else 1.0
        decay = float(g["weight_decay"])
        if out and out[-1]["factor"] == factor and out[-1]["weight_decay"] == decay:
            out[-1]["to"] = at + p.numel()
        else:
            out.append({"from": at, "to": at + p.numel(), "factor": factor, "weight_decay": decay})
    if len(out) > 1:
        rule["groups"] = out
    elif out:
        rule["weight_decay"] = out[0]["weight_decay"]
    return rule
