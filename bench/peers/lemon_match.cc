// Times LEMON's maximum-weight matching: lemon_match FILE RUNS. FILE has a line "u v weight" for each
// edge; weights are whole numbers. Prints {"times_s", "weight"}; the graph is built once and is not
// in the times. Debian: liblemon-dev.
#include <lemon/matching.h>
#include <lemon/smart_graph.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char **argv) {
  typedef lemon::SmartGraph Graph;
  typedef Graph::EdgeMap<long long> Weights;
  FILE *file = argc == 3 ? std::fopen(argv[1], "r") : nullptr;
  if (!file) return std::fprintf(stderr, "lemon_match FILE RUNS\n"), 2;
  Graph graph;
  Weights weights(graph);
  std::vector<Graph::Node> nodes;
  int u, v;
  long long weight;
  while (std::fscanf(file, "%d %d %lld", &u, &v, &weight) == 3) {
    while (int(nodes.size()) <= std::max(u, v)) nodes.push_back(graph.addNode());
    weights[graph.addEdge(nodes[u], nodes[v])] = weight;
  }
  std::printf("{\"times_s\": [");
  for (int i = 0, runs = std::atoi(argv[2]); i < runs; i++) {
    auto start = std::chrono::steady_clock::now();
    lemon::MaxWeightedMatching<Graph, Weights> matching(graph, weights);
    matching.run();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%s%.9f", i ? ", " : "", took.count());
    weight = matching.matchingWeight();
  }
  std::printf("], \"weight\": %lld}\n", weight);
}
