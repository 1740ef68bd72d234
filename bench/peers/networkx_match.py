#!/usr/bin/env python3
"""Time NetworkX's maximum-weight matching.

    networkx_match.py FILE RUNS

FILE has a line "u v weight" for each edge; weights are whole numbers. Prints
{"times_s", "weight"}; the graph is built once and is not in the times. Needs NetworkX
(Debian: python3-networkx).
"""
import json
import sys
import time

import networkx

graph = networkx.Graph()
with open(sys.argv[1]) as lines:
    for line in lines:
        u, v, weight = line.split()
        graph.add_edge(int(u), int(v), weight=int(weight))
times = []
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    pairs = networkx.max_weight_matching(graph)
    times.append(time.perf_counter() - start)
print(json.dumps({"times_s": times, "weight": sum(graph[u][v]["weight"] for u, v in pairs)}))
