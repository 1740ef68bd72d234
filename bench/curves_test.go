package bench

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestRoundTicks: marks are at round numbers, of both ends those that are round, and there are four to eleven.
func TestRoundTicks(t *testing.T) {
	for _, c := range []struct {
		min, max float64
		want     string
	}{
		{0, 100, "0 10 20 30 40 50 60 70 80 90 100"},
		{0, 320, "0 50 100 150 200 250 300"},
		{0, 91, "0 10 20 30 40 50 60 70 80 90"},
		{0, 1.3, "0 0.2 0.4 0.6 0.8 1 1.2"},
		{-3, 3, "-3 -2 -1 0 1 2 3"},
		{7, 7, "7"},
	} {
		var got []string
		for _, tick := range (roundTicks{}).Ticks(c.min, c.max) {
			got = append(got, tick.Label)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%v to %v: %s, want %s", c.min, c.max, text, c.want)
		}
	}
}

// TestPlotCurves: the names of many curves are right of the area in which they are drawn, one below the other, and the
// axis ends at the given value.
func TestPlotCurves(t *testing.T) {
	var curves []Curve
	for i := range 14 {
		curves = append(curves, Curve{"policy" + strconv.Itoa(i), []float64{0, 7}, []float64{0, 40 + float64(i)}})
	}
	path := filepath.Join(t.TempDir(), "a.svg")
	if err := PlotCurves(path, "", "x", "y", false, 100, curves); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := func(label string) (x, y float64) {
		m := regexp.MustCompile(`<text x="([-0-9.]+)" y="([-0-9.]+)"[^>]*>` + label + `</text>`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("there is no %s in %.2000s", label, text)
		}
		x, _ = strconv.ParseFloat(string(m[1]), 64)
		y, _ = strconv.ParseFloat(string(m[2]), 64)
		return x, y
	}
	at("100") // of the axis of y
	end, _ := at("7")
	_, last := at("policy0")
	for i := 1; i < 14; i++ {
		x, y := at("policy" + strconv.Itoa(i))
		if x <= end || y == last {
			t.Errorf("policy%d is at %v, %v; the axis ends at %v, and the name before is at height %v", i, x, y, end, last)
		}
		last = y
	}
}
