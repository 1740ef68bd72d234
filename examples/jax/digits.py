"""A small network in JAX: star run --workers 4 --epochs 5 -- python digits.py"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import star_train.jax as star


class Digits:
    """Ten noisy patterns."""

    def __init__(self, count, seed):
        draw = np.random.default_rng(seed)
        self.y = draw.integers(0, 10, count)
        patterns = np.random.default_rng(1).normal(size=(10, 64))
        self.x = (patterns[self.y] + 1.5 * draw.normal(size=(count, 64))).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def network(params, x):
    return jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"]) @ params["out"]["w"] + params["out"]["b"]


def losses(params, batch):
    scores = jax.nn.log_softmax(network(params, batch[0]))
    return -jnp.take_along_axis(scores, batch[1][:, None], 1)


def evaluate(params, batch):
    right = (network(params, batch[0]).argmax(1) == batch[1]).sum()
    return losses(params, batch).sum(), right, len(batch[1])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--count", type=int, default=20000)
    args.add_argument("--epochs", type=float, default=5)
    args = args.parse_args()
    draw = np.random.default_rng(5)
    params = {
        "hidden": {"w": jnp.asarray(0.1 * draw.normal(size=(64, 32)), jnp.float32), "b": jnp.zeros(32)},
        "out": {"w": jnp.asarray(0.1 * draw.normal(size=(32, 10)), jnp.float32), "b": jnp.zeros(10)},
    }
    grad = jax.jit(jax.value_and_grad(lambda p, b: losses(p, b).mean()))
    star.train(
        grad, params, Digits(args.count, 2), optimizer={"name": "adam", "lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        batch_size=32, epochs=args.epochs, evaluate=evaluate, testset=Digits(args.count // 10, 3),
    )  # fmt: skip


if __name__ == "__main__":
    main()
