"""Writes runsort.json: lists, and what Python sorts them to by an order with cycles. python3 runsort.py > runsort.json (made with Python 3.11)"""
import functools
import json
import random

r = random.Random(1)


def compare(a, b):  # what is less than 100 apart is equal
    return int((a - b) / 100)


cases = []
for n in 1, 2, 31, 33, 63, 64, 65, 129, 200, 300:
    for spread in 300, 2000, 20000:
        a = [r.randrange(spread) for _ in range(n)]
        if r.random() < 0.5:  # two runs, which are merged by galloping
            a = sorted(a[: n // 2]) + sorted(a[n // 2 :])
        cases.append([a, sorted(a, key=functools.cmp_to_key(compare))])
print(json.dumps(cases, separators=(",", ":")).replace("]],", "]],\n"))
