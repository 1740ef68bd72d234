// Package market models training on transient machines: when they are taken away (Revocations), how long a job takes
// and what it costs on them (Spot), and what a study measured (Study): the durations and costs of runs, how often
// machines were revoked, and how long machines live.
//
// Source: Li et al., Speeding up Deep Learning with Transient Servers, ICAC 2019, and its published data. All runs are
// ResNet-32 on CIFAR-10 in TensorFlow with parameter servers. The study's own tables are not read but for the duration
// of runs with incomplete logs, and for prices, which are fitted to its costs.
package market

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"star/sched/workload"
)

// Steps is the number of steps of a run.
const Steps = 64000

// Machine is a kind of machine that has a price.
type Machine string

// The machines of the study.
const (
	K80       Machine = "K80"
	P100      Machine = "P100"
	V100      Machine = "V100"
	K80Demand Machine = "K80 on demand"
	Server    Machine = "parameter server"
)

// Prices are $/s.
type Prices map[Machine]float64

// Run is one training run.
type Run struct {
	Zone     string
	Name     string
	Seconds  float64 // from the last step 0 to the first step from 64,000 on; NaN: the run did not end
	Accuracy float64 // at its end, 0 to 1
	Logged   bool    // the log reaches the run's end
	Cost     float64 // by the study's rule, $; NaN: unknown
	Study    float64 // from the study's cost.csv, $; NaN: missing
	Revoked  int     // workers that were revoked
	Curve    []Point // from its log

	last   float64            // last step in its log
	uptime map[string]float64 // of revoked workers, s
}

// Point is a line of a run's log.
type Point struct {
	Seconds  float64 `json:"s"` // since step 0
	Step     float64 `json:"step"`
	Accuracy float64 `json:"accuracy"` // 0 to 1
}

// Config is the runs on one set of machines.
type Config struct {
	Name     string
	Machines map[Machine]int // nil: unknown
	Runs     []*Run
}

// Lifetime is how long machines of a kind lived.
type Lifetime struct {
	Machine Machine
	Hours   []float64 // ascending
}

// Within returns the fraction of machines that lived less than the given hours.
func (l Lifetime) Within(hours float64) float64 {
	n, _ := slices.BinarySearch(l.Hours, hours)
	return float64(n) / float64(len(l.Hours))
}

// Study is all data of the study.
type Study struct {
	Configs   []*Config
	Prices    Prices
	Lifetimes []Lifetime
	Undated   int       // machines with a time of day only, not counted in Lifetimes
	Rates     []*Config // runs by learning rate: fixed, for the most workers, for the current number of workers
}

var (
	servers   = regexp.MustCompile(`^(\d)ps(\d)([vk])$`)
	mixed     = regexp.MustCompile(`^(\d)v(\d)p(\d)k$`)
	sameGPU   = regexp.MustCompile(`^(\d)([pv])100$`)
	k80s      = regexp.MustCompile(`^(\d)-(demand|spot)$`)
	oneServer = regexp.MustCompile(`^1ps_k80/(\d)w$`)
	prefix    = regexp.MustCompile(`^(spot|demand)\d-`)
	instance  = regexp.MustCompile(`^(.*)-run(\d+)-(.*)$`)
)

// machines returns the machines that a folder is named after. Runs on one GPU have no parameter server.
func machines(name string) map[Machine]int {
	kinds := map[string]Machine{"k": K80, "p": P100, "v": V100, "demand": K80Demand, "spot": K80}
	n := func(s string) int { i, _ := strconv.Atoi(s); return i }
	base := path.Base(name)
	if m := servers.FindStringSubmatch(base); m != nil {
		return map[Machine]int{kinds[m[3]]: n(m[2]), Server: n(m[1])}
	}
	if m := mixed.FindStringSubmatch(base); m != nil {
		return map[Machine]int{V100: n(m[1]), P100: n(m[2]), K80: n(m[3]), Server: 1}
	}
	for _, e := range []*regexp.Regexp{sameGPU, k80s} {
		if m := e.FindStringSubmatch(base); m != nil {
			return map[Machine]int{kinds[m[2]]: n(m[1]), Server: 1}
		}
	}
	if m := oneServer.FindStringSubmatch(path.Join(path.Base(path.Dir(name)), base)); m != nil {
		return map[Machine]int{K80: n(m[1]), Server: 1}
	}
	return map[string]map[Machine]int{"k80-demand": {K80Demand: 1}, "p100": {P100: 1}, "v100": {V100: 1}}[base]
}

// Read reads the study's folder, which contains training, lifetime and adaptive_lr. Errors name the file and the line.
func Read(dir fs.FS) (*Study, error) {
	s := &Study{}
	err := fs.WalkDir(dir, "training", func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			if _, there := fs.Stat(dir, "."); name == "training" && there == nil && errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("no folder training in it; the study's data has training, lifetime and adaptive_lr: %w", fs.ErrNotExist)
			}
			return err
		}
		switch base := path.Base(name); {
		case strings.HasSuffix(base, "train_data.csv"):
			return s.config(dir, name)
		case path.Base(path.Dir(name)) == "1ps_k80" && strings.HasSuffix(base, "_data.csv"):
			c := &Config{Name: strings.TrimPrefix(strings.TrimSuffix(name, "_data.csv")+"w", "training/")}
			c.Machines = machines(c.Name)
			s.Configs = append(s.Configs, c)
			return c.log(dir, name, "Wall Time", "Accuracy")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(s.Configs, func(a, b *Config) int { return cmp.Compare(a.Name, b.Name) })
	s.fit()
	for _, c := range s.Configs {
		for _, r := range c.Runs {
			r.Cost = s.cost(c, r)
		}
	}
	if err := read(dir, "lifetime/lifetime.csv", s.lifetimes); err != nil {
		return nil, err
	}
	rates, err := fs.Glob(dir, "adaptive_lr/*.csv")
	if err != nil {
		return nil, err
	}
	for _, name := range rates {
		c := &Config{Name: strings.TrimSuffix(path.Base(name), ".csv")}
		if err := c.log(dir, name, "Wall time", "Value"); err != nil {
			return nil, err
		}
		s.Rates = append(s.Rates, c)
	}
	return s, nil
}

// read reads a file.
func read(dir fs.FS, name string, from func(io.Reader) error) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := from(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// config reads a folder of runs.
func (s *Study) config(dir fs.FS, log string) error {
	folder := path.Dir(log)
	c := &Config{Name: strings.TrimPrefix(folder, "training/")}
	c.Machines = machines(c.Name)
	s.Configs = append(s.Configs, c)
	if err := c.log(dir, log, "Wall Time", "Accuracy"); err != nil {
		return err
	}
	err := c.rows(dir, folder+"/train_data_processed.csv", "Duration", func(rows workload.Rows, r *Run) {
		if !r.Logged && r.last >= Steps-4100 { // the master was revoked just before the end
			r.Seconds, r.Accuracy = rows.Number("Duration", 0), rows.Number("Accuracy", 0)
		}
	})
	if err == nil {
		err = c.rows(dir, folder+"/cost.csv", "Cost", func(rows workload.Rows, r *Run) { r.Study = rows.Number("Cost", 0) })
	}
	if _, none := fs.Stat(dir, folder+"/vm_data.csv"); err != nil || none != nil || len(c.Machines) < 2 {
		return err
	}
	return read(dir, folder+"/vm_data.csv", func(f io.Reader) error {
		rows := workload.NewRows(f, "VM_name", "Uptime")
		for rows.Next() {
			m := instance.FindStringSubmatch(rows.Text("VM_name"))
			if m == nil {
				rows.Fail("VM_name is %q: want ZONE-runN-ROLE", rows.Text("VM_name"))
				break
			}
			r, up := c.run(m[1], m[2]), rows.Number("Uptime", 0)
			if rows.Text("Revoked") == "Revoked" {
				r.uptime[m[3]] = up
				if m[3] != "master" {
					r.Revoked++
				}
			}
		}
		return rows.Err()
	})
}

// run returns the run of a zone and a name; it adds a missing one.
func (c *Config) run(zone, name string) *Run {
	zone = prefix.ReplaceAllString(zone, "")
	for _, r := range c.Runs {
		if r.Zone == zone && r.Name == name {
			return r
		}
	}
	r := &Run{Zone: zone, Name: name, Seconds: math.NaN(), Accuracy: math.NaN(), Cost: math.NaN(), Study: math.NaN(), uptime: map[string]float64{}}
	c.Runs = append(c.Runs, r)
	return r
}

// rows reads a table that has a line per run, for the runs that have this column filled.
func (c *Config) rows(dir fs.FS, name, column string, each func(workload.Rows, *Run)) error {
	if _, err := fs.Stat(dir, name); err != nil {
		return nil
	}
	return read(dir, name, func(f io.Reader) error {
		rows := workload.NewRows(f, "Run", column)
		for rows.Next() {
			each(rows, c.run(rows.Text("Zone"), rows.Text("Run")))
		}
		return rows.Err()
	})
}

// log reads when each run made which step.
func (c *Config) log(dir fs.FS, name, wall, accuracy string) error {
	return read(dir, name, func(f io.Reader) error {
		rows := workload.NewRows(f, wall, "Step", accuracy)
		begin := map[*Run]float64{}
		for rows.Next() {
			r := c.run(rows.Text("Zone"), rows.Text("Run"))
			t, step := rows.Number(wall, 0), rows.Number("Step", 0)
			b, begun := begin[r]
			r.last = max(r.last, step)
			if step == 0 && !r.Logged {
				b, begun, begin[r], r.Curve = t, true, t, nil
			}
			if !begun || r.Logged {
				continue
			}
			r.Curve = append(r.Curve, Point{t - b, step, rows.Number(accuracy, 0)})
			if step >= Steps {
				r.Logged, r.Seconds, r.Accuracy = true, t-b, rows.Number(accuracy, 0)
			}
		}
		return rows.Err()
	})
}

// fit derives the prices: a machine's price follows from the runs in which it is the only one with an unknown price.
func (s *Study) fit() {
	s.Prices = Prices{}
	for {
		found := map[Machine][]float64{}
		for _, c := range s.Configs {
			var unknown []Machine
			known := 0.
			for _, m := range slices.Sorted(maps.Keys(c.Machines)) {
				if p, ok := s.Prices[m]; ok {
					known += p * float64(c.Machines[m])
				} else {
					unknown = append(unknown, m)
				}
			}
			if len(unknown) != 1 {
				continue
			}
			for _, r := range c.Runs {
				if r.Revoked == 0 && !math.IsNaN(r.Study) && r.Logged {
					found[unknown[0]] = append(found[unknown[0]], (r.Study/r.Seconds-known)/float64(c.Machines[unknown[0]]))
				}
			}
		}
		if len(found) == 0 {
			return
		}
		for m, p := range found {
			slices.Sort(p)
			s.Prices[m] = p[len(p)/2]
		}
	}
}

// cost applies the study's rule: parameter servers and machines are paid for the duration of the run, revoked machines
// for their uptime.
func (s *Study) cost(c *Config, r *Run) float64 {
	if c.Machines == nil {
		return math.NaN()
	}
	sum := 0.
	for _, m := range slices.Sorted(maps.Keys(c.Machines)) { // in one order: sums of floats differ in their last digit
		p, ok := s.Prices[m]
		if !ok {
			return math.NaN()
		}
		t := r.Seconds * float64(c.Machines[m])
		if m != Server {
			for _, w := range slices.Sorted(maps.Keys(r.uptime)) {
				t += r.uptime[w] - r.Seconds
			}
		}
		sum += p * t
	}
	return sum
}

// lifetimes reads when machines started and ended. For lines before the first heading with a kind, or without a date,
// the day is unknown.
func (s *Study) lifetimes(f io.Reader) error {
	const layout = "1/2/06 15:04"
	of := map[Machine]*Lifetime{}
	var kind Machine
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		cells := strings.Split(strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff")), ",")
		if m := Machine(cells[0]); m == K80 || m == P100 || m == V100 {
			kind = m
			continue
		}
		if len(cells) < 3 || cells[1] == "" || cells[1] == "Start" || cells[1] == "created" {
			continue
		}
		if !strings.Contains(cells[1], "/") {
			s.Undated++
			continue
		}
		begin, err := time.Parse(layout, cells[1])
		end, err2 := time.Parse(layout, strings.TrimSpace(cells[2]))
		if err := cmp.Or(err, err2); err != nil || end.Before(begin) || kind == "" {
			return workload.Wrong(n, "want NAME,START,END below a line with the kind, times as 2/18/19 23:40")
		}
		if of[kind] == nil {
			of[kind] = &Lifetime{Machine: kind}
		}
		of[kind].Hours = append(of[kind].Hours, end.Sub(begin).Hours())
	}
	for _, m := range slices.Sorted(maps.Keys(of)) {
		slices.Sort(of[m].Hours)
		s.Lifetimes = append(s.Lifetimes, *of[m])
	}
	return lines.Err()
}

// Mean returns the mean over the runs that have a value, or NaN if none has.
func Mean(runs []*Run, of func(*Run) float64) float64 {
	var n, sum float64
	for _, r := range runs {
		if v := of(r); !math.IsNaN(v) {
			n, sum = n+1, sum+v
		}
	}
	return sum / n
}
