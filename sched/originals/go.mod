module star/sched/originals

go 1.26.0

require star v0.0.0

require gonum.org/v1/gonum v0.17.0 // indirect

replace star => ../..
