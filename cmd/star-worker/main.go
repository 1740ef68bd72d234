// Star-worker computes gradients for a job.
// star-worker --help lists its settings; docs/operations.md explains them.
package main

import "star/cmd/internal/daemon"

func main() { daemon.Main(daemon.Worker("star-worker")) }
