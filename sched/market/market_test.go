package market

import (
	"encoding/csv"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"gonum.org/v1/gonum/stat"

	"star/sched/workload"
)

// reference is the folder of the study's data and of what was recomputed from it.
func reference(t *testing.T) string {
	t.Helper()
	dirs := []string{os.Getenv("STAR_DATA")}
	for up := "../../shared/data"; len(up) < 60; up = "../" + up {
		dirs = append(dirs, up)
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "cluster/transient")); d != "" && err == nil {
			return filepath.Join(d, "cluster/transient")
		}
	}
	t.Skip("no data of the study: neither $STAR_DATA/cluster nor shared/data/cluster in a folder above")
	return ""
}

// TestStudy compares all configurations with their means recomputed elsewhere, and prices, savings and lifetimes with
// what is known of them.
func TestStudy(t *testing.T) {
	dir := reference(t)
	s, err := Read(os.DirFS(filepath.Join(dir, "data")))
	if err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want, by float64) {
		t.Helper()
		if !(math.Abs(got-want) <= by*math.Abs(want)) {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	for m, want := range (Prices{K80: 7.1e-5, P100: 1.5305555e-4, V100: 2.3916666e-4, K80Demand: 2.0083e-4, Server: 3.97e-5}) {
		near("price of "+string(m), s.Prices[m], want, 1e-9)
	}
	f, err := os.Open(filepath.Join(dir, "results/config_summary.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	configs := map[string]*Config{}
	for _, c := range s.Configs {
		configs[c.Name] = c
	}
	if len(configs) != len(rows)-1 {
		t.Errorf("%d configurations, want %d", len(configs), len(rows)-1)
	}
	cost := func(c *Config) float64 { return Mean(c.Runs, func(r *Run) float64 { return r.Cost }) }
	hours := func(c *Config) float64 { return Mean(c.Runs, func(r *Run) float64 { return r.Seconds / 3600 }) }
	for _, row := range rows[1:] {
		c := configs[row[0]]
		if c == nil {
			t.Errorf("no configuration %s", row[0])
			continue
		}
		for i, of := range map[int]func(*Run) float64{
			3: func(r *Run) float64 { return r.Seconds / 3600 },
			5: func(r *Run) float64 { return 100 * r.Accuracy },
			7: func(r *Run) float64 { return r.Study + 0*r.Seconds }, // of runs that ended
		} {
			var known []float64
			for _, r := range c.Runs {
				if v := of(r); !math.IsNaN(v) {
					known = append(known, v)
				}
			}
			mean, std := Mean(c.Runs, of), stat.StdDev(known, nil)
			if row[i] != "" {
				want, _ := strconv.ParseFloat(row[i], 64)
				near(row[0]+" "+rows[0][i], mean, want, 1e-5)
			}
			if i < 7 && row[i+1] != "" {
				want, _ := strconv.ParseFloat(row[i+1], 64)
				near(row[0]+" "+rows[0][i+1], std, want, 1e-3)
			}
		}
		// docs/scheduling.md says what the study does there
		if row[7] != "" && row[0] != "experiment_mixed_gpu/2v1p1k" && row[0] != "k80_spot/2-spot" {
			want, _ := strconv.ParseFloat(row[7], 64)
			near(row[0]+" cost by the rule", cost(c), want, 1e-5)
		}
	}
	one, eight := configs["k80_on_demand/k80-demand"], configs["k80_spot/8-spot"]
	near("speed-up", hours(one)/hours(eight), 7.65, 1e-3)
	near("saving", 1-cost(eight)/cost(one), .606, 1e-3)
	swapped := hours(configs["experiment_mixed_gpu/1v2p1k"]) * 3600 * (2*s.Prices[V100] + s.Prices[P100] + s.Prices[K80] + s.Prices[Server])
	study := Mean(configs["experiment_mixed_gpu/2v1p1k"].Runs, func(r *Run) float64 { return r.Study })
	near("2v1p1k with the durations of 1v2p1k", study, swapped, 1e-6)
	for _, l := range s.Lifetimes {
		for h, want := range map[Machine]map[float64]float64{
			K80:  {1: .078125, 6: .125, 7: .203125, 16: .25, 24: .3125, 25: 1},
			P100: {1: 0, 5: .1, 7: .15, 20: .2},
			V100: {1: 0, 2: 2. / 48, 3: 3. / 48, 24: 5. / 48},
		}[l.Machine] {
			near(string(l.Machine)+" ended within "+strconv.Itoa(int(h))+" h", l.Within(h), want, 1e-9)
		}
	}
	if len(s.Lifetimes) != 3 || s.Undated != 412 {
		t.Errorf("%d kinds of machines, %d without a date, want 3 and 412", len(s.Lifetimes), s.Undated)
	}
}

// TestRule is a small study: a run that starts over, a worker that is revoked, a run that is lost, machines with an
// unknown day.
func TestRule(t *testing.T) {
	log := "Wall Time,Step,Accuracy,Zone,Run\n"
	files := fstest.MapFS{
		"training/k80-demand/train_data.csv":      {Data: []byte("Wall Time,Step,Accuracy,Run\n10,0,.1,1\n20,0,.1,1\n120,64001,.9,1\n130,66000,.95,1\n140,0,.1,1\n")},
		"training/k80-demand/cost.csv":            {Data: []byte("Run,Cost\n1,200\n")},
		"training/k80-spot/4-spot/train_data.csv": {Data: []byte(log + "0,0,.1,z,1\n100,64000,.8,z,1\n0,0,.1,z,2\n100,64000,.8,z,2\n0,0,.1,z,3\n50,8000,.2,z,3\n")},
		"training/k80-spot/4-spot/vm_data.csv": {Data: []byte("VM_name,Uptime,Revoked\nspot4-z-run2-master,150,Job completed\nspot4-z-run2-worker-0,40,Revoked\n" +
			"spot4-z-run3-master,40,Revoked\n")},
		// of a revoked worker: no price follows
		"training/k80-spot/4-spot/cost.csv": {Data: []byte("Zone,Run,Cost\nspot4-z,2,2180\n")},
		"training/2ps2k/train_data.csv":     {Data: []byte("Wall Time,Step,Accuracy,Run\n0,0,.1,1\n100,64000,.8,1\n")},
		"training/2ps2k/cost.csv":           {Data: []byte("Run,Cost\n1,1400\n")},
		"training/1ps2k/train_data.csv":     {Data: []byte("Wall Time,Step,Accuracy,Run\n0,0,.1,1\n100,64000,.8,1\n")},
		"training/p100/train_data.csv":      {Data: []byte("Wall Time,Step,Accuracy,Run\n0,0,.1,1\n100,64000,.8,1\n")},
		"training/p100/cost.csv":            {Data: []byte("Run,Cost\n1,300\n")},
		"training/4p100/train_data.csv":     {Data: []byte("Wall Time,Step,Accuracy,Run\n0,0,.1,1\n100,64000,.8,1\n")},
		"training/4p100/cost.csv":           {Data: []byte("Run,Cost\n1,1700\n")}, // a server is $5/s, so a K80 is $2/s
		"lifetime/lifetime.csv":             {Data: []byte("K80,,\nVM name,Start,Terminate\na,2/18/19 23:00,2/19/19 01:30\nb,2/18/19 23:00,2/18/19 23:30\nc,10:00:00,11:00:00\n")},
	}
	s, err := Read(files)
	if err != nil {
		t.Fatal(err)
	}
	costs := map[string][]float64{}
	for _, c := range s.Configs {
		for _, r := range c.Runs {
			costs[c.Name] = append(costs[c.Name], r.Cost)
		}
	}
	for name, want := range map[string][]float64{"k80-demand": {200}, "1ps2k": {900}, "2ps2k": {1400}, "k80-spot/4-spot": {1300, 1300 - 2*60, math.NaN()}} {
		for i, v := range want {
			if got := costs[name][i]; got != v && !(math.IsNaN(v) && math.IsNaN(got)) {
				t.Errorf("run %d of %s costs %v, want %v", i, name, got, v)
			}
		}
	}
	for _, c := range s.Configs {
		if curve := c.Runs[0].Curve; c.Name == "k80-demand" && !slices.Equal(curve, []Point{{0, 0, .1}, {100, 64001, .9}}) {
			t.Errorf("the run that begins anew has the curve %v", curve)
		}
	}
	if l := s.Lifetimes; len(l) != 1 || l[0].Within(1) != .5 || l[0].Within(2.5) != .5 || l[0].Within(3) != 1 || s.Undated != 1 {
		t.Errorf("lifetimes are %v, %d undated", l, s.Undated)
	}
	for name, bad := range map[string]string{
		"training/p100/train_data.csv":         "Wall Time,Step,Accuracy,Run\n0,zero,.1,1\n",
		"training/p100/cost.csv":               "Run,Price\n1,3\n",
		"training/k80-spot/4-spot/vm_data.csv": "VM_name,Uptime,Revoked\nmaster,150,Revoked\n",
		"lifetime/lifetime.csv":                "K80,,\na,2/18/19 23:00,2/17/19 01:30\n",
	} {
		good := files[name]
		files[name] = &fstest.MapFile{Data: []byte(bad)}
		if _, err := Read(files); !errors.Is(err, workload.ErrInput) || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: %v", name, err)
		}
		files[name] = good
	}
}

// TestCostsAddUpInOneOrder has a cost be the same to the last digit each time.
func TestCostsAddUpInOneOrder(t *testing.T) {
	s := &Study{Prices: Prices{K80: .1, P100: .2, V100: .3, Server: 1e-17}}
	c := &Config{Machines: map[Machine]int{K80: 1, P100: 1, V100: 1, Server: 1}}
	r := &Run{Seconds: 1, uptime: map[string]float64{"worker-0": .1, "worker-1": .2, "worker-2": .3}}
	first := s.cost(c, r)
	for range 100 {
		if again := s.cost(c, r); again != first {
			t.Fatalf("costs %v, then %v", first, again)
		}
	}
}
