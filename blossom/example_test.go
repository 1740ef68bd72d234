package blossom_test

import (
	"fmt"

	"star/blossom"
)

// Five tasks: those that get on well share a machine.
func Example() {
	edges := []blossom.Edge{{U: 0, V: 1, Weight: 0.9}, {U: 1, V: 2, Weight: 1}, {U: 2, V: 3, Weight: 0.8}, {U: 2, V: 4, Weight: 0.7}}
	m, err := blossom.Solve(5, edges)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v weigh %.1f\n", m.Pairs(), m.Weight)
	fmt.Println("nothing weighs more:", blossom.Verify(5, edges, m) == nil)
	_, err = blossom.Match(5, edges, blossom.Perfect)
	fmt.Println(err)
	// Output:
	// [[0 1] [2 3]] weigh 1.7
	// nothing weighs more: true
	// blossom: no perfect matching: every matching of these 5 vertices leaves at least 1 out
}

// Machine 0 has room for three tasks, machine 1 for one.
func ExampleBMatch() {
	edges := []blossom.Edge{{U: 0, V: 2, Weight: 5}, {U: 0, V: 3, Weight: 4}, {U: 0, V: 4, Weight: 1}, {U: 0, V: 5, Weight: 3}, {U: 1, V: 4, Weight: 2}, {U: 1, V: 5, Weight: 6}}
	chosen, err := blossom.BMatch(6, []int{3, 1, 1, 1, 1, 1}, edges)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range chosen {
		fmt.Print(edges[i].U, "-", edges[i].V, " ")
	}
	// Output: 0-2 0-3 0-4 1-5
}
