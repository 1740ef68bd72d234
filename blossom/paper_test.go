package blossom

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// Graphs with a known best matching: from the STAR artefact's matching (its results agree with NetworkX), vertices from
// 1 as there.
func TestArtefactGraphs(t *testing.T) {
	for _, c := range []struct {
		edges  []Edge
		weight float64
		want   string
	}{
		{[]Edge{{1, 2, 5}, {2, 3, 11}, {3, 4, 5}}, 11, "[[2 3]]"},
		{[]Edge{{1, 2, 9}, {2, 3, 10}, {3, 4, 9}}, 18, "[[1 2] [3 4]]"},
		{[]Edge{{2, 3, 6}, {5, 4, 3}, {4, 2, 7}}, 9, "[[2 3] [4 5]]"},
		{[]Edge{{1, 2, 9}, {1, 3, 8}, {2, 3, 10}, {1, 4, 5}, {4, 5, 4}, {1, 6, 3}}, 17, "[[1 6] [2 3] [4 5]]"},
		{[]Edge{{1, 2, 2}, {1, 3, -2}, {2, 3, 1}, {2, 4, -1}, {3, 4, -6}}, 2, "[[1 2]]"},
	} {
		m, err := Solve(7, c.edges)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(m.Pairs()); got != c.want || m.Weight != c.weight || m.Gap != 0 {
			t.Errorf("%v: %s, weight %v, gap %v; want %s, %v, 0", c.edges, got, m.Weight, m.Gap, c.want, c.weight)
		}
		if err := Verify(7, c.edges, m); err != nil {
			t.Error(err)
		}
	}
}

// gamma is how well two jobs interleave on one GPU, each with c of processor and g
// of GPU per iteration: Zhao et al., Muri, SIGCOMM 2022, section 4.2, for two jobs.
func gamma(a, b [2]float64) float64 {
	period := max(a[0], b[1]) + max(a[1], b[0])
	return (a[0] + a[1] + b[0] + b[1]) / (2 * period)
}

func packing(jobs [][2]float64) (edges []Edge) {
	for i := range jobs {
		for j := range i {
			edges = append(edges, Edge{i, j, gamma(jobs[i], jobs[j])})
		}
	}
	return edges
}

// Weights that are quotients are what the artefact's matching does not end with.
func TestPacking(t *testing.T) {
	four := [][2]float64{{35, 58}, {36, 89}, {21, 33}, {150, 86}}
	for _, c := range []struct {
		i, j int
		want float64
	}{{1, 2, .716}, {1, 3, .764831}, {1, 0, .741497}, {2, 3, .614407}, {2, 0, .790323}, {3, 0, .697034}} {
		if got := gamma(four[c.i], four[c.j]); math.Abs(got-c.want) > 5e-4 {
			t.Errorf("γ of %d and %d is %v, want %v", c.i, c.j, got, c.want)
		}
	}
	// Workers' active time and the GPU's, in ms: the artefact's gpu_data.txt.
	names := []string{"alexnet", "resnet20", "resnet56", "vgg13", "vgg16", "densenet121", "googlenet", "mobilenet", "lstm", "transformer"}
	models := [][2]float64{{200, 55}, {261, 79}, {567, 88}, {308, 103}, {365, 122}, {900, 168}, {1175, 147}, {609, 131}, {475, 143}, {480, 164}}
	rest := slices.Clone(models) // with this one it runs for ever
	for i := range rest {
		rest[i][0] -= rest[i][1]
	}
	for _, c := range []struct {
		jobs  [][2]float64
		names []string
		sum   float64
		want  []string
	}{
		{four, []string{"0", "1", "2", "3"}, 1.555153089, []string{"0-2", "1-3"}},
		{models, names, 3.148022450, []string{"densenet121-googlenet", "resnet56-mobilenet", "alexnet-transformer", "resnet20-lstm", "vgg13-vgg16"}},
		{rest, names, 0, nil},
	} {
		edges := packing(c.jobs)
		m, err := Solve(len(c.jobs), edges)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(len(c.jobs), edges, m); err != nil {
			t.Error(err)
		}
		var got []string
		for _, p := range m.Pairs() {
			got = append(got, c.names[p[0]]+"-"+c.names[p[1]])
		}
		if c.want == nil { // nothing is published
			best, _, _ := brute(len(c.jobs), edges, 0)
			if math.Abs(m.Weight-best) > 1e-12 {
				t.Errorf("%v weigh %v; the best is %v", got, m.Weight, best)
			}
			continue
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if math.Abs(m.Weight-c.sum) > 5e-10 || !slices.Equal(got, c.want) {
			t.Errorf("%v weigh %.9f; want %v, %.9f", got, m.Weight, c.want, c.sum)
		}
	}
}
