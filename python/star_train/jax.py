"""STAR for JAX: a worker that computes its gradient as a function of parameters and a batch::

    import jax, star_train.jax as star
    params = star.train(jax.jit(jax.value_and_grad(loss)), params, dataset, optimizer={"name": "adam", "lr": 1e-3}, batch_size=32, epochs=5)

``loss(params, batch)`` is the mean loss of a batch. The parameters are any tree of float32 arrays; the job updates them, by an optimizer in the words of docs/link.md. Parameters
are copied out of the memory that this process shares with its agent, and gradients into it: arrays of JAX do not change, and that memory does.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _link
from ._link import AgentLost, JobError, StarError

__all__ = ["AgentLost", "JobError", "StarError", "train"]


def train(
    value_and_grad: Callable[[Any, Any], Tuple[Any, Any]],
    params: Any,
    dataset: Any,
    *,
    optimizer: "Dict[str, Any]",
    batch_size: int = 32,
    epochs: float = 0,
    collate: Optional[Callable[[List[Any]], Any]] = None,
    evaluate: Optional[Callable[[Any, Any], Tuple[float, int, int]]] = None,
    testset: Any = None,
) -> Any:
    """Trains until the job is over; the parameters at its end.

    dataset and testset have ``len()`` and ``[i]``. collate makes a batch of a list of samples; else samples are tuples of arrays, which are stacked. evaluate takes
    parameters and a batch of testset, and gives the sum of the losses, how many predictions are right, and how many there are.
    """
    if not _link.wanted():
        raise StarError("star_train.jax: this process is part of no job: start it by star run --workers N -- python …", _link.EXIT_USAGE)
    _link.watch()
    collate = collate or _stack
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    names = [".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path) or "params" for path, _ in leaves]
    shapes = [np.shape(leaf) for _, leaf in leaves]
    for name, (_, leaf) in zip(names, leaves):
        if np.asarray(leaf).dtype != np.float32:
            raise StarError("parameter %s is %s: the job exchanges float32" % (name, np.asarray(leaf).dtype), _link.EXIT_DISAGREE)
    about = {
        "name": "params", "program": "JAX " + jax.__version__, "layout": [{"name": n, "shape": list(s)} for n, s in zip(names, shapes)],
        "data": type(dataset).__name__, "samples": len(dataset), "tests": 0 if testset is None else len(testset),
        "batch": batch_size, "epochs": epochs, "optimizer": optimizer, "stack": _link.show_stacks(),
    }  # fmt: skip
    link = _link.connect(_link.Link)
    m = link.begin(about)
    own, grad = _views(m.map, m.params, shapes), _views(m.map, m.grad, shapes)
    for view, (_, leaf) in zip(own, leaves):
        view[...] = np.asarray(leaf)
    link.ready()

    def now() -> Any:
        return jax.tree_util.tree_unflatten(tree, [jnp.array(v, copy=True) for v in own])

    params = now()
    while True:
        f = link.receive()
        begun = time.perf_counter_ns()
        if f.kind == _link.COMPUTE:
            batch = collate([dataset[i] for i in _link.indices(f)])
            params = now()
            loaded = time.perf_counter_ns()
            loss, grads = value_and_grad(params, batch)
            out, shape = jax.tree_util.tree_flatten(grads)
            if shape != tree:
                raise StarError("the gradient is %s, the parameters are %s: value_and_grad gives a loss and a tree like the parameters" % (shape, tree), _link.EXIT_USAGE)
            for view, g in zip(grad, out):
                view[...] = np.asarray(g)
            link.done(f.a, float(loss), loaded - begun, time.perf_counter_ns() - loaded)
        elif f.kind == _link.EVALUATE:
            if evaluate is None:
                raise StarError("the job asks for an evaluation: give star_train.jax.train(evaluate=…)", _link.EXIT_USAGE)
            params = now()
            total, right, count = evaluate(params, collate([testset[i] for i in _link.indices(f)]))
            link.evaluated(f.a, float(total), int(right), int(count))
        elif f.kind == _link.STOP:
            return now()


def _views(memory: Any, at: int, shapes: Sequence[Tuple[int, ...]]) -> List[Any]:
    out = []
    for shape in shapes:
        n = int(np.prod(shape))
        out.append(np.frombuffer(memory, dtype=np.float32, count=n, offset=at).reshape(shape) if n else np.zeros(shape, np.float32))
        at += 4 * n
    return out


def _stack(samples: List[Any]) -> Any:
    return tuple(np.stack(part) for part in zip(*samples))
