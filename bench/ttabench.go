package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"star"
	"star/coord"
	"star/job/process"
	"star/modes"
	"star/sim"
	"star/train/optim"
)

// Architectures that methods are compared on.
const (
	ArchPS   = "ps"
	ArchRing = "allreduce"
)

// TTABaselines are the baselines that auto is compared with, as named in package baseline. Others, such as
// post-local-sgd and diloco, are baselines too where they are run.
var TTABaselines = []string{"lb-bsp", "lgc", "sync-switch", "zeno++", "local-sgd"}

// ringBaselines are those of them that run without parameter servers: LGC in its form as one all-reduce, which is
// proved to give the same update.
var ringBaselines = []string{"lb-bsp", "lgc"}

// TTAConfig says what TTA measures.
type TTAConfig struct {
	Tasks     []string // of TTATasks; empty: all
	Arches    []string // ps, allreduce; empty: both
	Scenarios []string // of TTAScenarios, or YAML files; empty: all with available data

	// Methods are modes, auto, and baselines; fixed means the fixed modes of an architecture, all for these, auto and the
	// baselines. rider-K is a ring that does not wait for the K workers that are slowest on average. Empty: all. A method
	// is skipped for an architecture that lacks it. METHOD@OPTIMISER has an optimiser of its own: sgd, momentum, nesterov,
	// dana, adam, muon, or best, which is that of sgd, momentum and nesterov with which it is the soonest in the search.
	Methods []string

	// folder with mnist, cifar-10-batches-bin, tinyshakespeare, straggler-traces; what is not there is generated, or left
	// out
	Data  string
	Rates []float64 // learning rates to try first, with the optimiser of all; empty: the task's, times 1 − Momentum

	// of all methods without their own: sgd, momentum, nesterov, dana, adam or muon; empty: momentum, or sgd without any
	Optimizer string
	Momentum  float64 // of the optimiser; 0: plain SGD. What has momentum while this is 0 has 0.9

	// UpdateScale is the weight of a gradient in an update, of all methods but lgc, which takes the mean: n or firing;
	// empty: n.
	UpdateScale string

	Seeds int

	// Search is with how many seeds a learning rate is tried on each of the clusters of the search. Zero: 3.
	Search int

	// RateTimes multiplies the rates that the search has found: how much hangs on them. Zero: 1.
	RateTimes float64

	Jobs int    // runs at a time; zero: one for each processor
	Out  string // journal of finished runs; those that are in it are not made again. Empty: none

	Own *TTATask // in place of Tasks; nil: those

	// Target and Rounds, if not zero, replace the task's.
	Target float64
	Rounds int

	// Progress, if not nil, is called for each run with the number of finished runs, of all runs, and whether it is one of
	// the search.
	Progress func(r TTAResult, search bool, done, all int)

	// Note, if not nil, is called with what is skipped.
	Note func(text string)
}

// TTAResult is one run. Its JSON is an interface: see bench/README.md.
type TTAResult struct {
	Scenario  string   `json:"scenario"`
	Bound     float64  `json:"bound"`
	Task      string   `json:"task"`
	Arch      string   `json:"arch"`
	Method    string   `json:"method"`
	Optimizer string   `json:"optimizer"`
	Seed      uint64   `json:"seed"`
	Rate      float64  `json:"lr"`
	Target    float64  `json:"target"`
	TTA       *float64 `json:"tta_s"` // null: not reached
	Reached   bool     `json:"reached"`

	// Levels are the times, in seconds, at which the smoothed test loss was down to each of the task's levels, from the
	// highest, as far as it came.
	Levels []float64 `json:"level_s"`

	Accuracy  float64 `json:"final_accuracy"` // on up to 2000 test samples, when the run has had all its samples
	Loss      float64 `json:"final_loss"`     // the mean of a prediction, in nats; 0: it is not finite, or the run was one of the search
	Seconds   float64 `json:"run_s"`          // virtual time of the whole run
	Updates   int64   `json:"updates"`
	Samples   int64   `json:"samples"`
	Bytes     int64   `json:"bytes"` // of gradients and parameters that were sent
	Links     bool    `json:"links"` // the scenario has hosts with links, and the time of bytes is in tta_s and run_s
	Params    int     `json:"params"`
	Staleness float64 `json:"staleness"`
	Switches  int     `json:"switches"`
}

// cell is one run to be made.
type cell struct {
	scenario int
	task     int
	arch     string
	method   string // with an optimiser of its own behind @, if it has one
	rate     float64
	seed     uint64

	optimizer string // that it has
}

// The search for a learning rate uses these clusters, one with stragglers and one without, since a user that sets a
// rate does not know about stragglers. Results use neither these clusters nor their seeds.
var searchScenarios = [...]struct{ name, text string }{
	{"search-slow", "workers: 8\njitter: 0.08\ntimes: {1: 780ms, 6: 1500ms}\n"},
	{"search-even", "workers: 8\njitter: 0.08\n"},
}

// The seeds of the search and of held-out scenarios differ from all other seeds.
const (
	searchFirst = 1 << 32
	heldFirst   = 2 << 32
)

// evaluated is how many rounds of samples lie between two evaluations.
const evaluated = 2

// tta is a TTAConfig on its way.
type tta struct {
	TTAConfig
	tasks     []opened
	scenarios []ttaScenario
	search    int // index of the first scenario of the search, behind all others
	journal   *journal
	done, all int
	mu        sync.Mutex
}

// TTA measures the virtual time that methods need to an accuracy, in real training, and the accuracy at the end of a
// run of a fixed number of samples. Gradients are real, iterations take what the scenario says. Each method has the
// learning rate, of the same grid, with which all of its runs of the search arrive, and on average first: runs with
// seeds and on clusters that do not count among the results. A rate is given up where one of its runs does not arrive,
// or where it takes longer than the best so far, and where the best is the first or the last of the list, rates beyond
// it are tried; at last those √2 beside the best. Runs are independent and deterministic, so they may run in parallel
// and in several parts.
func TTA(ctx context.Context, cfg TTAConfig) ([]TTAResult, error) {
	t := &tta{TTAConfig: cfg}
	if err := t.open(); err != nil {
		return nil, err
	}
	if t.journal != nil {
		defer t.journal.close()
	}
	cells, err := t.cells()
	if err != nil {
		return nil, err
	}
	choices, err := t.findRates(ctx, cells)
	if err != nil {
		return nil, err
	}
	for i := range cells {
		c := choices[t.searchKey(cells[i])]
		cells[i].rate, cells[i].optimizer = c.rate*t.RateTimes, c.optimizer
	}
	t.done, t.all = 0, len(cells)
	results := make([]TTAResult, len(cells))
	err = t.each(ctx, len(cells), func(ctx context.Context, i int) error {
		r, err := t.run(ctx, cells[i], 0)
		results[i] = r
		return err
	})
	return results, err
}

// open reads what there is.
func (t *tta) open() error {
	if len(t.Tasks) == 0 {
		t.Tasks = TTATasks()
	}
	if len(t.Arches) == 0 {
		t.Arches = []string{ArchPS, ArchRing}
	}
	if len(t.Methods) == 0 {
		t.Methods = []string{"all"}
	}
	if t.Search == 0 {
		t.Search = 3
	}
	if t.RateTimes == 0 {
		t.RateTimes = 1
	}
	if t.Jobs == 0 {
		t.Jobs = runtime.GOMAXPROCS(0)
	}
	all := len(t.Scenarios) == 0
	if all {
		t.Scenarios = TTAScenarios()
	}
	t.Scenarios = spread(t.Scenarios)
	var tasks []TTATask
	for _, name := range t.Tasks {
		task, err := FindTTATask(name, t.Data)
		if err != nil {
			return err
		}
		tasks = append(tasks, task)
	}
	if t.Own != nil {
		tasks = []TTATask{*t.Own}
	}
	for _, task := range tasks {
		if t.Target > 0 {
			task.Target = t.Target
		}
		if t.Rounds > 0 {
			task.Rounds = t.Rounds
		}
		o, err := openTask(task)
		if err != nil {
			return err
		}
		t.tasks = append(t.tasks, o)
	}
	for _, name := range t.Scenarios {
		s, err := openScenario(name, t.Data)
		if all && errors.Is(err, fs.ErrNotExist) {
			if t.Note != nil {
				t.Note(fmt.Sprintf("%s is left out: %v", name, err))
			}
			continue
		}
		if err != nil {
			return err
		}
		t.scenarios = append(t.scenarios, s)
	}
	t.search = len(t.scenarios)
	for _, search := range searchScenarios {
		s, err := parseScenario(search.name, []byte(search.text), "")
		if err != nil {
			return err
		}
		t.scenarios = append(t.scenarios, s)
	}
	if t.Out != "" {
		var err error
		t.journal, err = openJournal(t.Out)
		return err
	}
	return nil
}

// methods are those that an architecture has in a scenario.
func (t *tta) methods(arch string, s ttaScenario) (names []string, err error) {
	n := s.workers
	if !s.serves(arch) {
		return nil, nil
	}
	rings := slices.Clone(ringBaselines)
	if s.links { // the simulator has no exchange that a straggler joins with what it has
		rings = slices.DeleteFunc(rings, func(m string) bool { return m == "lgc" })
	}
	add := func(list ...string) {
		for _, m := range list {
			if !slices.Contains(names, m) {
				names = append(names, m)
			}
		}
	}
	fixed := func() {
		add("ssgd")
		if arch == ArchRing {
			add("rider-1", "rider-2")
			return
		}
		xs := []int{}
		for x := n - 1; x > 1; x-- {
			if n <= 8 || x == n-1 || x == n-2 || x == 3*n/4 || x == n/2 || x == n/4 || x == 2 {
				xs = append(xs, x)
			}
		}
		for _, x := range xs {
			add(fmt.Sprintf("x=%d", x))
		}
		add("asgd")
	}
	for _, m := range t.Methods {
		switch m {
		case "fixed":
			fixed()
		case "all":
			fixed()
			add("auto")
			if arch == ArchRing {
				add(rings...)
			} else {
				add(TTABaselines...)
			}
		default:
			if name := methodOf(m); t.has(m, arch, n) && (arch != ArchRing || !sim.IsBaseline(name) || slices.Contains(rings, name)) {
				add(m)
			}
		}
	}
	return names, nil
}

// riders is K of rider-K; 0: it is another method.
func riders(method string) int {
	text, ok := strings.CutPrefix(method, "rider-")
	k, err := strconv.Atoi(text)
	if !ok || err != nil || k < 1 {
		return 0
	}
	return k
}

// same reports whether a method makes the same updates at the same times with servers and in a ring, as long as no time
// is reckoned for bytes.
func same(method string) bool {
	name := methodOf(method)
	return name == "ssgd" || slices.Contains(ringBaselines, name)
}

// apart is a method without the optimiser of its own that it may have.
func apart(method string) (name, optimizer string) {
	if i := strings.LastIndexByte(method, '@'); i >= 0 {
		return method[:i], method[i+1:]
	}
	return method, ""
}

// methodOf is the name of a method, without settings and optimiser.
func methodOf(method string) string {
	name, _ := apart(method)
	name, _, _ = strings.Cut(name, ":")
	return name
}

// ownBest is in place of an optimiser: the one of searched with which a method is the soonest in the search.
const ownBest = "best"

var searched = []string{optim.SGD, optim.Momentum, optim.Nesterov}

// TTAOptimizers are the optimisers that a method can have.
func TTAOptimizers() []string {
	return []string{optim.SGD, optim.Momentum, optim.Nesterov, optim.DANA, optim.Adam, optim.Muon}
}

// CheckTTAMethod reports whether TTAConfig.Methods may have a name, for some number of workers.
func CheckTTAMethod(method string) (err error) {
	if method == "all" || method == "fixed" {
		return nil
	}
	method, own := apart(method)
	if own != "" && own != ownBest && !slices.Contains(TTAOptimizers(), own) {
		return fmt.Errorf("bench: %s@%s: no optimiser %q; there are %s and %s", method, own, own, strings.Join(TTAOptimizers(), ", "), ownBest)
	}
	if riders(method) > 0 {
		return nil
	}
	for _, n := range []int{8, 10, 16, 2, 3, 4, 5, 6, 7, 1 << 10} {
		e := sim.CheckMethod(method, n, 64)
		if e == nil {
			return nil
		}
		if err == nil {
			err = e
		}
	}
	return err
}

// has reports whether an architecture has a method.
func (t *tta) has(method, arch string, n int) bool {
	method, _ = apart(method)
	if k := riders(method); k > 0 {
		return arch == ArchRing && k < n
	}
	if arch == ArchPS {
		return sim.CheckMethod(method, n, 16) == nil
	}
	name, _, _ := strings.Cut(method, ":")
	if method == "auto" || slices.Contains(ringBaselines, name) {
		return true
	}
	p, err := modes.Parse(method, n)
	return err == nil && len(p.Groups) == 1 && p.Groups[0].Quorum == len(p.Groups[0].Members) && !p.Groups[0].DropLate
}

// cells are all runs, in order of the result.
func (t *tta) cells() ([]cell, error) {
	var cells []cell
	for task := range t.tasks {
		for _, arch := range t.Arches {
			for s := range t.scenarios[:t.search] {
				names, err := t.methods(arch, t.scenarios[s])
				if err != nil {
					return nil, err
				}
				for _, m := range names {
					first := uint64(0)
					if t.scenarios[s].held {
						first = heldFirst
					}
					for k := range uint64(t.Seeds) {
						cells = append(cells, cell{scenario: s, task: task, arch: arch, method: m, seed: first + 1 + k})
					}
				}
			}
		}
	}
	if len(cells) == 0 {
		return nil, fmt.Errorf("bench: no scenario and architecture has any of the methods %v", t.Methods)
	}
	return cells, nil
}

// searchKey is the task, architecture and method of a cell: the search runs once for each. x=K of n workers uses the
// rate of x=8K/n of eight.
func (t *tta) searchKey(c cell) cell {
	n := t.scenarios[c.scenario].workers
	if text, ok := strings.CutPrefix(c.method, "x="); ok && n != 8 {
		text, own := apart(text)
		if x, err := strconv.Atoi(text); err == nil {
			c.method = fmt.Sprintf("x=%d", min(max(int(math.Round(float64(8*x)/float64(n))), 2), 7))
			if own != "" {
				c.method += "@" + own
			}
		}
	}
	if c.arch == ArchRing && same(c.method) {
		c.arch = ArchPS
	}
	return cell{scenario: t.search, task: c.task, arch: c.arch, method: c.method}
}

// choice is the learning rate of a method, its optimiser, and what they have brought in the search.
type choice struct {
	rate      float64
	optimizer string
	brought   tried
}

// findRates is the best learning rate of every method, and where it has the choice its best optimiser.
func (t *tta) findRates(ctx context.Context, cells []cell) (map[cell]choice, error) {
	var keys []cell // with the optimiser, one for each search
	open := map[cell]bool{}
	for _, c := range cells {
		all := t.searches(t.searchKey(c))
		for _, k := range all {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
			open[k] = open[k] || len(all) > 1 || len(t.rates(k)) > 1
		}
	}
	for _, k := range keys {
		if open[k] {
			t.all += t.Search * len(searchScenarios) * len(t.rates(k))
		}
	}
	best := make([]choice, len(keys))
	err := t.each(ctx, len(keys), func(ctx context.Context, i int) (err error) {
		if k := keys[i]; open[k] {
			best[i], err = t.findRate(ctx, k)
		} else { // one rate and one optimiser: there is nothing to find
			best[i] = choice{rate: t.rates(k)[0], optimizer: k.optimizer}
		}
		return err
	})
	choices := map[cell]choice{}
	for _, c := range cells {
		key := t.searchKey(c)
		var first choice
		for _, k := range t.searches(key) {
			if now := best[slices.Index(keys, k)]; first.optimizer == "" || now.brought.before(first.brought) {
				first = now
			}
		}
		choices[key] = first
	}
	return choices, err
}

// searches are a method's searches for a rate: one for each optimiser that it may have.
func (t *tta) searches(key cell) (all []cell) {
	method, own := apart(key.method)
	optimizers := []string{own}
	switch own {
	case "":
		optimizers = []string{t.own("").Name}
	case ownBest:
		optimizers = searched
	}
	for _, o := range optimizers {
		key.method, key.optimizer = method, o
		all = append(all, key)
	}
	return all
}

// rates are the first rates of the search for a method with its optimiser. A rate η of plain SGD corresponds to η·(1 −
// μ) with momentum μ: its steps have the same sum.
func (t *tta) rates(c cell) []float64 {
	own, all := t.own(c.optimizer), t.own("")
	if own.Adaptive() {
		if len(t.Rates) > 0 && all.Adaptive() {
			return t.Rates
		}
		return t.tasks[c.task].AdamRates
	}
	rates := slices.Clone(t.tasks[c.task].Rates)
	factor := 1 - own.Momentum
	if len(t.Rates) > 0 && !all.Adaptive() {
		rates = slices.Clone(t.Rates)
		factor /= 1 - all.Momentum
	}
	for i := range rates {
		rates[i] = math.Round(rates[i]*factor*1e12) / 1e12
	}
	return rates
}

// findRate tries the rates of the task, and where the best of them is the largest or the smallest goes on beyond it by
// factors of 2, as long as that is better, three times at most; then the two rates that are √2 beside the best. Of
// those that are within a twentieth of the best it takes the smallest: a few seeds are no ground for the edge of what
// is stable (the rule of one standard error: L. Breiman et al.: Classification and Regression Trees, 1984).
func (t *tta) findRate(ctx context.Context, c cell) (choice, error) {
	all := t.Search * len(searchScenarios)
	rate, brought, err := findRate(t.rates(c), func(rate float64, best tried) (tried, error) {
		return attempt(all, best, t.tasks[c.task].levels() != nil, func(k int, limit float64) (TTAResult, error) {
			c.rate, c.scenario, c.seed = rate, t.search+k%len(searchScenarios), searchFirst+uint64(k)
			return t.run(ctx, c, max(limit, 1e-3))
		})
	})
	return choice{rate, c.optimizer, brought}, err
}

// findRate asks what rates bring, and until when that counts: a rate need not be tried to its end once it cannot be
// before the best.
func findRate(rates []float64, bring func(rate float64, best tried) (tried, error)) (float64, tried, error) {
	rates = slices.Sorted(slices.Values(rates))
	var best tried
	at := 0.0
	seen := map[float64]tried{}
	try := func(rate float64) (better bool, err error) {
		now, err := bring(rate, best)
		seen[rate] = now
		if better = err == nil && (at == 0 || now.before(best)); better {
			best, at = now, rate
		}
		return better, err
	}
	for _, rate := range rates {
		if _, err := try(rate); err != nil {
			return 0, best, err
		}
	}
	if len(rates) == 1 { // it was chosen
		return rates[0], best, nil
	}
	factor := 0.0
	switch at {
	case rates[len(rates)-1]:
		factor = 2
	case rates[0]:
		factor = 0.5
	}
	for k := 0; k < 3 && factor > 0; k++ {
		better, err := try(at * factor)
		if err != nil {
			return 0, best, err
		}
		if !better {
			break
		}
	}
	for middle, beside := at, []float64{math.Sqrt2, 1 / math.Sqrt2}; len(beside) > 0; beside = beside[1:] {
		if _, err := try(round4(middle * beside[0])); err != nil {
			return 0, best, err
		}
	}
	for rate, r := range seen {
		if best.reached > 0 && r.reached == best.reached && r.tta <= 1.05*best.tta {
			at = min(at, rate)
		}
	}
	return at, seen[at], nil
}

// round4 is x with four digits.
func round4(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	return x
}

// tried is what a learning rate has brought: runs that arrived (see arrival), their mean time, and the mean accuracy of
// all.
type tried struct {
	reached       int
	tta, accuracy float64
}

func (r tried) before(s tried) bool {
	if r.reached != s.reached {
		return r.reached > s.reached
	}
	return r.reached > 0 && r.tta < s.tta || r.reached == 0 && r.accuracy > s.accuracy
}

// arrival is when a run of the search has arrived: at the last level of the loss, which tells more than an accuracy of
// a few test samples. Where a task has no levels it is at the target.
func (r TTAResult) arrival(levels bool) (at float64, ok bool) {
	switch {
	case !levels && r.Reached:
		return *r.TTA, true
	case len(r.Levels) < ttaLevels:
		return 0, false
	}
	return r.Levels[ttaLevels-1], true
}

// attempt makes all runs of a rate, or stops when it cannot be better than best. A run ends at its target, or after
// limit seconds; 0: no limit.
func attempt(all int, best tried, levels bool, run func(k int, limit float64) (TTAResult, error)) (now tried, err error) {
	for k := range all {
		limit := 0.0
		if best.reached == all {
			if limit = best.tta*float64(all) - now.tta; limit <= 0 || now.reached < k {
				break
			}
		}
		r, err := run(k, limit)
		if err != nil {
			return now, err
		}
		now.accuracy += r.Accuracy / float64(all)
		if at, ok := r.arrival(levels); ok {
			now.reached, now.tta = now.reached+1, now.tta+at
		}
	}
	now.tta /= float64(max(now.reached, 1))
	return now, nil
}

// each does n things, some at a time. The first error ends it.
func (t *tta) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(t.Jobs, 1), n) {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// run makes one run, or reads it from the journal. limit, if not zero, is for a search: the run ends at its target, or
// after limit seconds; less than a millisecond means no limit.
func (t *tta) run(ctx context.Context, c cell, limit float64) (TTAResult, error) {
	if err := context.Cause(ctx); err != nil {
		return TTAResult{}, err
	}
	arch := c.arch
	if arch == ArchRing && same(c.method) && !t.scenarios[c.scenario].links {
		c.arch = ArchPS
	}
	key := t.key(c, limit)
	r, known := t.journal.find(key)
	if !known {
		var err error
		if r, err = t.make(ctx, c, limit); err != nil {
			return r, err
		}
		if err := t.journal.add(key, r); err != nil {
			return r, err
		}
	}
	r.Method = c.method
	if arch != c.arch {
		r.Arch, r.Bytes = arch, r.Bytes-8*int64(r.Params)*r.Updates // see sent
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done++
	t.all = max(t.all, t.done) // a search goes on beside and beyond the rates that it begins with
	if t.Progress != nil {
		t.Progress(r, limit > 0, t.done, t.all)
	}
	return r, nil
}

// key is everything that a run depends on.
func (t *tta) key(c cell, limit float64) string {
	task, s := t.tasks[c.task], t.scenarios[c.scenario]
	kind := "run"
	if limit > 0 {
		kind = fmt.Sprintf("search within %.6g s", limit)
	}
	own := t.own(c.optimizer)
	kind += " " + own.Name
	if own.Momentum > 0 {
		kind += fmt.Sprintf(" %g", own.Momentum)
	}
	if t.firing() {
		kind += " firing"
	}
	method, _ := apart(c.method)
	return fmt.Sprintf("%s: %s %d workers bound %.6f, %s %s round %d of %d target %g loss %g to %g tests %d, %s %s lr %g seed %d", kind, s.name, s.workers, s.bound,
		task.Name, task.TTATask, task.Round, task.Rounds, task.Target, task.Loss[0], task.Loss[1], task.Tests, c.arch, suited(method, task.batch(s.workers)), c.rate, c.seed)
}

func (t *tta) make(ctx context.Context, c cell, limit float64) (TTAResult, error) {
	task, s := t.tasks[c.task], t.scenarios[c.scenario]
	set, err := s.cluster(c.seed, c.arch)
	if err != nil {
		return TTAResult{}, err
	}
	n := s.workers
	batch := task.batch(n)
	model, err := task.build(ctx, batch, c.seed)
	if err != nil {
		return TTAResult{}, err
	}
	defer model.model.Close()
	round := int64(n * batch)
	budget := round * int64(task.Rounds)
	learner := &sim.Trained{Task: model, Every: evaluated * int(round), Mean: t.firing()}
	_, slowest := pace(set.Times, boundSteps)
	conf := sim.Config{
		Times: set.Times, Learner: learner, Batch: batch, Latency: set.Latency, Failures: set.Failures, Samples: budget, Target: 1,
		Limit: 4 * time.Duration(task.Rounds) * slowest, // a mode that drops gradients takes longer than SSGD
	}
	if s.links {
		conf.Network, conf.Bytes, conf.Ring = set.Network, set.Bytes, set.Ring
		conf.Limit *= 16 // the times are of computing alone
	}
	own := process.Shaped(t.own(c.optimizer), model.model.Layout())
	if err := prepare(&conf, c, task, budget, own); err != nil {
		return TTAResult{}, err
	}
	watch := &watched{Trained: learner, net: model, target: task.Target, levels: task.levels(), budget: budget, pilot: conf.Pilot}
	if limit > 0 {
		watch.ends = true
	}
	if limit >= 0.01 {
		conf.Limit = min(conf.Limit, time.Duration(limit*float64(time.Second)))
	}
	conf.Learner, conf.Pilot = watch, watch
	out := TTAResult{
		Scenario: s.name, Bound: s.bound, Task: task.Name + " (" + task.TTATask.String() + ")", Arch: c.arch, Method: c.method, Optimizer: own.Name, Seed: c.seed,
		Rate: c.rate, Target: task.Target, Levels: []float64{},
	}
	res, err := sim.Run(conf)
	if errors.Is(err, sim.ErrDiverged) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("bench: %s, %s, %s, seed %d: %w", s.name, out.Task, c.method, c.seed, err)
	}
	out.Updates, out.Samples, out.Staleness, out.Switches = res.Updates, res.Samples, res.Staleness, len(res.Switches)
	out.Seconds = res.Time.Seconds()
	out.Params = len(learner.Params())
	out.Bytes = sent(c.arch, 4*int64(out.Params), res)
	if out.Links = s.links; out.Links {
		out.Bytes = int64(res.Bytes)
	}
	out.Levels = append(out.Levels, watch.down...)
	if out.Reached = watch.reached; out.Reached {
		sec := watch.at.Seconds()
		out.TTA = &sec
	}
	if limit > 0 {
		out.Accuracy = learner.Accuracy()
		return out, nil
	}
	if out.Accuracy, out.Loss, err = model.everything(task.test, learner.Params()); math.IsNaN(out.Loss) || math.IsInf(out.Loss, 0) {
		out.Loss = 0
	}
	return out, err
}

// own is the optimiser of that name, with the momentum of all; without a name it is that of all methods that have none
// of their own.
func (t *tta) own(name string) optim.Config {
	if name == "" {
		if name = t.Optimizer; name == "" || name == optim.Momentum {
			if name = optim.Momentum; t.Momentum == 0 {
				name = optim.SGD
			}
		}
	}
	c := optim.Config{Name: name}
	switch name {
	case optim.Momentum, optim.Nesterov, optim.DANA:
		if c.Momentum = t.Momentum; c.Momentum == 0 {
			c.Momentum = 0.9
		}
	}
	return c
}

// firing reports whether gradients have the weights of a mean.
func (t *tta) firing() bool { return t.UpdateScale == string(coord.ScaleFiring) }

// prepare gives a run its method.
func prepare(conf *sim.Config, c cell, task opened, budget int64, own optim.Config) error {
	own.LR, own.Schedule = c.rate, fmt.Sprintf("linear=%d", budget)
	n := conf.Times.Workers()
	c.method, _ = apart(c.method)
	k := riders(c.method)
	switch {
	case k > 0:
		mean, _ := pace(conf.Times, boundSteps)
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(mean[b] - mean[a]) })
		slow := slices.Sorted(slices.Values(order[:k]))
		if err := conf.Use("ssgd", own); err != nil {
			return err
		}
		conf.Plan = modes.Plan{Groups: []modes.Group{{}}}
		g := &conf.Plan.Groups[0]
		for w := range n {
			if slices.Contains(slow, w) {
				g.Riders = append(g.Riders, star.Worker(w))
			} else {
				g.Members = append(g.Members, star.Worker(w))
			}
		}
		g.Quorum = len(g.Members)
		return nil
	case c.method == "auto" && c.arch == ArchRing:
		return conf.UseAuto(own)
	}
	return conf.Use(suited(c.method, conf.Batch), own)
}

// suited is a baseline without settings for mini-batches of that number of samples. A block of LGC has at least one
// sample. Zeno++'s validation batch has as many samples as a worker's, as in the paper, where both have 128; its own
// default would take as long as many iterations here.
func suited(method string, batch int) string {
	switch {
	case method == "lgc" && batch < 8:
		return fmt.Sprintf("lgc:blocks=%d", batch)
	case method == "zeno++":
		return fmt.Sprintf("zeno++:samples=%d", batch)
	}
	return method
}

// batch is the samples of one worker of n.
func (t TTATask) batch(n int) int { return max(1, (t.Round+n/2)/n) }

// sent are the bytes of a run. With servers each gradient goes there and parameters come back; a ring of k sends 2(k−1)
// times the vector, and a rider's gradient goes to a member and parameters come back, which adds as much.
func sent(arch string, vector int64, r sim.Result) int64 {
	if arch == ArchRing {
		return 2 * vector * (r.Gradients - r.Updates + r.Dropped)
	}
	return 2 * vector * (r.Gradients + r.Dropped)
}

// watched ends a run when it has had its samples, and says when it had the accuracy, and when its loss was down to
// which level. It is the run's Learner and its Pilot at once, and passes on to the pilot proper.
type watched struct {
	*sim.Trained
	net    *netTask
	target float64
	levels []float64 // logarithms of losses, falling
	budget int64
	ends   bool // when it arrives
	pilot  sim.Pilot

	used    int64
	had     bool // the accuracy, with the present update
	reached bool
	at      time.Duration

	looks []float64 // logarithms of the losses of all evaluations
	fresh bool      // the last one is of the present update
	last  look
	down  []float64 // seconds, by level
}

// look is the smoothed loss at some time.
type look struct {
	log float64
	at  time.Duration
}

// looksBack is how many evaluations a smoothed loss is the geometric mean of.
const looksBack = 3

// smooth is the logarithm of the smoothed loss now; +Inf until enough values are known.
func (w *watched) smooth() (log float64) {
	n := len(w.looks)
	if n < looksBack {
		return math.Inf(1)
	}
	for _, l := range w.looks[n-looksBack:] {
		log += l / looksBack
	}
	return log
}

// Update implements sim.Learner.
func (w *watched) Update(version int64, gs []sim.Gradient) sim.Outcome {
	o := w.Trained.Update(version, gs)
	for i := range gs {
		w.used += int64(gs[i].Samples)
	}
	if w.fresh = len(w.Evaluations) > len(w.looks); w.fresh {
		w.looks = append(w.looks, math.Log(max(w.net.loss, 1e-9)))
	}
	w.had = o.Progress >= w.target
	o.Progress = 0
	if k := len(w.levels); w.used >= w.budget || w.ends && (k > 0 && w.smooth() <= w.levels[k-1] || k == 0 && w.had) {
		o.Progress = 1
	}
	return o
}

// sink notes which levels the loss has come down to since the evaluation before, by a straight line of its logarithm
// over time between the two.
func (w *watched) sink(at time.Duration) {
	now := look{w.smooth(), at}
	for k := len(w.down); k < len(w.levels) && now.log <= w.levels[k]; k++ {
		when := now.at
		if above := w.last.log - w.levels[k]; !math.IsInf(w.last.log, 1) && above > 0 {
			when = w.last.at + time.Duration(above/(w.last.log-now.log)*float64(now.at-w.last.at))
		}
		w.down = append(w.down, when.Seconds())
	}
	w.last = now
}

// Leave implements sim.Attendant.
func (w *watched) Leave(at time.Duration, of star.Worker) {
	if p, ok := w.pilot.(sim.Attendant); ok {
		p.Leave(at, of)
	}
}

// Join implements sim.Attendant.
func (w *watched) Join(at time.Duration, of star.Worker) {
	if p, ok := w.pilot.(sim.Attendant); ok {
		p.Join(at, of)
	}
}

// Observe implements sim.Pilot.
func (w *watched) Observe(r star.Record) {
	if w.pilot != nil {
		w.pilot.Observe(r)
	}
}

// Fired implements sim.Pilot.
func (w *watched) Fired(at time.Duration, version int64, gs []sim.Gradient, o sim.Outcome) {
	if w.had && !w.reached {
		w.reached, w.at = true, at
	}
	if w.fresh {
		w.sink(at)
	}
	if w.pilot != nil {
		w.pilot.Fired(at, version, gs, o)
	}
}

// Decide implements sim.Pilot.
func (w *watched) Decide(at time.Duration) (modes.Plan, string, bool) {
	if w.pilot == nil {
		return modes.Plan{}, "", false
	}
	return w.pilot.Decide(at)
}

// Next implements sim.Watcher.
func (w *watched) Next(at time.Duration) time.Duration {
	if p, ok := w.pilot.(sim.Watcher); ok {
		return p.Next(at)
	}
	return 0
}

// Interval is the mean of xs and half the width of its 95 % confidence interval, by Student's t; the half is NaN of
// fewer than two.
func Interval(xs []float64) (mean, half float64) {
	n := float64(len(xs))
	for _, x := range xs {
		mean += x / n
	}
	if n < 2 {
		return mean, math.NaN()
	}
	var v float64
	for _, x := range xs {
		v += (x - mean) * (x - mean) / (n - 1)
	}
	return mean, student(len(xs)-1) * math.Sqrt(v/n)
}

// student is the quantile 0.975 of Student's t with that number of degrees of freedom.
func student(freedom int) (q float64) {
	// Quantile 0.975 for 1 to 9 degrees of freedom; beyond, by Cornish and Fisher (1938), off by less than 0.001.
	table := []float64{12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622}
	if d := float64(freedom); freedom < 1 {
		q = math.NaN()
	} else if freedom <= len(table) {
		q = table[freedom-1]
	} else {
		const z = 1.959964
		z3, z5, z7 := z*z*z, math.Pow(z, 5), math.Pow(z, 7)
		q = z + (z3+z)/(4*d) + (5*z5+16*z3+3*z)/(96*d*d) + (3*z7+19*z5+17*z3-15*z)/(384*d*d*d)
	}
	return q
}
