// Star-ps hosts shards of a job's parameters; the process of rank 0 also coordinates the job.
// star-ps --help lists the settings that its users need, --help-all all; docs/configure.md explains them.
package main

import "star/cmd/internal/daemon"

func main() { daemon.Main(daemon.Server("star-ps")) }
