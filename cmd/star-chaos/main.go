// Star-chaos breaks a job on purpose, and says which promises it kept.
// star-chaos --help lists the settings that its users need, --help-all all; docs/chaos.md explains them.
package main

import (
	"star/cmd/internal/chaos/command"
	"star/cmd/internal/daemon"
)

func main() { daemon.Main(command.New()) }
