package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cluster/placement"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/cmd/internal/launch"
	"star/internal/defaults"
	"star/internal/settings"
	"star/job"
	"star/runlog"
)

// placeResult is star place --json.
type placeResult struct {
	Assignments []placeAssignment `json:"assignments"`
	Load        []placeLoad       `json:"load"`
	MaxLoad     float64           `json:"max_load"`
	Exact       bool              `json:"exact"`
	Infeasible  []placeMissing    `json:"infeasible"`
	Moves       []placeMove       `json:"moves,omitempty"`
}

type placeAssignment struct {
	Job    string `json:"job"`
	Task   string `json:"task"` // ps 0, worker 3
	Host   string `json:"host"`
	GPU    *int   `json:"gpu,omitempty"`
	Shared bool   `json:"shared,omitempty"`
	Why    string `json:"why"`
}

type placeLoad struct {
	Host    string  `json:"host"`
	CPU     float64 `json:"cpu"`
	NetIn   float64 `json:"net_in"`
	NetOut  float64 `json:"net_out"`
	GPU     float64 `json:"gpu"`
	GPUMem  float64 `json:"gpu_memory"`
	Memory  float64 `json:"memory"`
	Servers int     `json:"servers"`
}

type placeMissing struct {
	Job      string  `json:"job"`
	Resource string  `json:"resource"`
	Missing  float64 `json:"missing"`
	Why      string  `json:"why"`
	Proven   bool    `json:"proven"`
}

type placeMove struct {
	Job  string  `json:"job"`
	Task string  `json:"task"`
	From string  `json:"from"`
	To   string  `json:"to"`
	Gain float64 `json:"gain_s"`
	Cost float64 `json:"cost_s"`
	Why  string  `json:"why"`

	Moved *runlog.Move `json:"moved,omitempty"` // with --apply
}

// placeFlags are the settings of star place.
type placeFlags struct {
	set            settings.Set
	from, rate     string
	horizon, pause time.Duration
	nodes          int
	asJSON         bool
	describe       bool

	carryOut         bool
	coordinator, job string
	token            settings.Secret
}

func placeCommand() *cobra.Command {
	p := new(placeFlags)
	s := &p.set
	settings.Var(s, &p.from, "from", "", "a placement that is in force, as --json wrote it: propose moves that pay, instead of a new placement")
	settings.Var(s, &p.horizon, "horizon", 10*time.Minute, "with --from: how long the demands stay as they are")
	settings.Var(s, &p.pause, "pause", time.Second, "with --from: how long a job pauses for a move, besides the copying")
	settings.Var(s, &p.rate, "copy-rate", "", "with --from: at what rate state is copied at most, such as 1Gbit/s; empty: what the links have left")
	settings.Var(s, &p.nodes, "search", 300_000, "steps of the exhaustive search for small clusters; 0: none")
	settings.Var(s, &p.describe, "describe", false, "of run logs instead of CLUSTER and JOBS: print what their jobs wanted, as a file of jobs")
	settings.Var(s, &p.carryOut, "apply", false, "with --from: have the moves of one running job's servers carried out")
	settings.Var(s, &p.coordinator, "coordinator", defaults.Address, "with --apply: address of that job's coordinator, host:port")
	settings.Var(s, &p.job, "job", defaults.Job, "with --apply: its name, here and in JOBS")
	settings.Var(s, &p.token, "token", "", "with --apply: shared secret of the job (rather as STAR_TOKEN)")
	settings.Var(s, &p.asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "place {CLUSTER JOBS | --describe RUN …}",
		Short: "Say on which host each server and worker should run, and why",
		Long: `Reads a file of hosts and a file of jobs and places every server and worker, so that nothing is over capacity
and the fullest processor or link is as empty as can be. docs/placement.md has the files' keys and the rules.

  star place cluster.yaml jobs.yaml
  star place cluster.yaml jobs.yaml --json > now.json
  star place cluster.yaml jobs.yaml --from now.json     which moves would pay, when demands have changed
  star place --describe star-out > jobs.yaml            a file of jobs, from what runs have measured

Exit code 1 if a job does not fit; what misses is printed beside the others' places.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.describe {
				if len(args) == 0 || p.from != "" || p.asJSON {
					return &settings.UsageError{Msg: cmd.CommandPath() + " --describe: want run logs, and neither --from nor --json: what it prints is YAML"}
				}
				return describe(cmd.OutOrStdout(), args)
			}
			if len(args) != 2 {
				return &settings.UsageError{Msg: fmt.Sprintf("%s: want a file of hosts and a file of jobs, got %d arguments", cmd.CommandPath(), len(args))}
			}
			hosts, err := inventory.Hosts(args[0])
			if err != nil {
				return job.FileError(err, inventory.ErrFile)
			}
			if err := cli.DetectGPUs(cmd.Context(), hosts); err != nil {
				return err
			}
			jobs, err := inventory.Jobs(args[1], hosts)
			if err != nil {
				return job.FileError(err, inventory.ErrFile)
			}
			return p.place(cmd.Context(), cmd.OutOrStdout(), hosts, jobs)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

func (p *placeFlags) place(ctx context.Context, w io.Writer, inventoried []inventory.Host, jobs []placement.Job) error {
	hosts := inventory.Places(inventoried)
	if p.carryOut && p.from == "" {
		return p.set.Invalid("apply", errors.New("which moves? give the placement that is in force with --from"))
	}
	if p.nodes < 0 {
		return p.set.Invalid("search", errors.New("want 0 or more"))
	}
	var r *placeResult
	if p.from != "" {
		var err error
		if r, err = p.moves(hosts, jobs); err != nil {
			return err
		}
	} else {
		o := placement.Options{Nodes: p.nodes}
		if p.nodes == 0 {
			o.Nodes = -1
		}
		found, err := placement.Place(hosts, jobs, o)
		if err != nil {
			return err
		}
		r = placed(hosts, jobs, found)
	}
	var failed error
	if p.carryOut {
		failed = p.apply(ctx, inventoried, r)
	}
	if p.asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else if err := r.print(w, p.from != ""); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return r.unplaced(len(jobs))
}

// unplaced is an error if a job has no place.
func (r *placeResult) unplaced(jobs int) error {
	if len(r.Infeasible) == 0 {
		return nil
	}
	var names []string
	for _, m := range r.Infeasible {
		names = append(names, m.Job)
	}
	return fmt.Errorf("%d of %d jobs do not fit: %s", len(names), jobs, strings.Join(names, ", "))
}

// placed makes a placement the result that is printed.
func placed(hosts []placement.Host, jobs []placement.Job, found placement.Result) *placeResult {
	r := &placeResult{Assignments: []placeAssignment{}, Infeasible: []placeMissing{}, MaxLoad: found.MaxLoad, Exact: found.Exact}
	for _, c := range found.Choices {
		a := placeAssignment{Job: jobs[c.Job].Name, Task: fmt.Sprintf("%s %d", c.Kind, c.Rank), Host: hosts[c.Host].Name, Shared: c.Shared, Why: c.Why}
		if c.GPU >= 0 {
			a.GPU = &c.GPU
		}
		r.Assignments = append(r.Assignments, a)
	}
	r.loads(hosts, found.Loads)
	for _, m := range found.Infeasible {
		r.Infeasible = append(r.Infeasible, placeMissing{jobs[m.Job].Name, m.Resource, m.Amount, m.Why, m.Proven})
	}
	return r
}

// PrintSpread shows where the processes of a job of star run --hosts run, as star place does.
func PrintSpread(w io.Writer, s *launch.Spread, asJSON bool) error {
	r := placed(inventory.Places(s.Hosts), s.Jobs, s.Result)
	for rank := range s.Electors {
		r.Assignments = append(r.Assignments, placeAssignment{Job: s.Jobs[0].Name, Task: fmt.Sprintf("ps %d", rank), Host: s.Of("ps", rank).Name,
			Why: "may coordinate, and has no shards: on the emptiest hosts, as many as there are"})
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	return r.print(w, false)
}

func (r *placeResult) loads(hosts []placement.Host, ls []placement.Load) {
	for h, l := range ls {
		r.Load = append(r.Load, placeLoad{hosts[h].Name, l.CPU, l.NetIn, l.NetOut, l.GPU, l.GPUMemory, l.Memory, l.Servers})
	}
}

// errPlacement marks a file of --from that is not a placement.
var errPlacement = errors.New("no placement of star place --json")

// moves reads the placement of --from, and proposes moves.
func (p *placeFlags) moves(hosts []placement.Host, jobs []placement.Job) (*placeResult, error) {
	o := placement.MoveOptions{Horizon: p.horizon, Pause: p.pause}
	for name, d := range map[string]time.Duration{"horizon": p.horizon, "pause": p.pause} {
		if d <= 0 {
			return nil, p.set.Invalid(name, errors.New("want more than 0"))
		}
	}
	if p.rate != "" {
		x, err := inventory.Rate(p.rate)
		if err == nil && x == 0 {
			err = errors.New("want more than 0")
		}
		if err != nil {
			return nil, p.set.Invalid("copy-rate", err)
		}
		o.Bandwidth = x
	}
	text, err := os.ReadFile(p.from)
	if err != nil {
		return nil, job.FileError(err, errPlacement)
	}
	bad := func(format string, a ...any) error {
		return job.FileError(fmt.Errorf("%s: %w: %s", p.from, errPlacement, fmt.Sprintf(format, a...)), errPlacement)
	}
	r := &placeResult{Infeasible: []placeMissing{}}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, bad("%v", err)
	}
	byName := map[string]int{}
	for h := range hosts {
		byName[hosts[h].Name] = h
	}
	at := map[[2]string]int{}
	for _, a := range r.Assignments {
		h, ok := byName[a.Host]
		if !ok {
			return nil, bad("%s %s is on host %s, which is not in the cluster", a.Job, a.Task, a.Host)
		}
		at[[2]string{a.Job, a.Task}] = h
	}
	var now []int
	for _, j := range jobs {
		for _, k := range []struct {
			kind  placement.Kind
			count int
		}{{placement.Server, len(j.Servers)}, {placement.Worker, len(j.Workers)}} {
			for i := range k.count {
				h, ok := at[[2]string{j.Name, fmt.Sprintf("%s %d", k.kind, i)}]
				if !ok {
					return nil, bad("%s %s %d is not in it", j.Name, k.kind, i)
				}
				now = append(now, h)
			}
		}
	}
	steps, err := placement.Moves(hosts, jobs, now, o)
	if err != nil {
		return nil, err
	}
	r.Load, r.Moves, r.Infeasible, r.Exact = nil, []placeMove{}, []placeMissing{}, false
	loads, err := placement.Loads(hosts, jobs, now)
	if err != nil {
		return nil, err
	}
	r.MaxLoad = 0
	for _, l := range loads {
		r.MaxLoad = max(r.MaxLoad, l.Max())
	}
	r.loads(hosts, loads)
	for _, s := range steps {
		r.Moves = append(r.Moves, placeMove{Job: jobs[s.Job].Name, Task: fmt.Sprintf("%s %d", s.Kind, s.Rank), From: hosts[s.From].Name, To: hosts[s.To].Name,
			Gain: s.Gain.Seconds(), Cost: s.Cost.Seconds(), Why: s.Why})
	}
	return r, nil
}

// print shows a placement, or with moves which would pay.
func (r *placeResult) print(w io.Writer, moves bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if moves {
		if len(r.Moves) == 0 {
			fmt.Fprintln(tw, "no move pays")
		} else {
			fmt.Fprintln(tw, "job\ttask\tfrom\tto\tgain\tcost\twhy")
		}
		for _, m := range r.Moves {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Job, m.Task, m.From, m.To, console.Seconds(m.Gain), console.Seconds(m.Cost), m.Why)
			if d := m.Moved; d != nil {
				fmt.Fprintf(tw, "\t\t\t\t\t\tmoved at version %d: %.1f MB in %s, an update late by %s\n", d.Version, float64(d.Bytes)/1e6, console.Seconds(float64(d.Copy)), console.Seconds(float64(d.Delay)))
			}
		}
	} else if len(r.Assignments) > 0 {
		fmt.Fprintln(tw, "job\ttask\thost\tgpu\twhy")
		for _, a := range r.Assignments {
			gpu := "-"
			if a.GPU != nil {
				gpu = fmt.Sprint(*a.GPU)
			}
			if a.Shared {
				gpu += " shared"
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", a.Job, a.Task, a.Host, gpu, a.Why)
		}
	}
	fmt.Fprintln(tw, "\nhost\tcpu\tnet in\tnet out\tgpu\tgpu memory\tmemory\tservers")
	for _, l := range r.Load {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", l.Host, percent(l.CPU), percent(l.NetIn), percent(l.NetOut), percent(l.GPU), percent(l.GPUMem), percent(l.Memory), l.Servers)
	}
	what := "the best that was found"
	switch {
	case moves:
		what = "before any move"
	case r.Exact:
		what = "within 3 % of the least that there can be"
	}
	fmt.Fprintf(tw, "\nmaximum load %s, %s\n", percent(r.MaxLoad), what)
	for _, m := range r.Infeasible {
		fmt.Fprintf(tw, "\n%s does not fit: %s\n", m.Job, m.Why)
	}
	return tw.Flush()
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
