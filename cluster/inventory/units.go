package inventory

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

type unit struct {
	name string
	n    float64
}

var (
	byteUnits = []unit{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}
	rateUnits = []unit{{"kbit/s", 1e3 / 8}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}, {"Tbit/s", 1e12 / 8}, {"bit/s", 1. / 8}, {"KiB/s", 1 << 10}, {"MiB/s", 1 << 20},
		{"GiB/s", 1 << 30}, {"kB/s", 1e3}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"B/s", 1}, {"", 1}}
	coreUnits = []unit{{"cores", 1}, {"core", 1}, {"%", 0.01}, {"", 1}}
)

// amount reads a number with one of the units, the empty one last.
func amount(text string, units []unit, example string) (float64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(strings.TrimSpace(text), u.name)
		if !ok {
			continue
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not understood; write such as %s", text, example)
		case math.IsNaN(x) || math.IsInf(x, 0) || x < 0 || x*u.n > 1e18:
			return 0, fmt.Errorf("%q must be a number of at least 0 and at most 1e18", text)
		}
		return x * u.n, nil
	}
	return 0, fmt.Errorf("%q is not understood; write such as %s", text, example)
}

// Bytes reads a number of bytes: 4096, 64KiB, 1.5GB.
func Bytes(text string) (float64, error) { return amount(text, byteUnits, "64GiB or 500MB") }

// Rate reads bytes per second: 10Gbit/s, 100MB/s, 1e8.
func Rate(text string) (float64, error) { return amount(text, rateUnits, "10Gbit/s or 100MB/s") }

// Cores reads a number of cores: 8, "8 cores", 50%.
func Cores(text string) (float64, error) { return amount(text, coreUnits, `8, "8 cores" or 50%`) }

// Part reads a part of a GPU: 1, 0.5, 3/7, or the name of a MIG profile such as 3g.20gb: its first number counts
// sevenths.
func Part(text string) (float64, error) {
	bad := fmt.Errorf("%q is no part of a GPU; write such as 1, 0.5, 3/7 or 3g.20gb", text)
	text = strings.TrimSpace(text)
	over := 1.0
	if slices, memory, ok := strings.Cut(text, "g."); ok && strings.HasSuffix(memory, "gb") {
		if _, err := strconv.ParseUint(strings.TrimSuffix(memory, "gb"), 10, 16); err != nil {
			return 0, bad
		}
		text, over = slices, 7
	} else if a, b, ok := strings.Cut(text, "/"); ok {
		n, err := strconv.ParseUint(strings.TrimSpace(b), 10, 16)
		if err != nil || n == 0 {
			return 0, bad
		}
		text, over = strings.TrimSpace(a), float64(n)
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0 && x <= over) {
		return 0, bad
	}
	return x / over, nil
}

// profileMemory is the memory in the name of a MIG profile, in bytes: 20e9 for 3g.20gb, which is less than such a slice
// has. 0: the name has no memory.
func profileMemory(text string) float64 {
	_, after, _ := strings.Cut(strings.TrimSpace(text), "g.")
	memory, ok := strings.CutSuffix(after, "gb")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(memory, 10, 16)
	if err != nil {
		return 0
	}
	return float64(n) * 1e9
}
