"""REINFORCE, without a data set: the job decides how many episodes of this worker make a step.

star run --workers 4 -- python reinforce.py

A walker on a line of cells begins anywhere and wins by reaching the goal in time; the goal is at the left or at the right end, which the walker observes.
"""

import argparse

import torch
import torch.nn as nn

import star_train.torch as star

CELLS, TIME = 9, 12


def observe(cell, goal):
    x = torch.zeros(CELLS + 1)
    x[cell], x[CELLS] = 1, goal
    return x


def play(policy, greedy=False):
    """An episode: the sum of the logarithms of what was chosen, and whether it was won."""
    cell, goal = int(torch.randint(1, CELLS - 1, ())), int(torch.randint(0, 2, ()))
    chosen = torch.zeros(())
    for _ in range(TIME):
        choices = torch.distributions.Categorical(logits=policy(observe(cell, goal)))
        action = choices.probs.argmax() if greedy else choices.sample()
        chosen = chosen + choices.log_prob(action)
        cell = min(max(cell + (1 if action else -1), 0), CELLS - 1)
        if cell == goal * (CELLS - 1):
            return chosen, 1.0
    return chosen, 0.0


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--episodes", type=int, default=1600, help="of an epoch, of all workers together")
    args.add_argument("--epochs", type=int, default=2)
    args.add_argument("--batch-size", type=int, default=8)
    args = args.parse_args()
    torch.manual_seed(1)
    policy = nn.Sequential(nn.Linear(CELLS + 1, 32), nn.Tanh(), nn.Linear(32, 2))
    opt = star.attach(policy, torch.optim.Adam(policy.parameters(), lr=1e-2))

    def test(batch):
        wins = sum(play(policy, greedy=True)[1] for _ in batch)
        return len(batch) - wins, int(wins), len(batch)

    star.evaluate(test, range(100))
    baseline = 0.0
    for epoch in range(args.epochs):
        for episodes in star.steps(args.batch_size, samples=args.episodes, epochs=args.epochs):
            played = [play(policy) for _ in range(episodes)]
            loss = -sum(chosen * (won - baseline) for chosen, won in played) / episodes
            opt.zero_grad()
            loss.backward()
            opt.step()
            baseline += 0.1 * (sum(won for _, won in played) / episodes - baseline)
        print("epoch %d, %.0f %% won" % (epoch, 100 * baseline))


if __name__ == "__main__":
    main()
