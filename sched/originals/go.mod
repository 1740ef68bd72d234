module star/sched/originals

go 1.26.0

require (
	github.com/spf13/cobra v1.10.2
	star v0.0.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)

replace star => ../..
