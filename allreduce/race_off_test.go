//go:build !race

package allreduce_test

const race = false
