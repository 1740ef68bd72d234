package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"pgregory.net/rapid"
)

// small is a set with one setting of each type.
type small struct {
	set     Set
	name    string
	token   Secret
	on      bool
	count   int
	big     int64
	seed    uint64
	rate    float64
	wait    time.Duration
	slow    []string
	shares  []int
	flavour string
}

func (c *small) command() *cobra.Command {
	s := &c.set
	Var(s, &c.name, "name", "star", "")
	Var(s, &c.token, "token", "", "")
	Var(s, &c.on, "on", false, "")
	Var(s, &c.count, "count", 4, "")
	Var(s, &c.big, "big", 0, "")
	Var(s, &c.seed, "seed", 1, "")
	Var(s, &c.rate, "rate", 0.5, "")
	Var(s, &c.wait, "join-timeout", time.Minute, "")
	Var(s, &c.slow, "slow", nil, "")
	Var(s, &c.shares, "shares", nil, "")
	Var(s, &c.flavour, "flavour", "sweet", "", "sweet", "sour")
	cmd := &cobra.Command{Use: "test", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return nil },
		SilenceErrors: true, SilenceUsage: true}
	s.Bind(cmd)
	return cmd
}

// resolve runs a command line with a file of settings, if any.
func (c *small) resolve(t *testing.T, file string, env []string, args ...string) ([]string, error) {
	t.Helper()
	cmd := c.command()
	if file != "" {
		name := filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(name, []byte(file), 0o666); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", name)
	}
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		return nil, err
	}
	return c.set.Resolve(Sources{Environ: env, Detected: map[string]Found{
		"count": {Value: "11", Origin: "torchrun (WORLD_SIZE)"},
		"big":   {Origin: "Slurm (SLURM_PROCID)", Err: errors.New("is broken")},
	}})
}

func TestPrecedence(t *testing.T) {
	const file = "big: 1\ncount: 22\n"
	for _, c := range []struct {
		name   string
		file   string
		env    []string
		args   []string
		count  int
		origin string // suffix
	}{
		{"detected", "big: 1", nil, nil, 11, "torchrun (WORLD_SIZE)"},
		{"file", file, nil, nil, 22, "job.yaml:2"},
		{"variable", file, []string{"STAR_COUNT=33"}, nil, 33, "STAR_COUNT"},
		{"empty variable", file, []string{"STAR_COUNT="}, nil, 22, "job.yaml:2"},
		{"flag", file, []string{"STAR_COUNT=33"}, []string{"--count", "44"}, 44, "--count"},
		{"flag twice", file, nil, []string{"--count", "44", "--count=55"}, 55, "--count"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s small
			warnings, err := s.resolve(t, c.file, c.env, c.args...)
			if err != nil || len(warnings) > 0 {
				t.Fatal(err, warnings)
			}
			if s.count != c.count || !strings.HasSuffix(string(s.set.Origin("count")), c.origin) {
				t.Errorf("count = %d from %q, want %d from …%q", s.count, s.set.Origin("count"), c.count, c.origin)
			}
			if s.wait != time.Minute || s.set.IsSet("join-timeout") {
				t.Errorf("join-timeout = %v from %q, want the default", s.wait, s.set.Origin("join-timeout"))
			}
		})
	}
}

// An override must also rescue a value that could not have been used.
func TestOverriddenValueIsNotParsed(t *testing.T) {
	var s small
	if _, err := s.resolve(t, "count: many", nil, "--count=3", "--big=1"); err != nil || s.count != 3 {
		t.Errorf("count = %d, %v", s.count, err)
	}
}

func TestConfigFromVariable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(name, []byte("name: other\nbig: 1"), 0o666); err != nil {
		t.Fatal(err)
	}
	var s small
	warnings, err := s.resolve(t, "", []string{"STAR_CONFIG=" + name})
	if err != nil || s.name != "other" || len(warnings) > 0 {
		t.Errorf("name = %q, %v, %v", s.name, err, warnings)
	}
}

// A file that STAR_CONFIG names may belong to a job, with settings that a tool lacks; one that --config names may not.
func TestConfigOfAJob(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("name: other\nreplicas: 2\nrank: 1"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		environ, args, others []string
		want                  string
	}{
		"variable":        {[]string{"STAR_CONFIG=" + file}, nil, JobNames(), ""},
		"nobody's":        {[]string{"STAR_CONFIG=" + file}, nil, []string{"rank"}, `job.yaml:2: unknown key "replicas"`},
		"flag":            {nil, []string{"--config=" + file}, JobNames(), `job.yaml:2: unknown key "replicas"`},
		"flag, and other": {[]string{"STAR_CONFIG=nowhere.yaml"}, []string{"--config=" + file}, JobNames(), `job.yaml:2: unknown key "replicas"`},
	} {
		var s small
		cmd := s.command()
		cmd.SetArgs(c.args)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		_, err := s.set.Resolve(Sources{Environ: c.environ, Others: c.others})
		if c.want == "" && (err != nil || s.name != "other") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: name %q, %v; want %q", name, s.name, err, c.want)
		}
	}
}

func TestTypes(t *testing.T) {
	want := small{name: "a b", token: "x", on: true, count: -3, big: 1 << 40, seed: 1<<64 - 1, rate: 1e-3,
		wait: 90 * time.Second, slow: []string{"2:3x", "1:+50ms"}, shares: []int{1, 2, 3}, flavour: "sour"}
	for name, c := range map[string]struct {
		file string
		env  []string
		args []string
	}{
		"flags": {args: []string{"--name=a b", "--token=x", "--on", "--count=-3", "--big=1099511627776", "--seed=18446744073709551615",
			"--rate=1e-3", "--join-timeout=90s", "--slow=2:3x", "--slow", "1:+50ms", "--shares=1,2", "--shares", "3", "--flavour=sour"}},
		"variables": {env: []string{"STAR_NAME=a b", "STAR_TOKEN=x", "STAR_ON=true", "STAR_COUNT=-3", "STAR_BIG=1099511627776",
			"STAR_SEED=18446744073709551615", "STAR_RATE=0.001", "STAR_JOIN_TIMEOUT=1m30s", "STAR_SLOW=2:3x, 1:+50ms",
			"STAR_SHARES=1,2,3", "STAR_FLAVOUR=sour"}},
		"file": {file: `
name: a b
token: x
on: true
count: -3
big: 1099511627776
seed: 18446744073709551615
rate: 0.001
join-timeout: 90s
slow:
  - 2:3x
  - 1:+50ms
shares: [1, 2, 3]
flavour: sour
`},
	} {
		t.Run(name, func(t *testing.T) {
			var s small
			if _, err := s.resolve(t, c.file, c.env, c.args...); err != nil {
				t.Fatal(err)
			}
			s.set = Set{}
			if d := cmp.Diff(want, s, cmp.AllowUnexported(small{}), cmp.Comparer(func(a, b Set) bool { return true })); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		file string
		env  []string
		args []string
		want []string // parts of the message
	}{
		{"unknown flag", "", nil, []string{"--join-timeuot=3s"}, []string{"--join-timeuot", "did you mean --join-timeout?"}},
		{"flag with one hyphen", "", nil, []string{"-count=3"}, []string{"did you mean --count=3?"}},
		{"flag nothing like", "", nil, []string{"--zebra"}, []string{"--zebra", "--help lists them"}},
		{"flag without value", "", nil, []string{"--count"}, []string{"--count"}},
		{"argument", "", nil, []string{"count"}, []string{`"count"`}},
		{"bad int", "", nil, []string{"--count=3x"}, []string{`--count: "3x" is not a whole number`}},
		{"bad int in the file", "count: 3x", nil, nil, []string{`job.yaml:1: count: "3x" is not a whole number`}},
		{"huge int", "", nil, []string{"--count=99999999999999999999"}, []string{"out of range"}},
		{"negative seed", "", nil, []string{"--seed=-1"}, []string{"at least 0"}},
		{"NaN", "", nil, []string{"--rate=nan"}, []string{"finite"}},
		{"no unit", "", []string{"STAR_JOIN_TIMEOUT=30"}, nil, []string{"STAR_JOIN_TIMEOUT", `"30"`, "30s"}},
		{"bad bool", "on: maybe", nil, nil, []string{"job.yaml:1", "true or false"}},
		{"choice", "", nil, []string{"--flavour=sor"}, []string{"sweet, sour", "did you mean sour?"}},
		{"bad list", "", nil, []string{"--shares=1,b"}, []string{`"b"`}},
		{"unknown key", "\ncuont: 3\n", nil, nil, []string{"job.yaml:2", `"cuont"`, "did you mean count?"}},
		{"underscore in key", "join_timeout: 3s", nil, nil, []string{"did you mean join-timeout?"}},
		{"key twice", "count: 3\ncount: 4", nil, nil, []string{"job.yaml:2", "line 1"}},
		{"list for scalar", "count: [1, 2]", nil, nil, []string{"job.yaml:1", "list"}},
		{"mapping", "count:\n  a: 1", nil, nil, []string{"job.yaml:2", "int"}},
		{"no value", "count:", nil, nil, []string{"job.yaml:1", "int"}},
		{"not a mapping", "- count", nil, nil, []string{"job.yaml:1", "setting: value"}},
		{"two documents", "count: 1\n---\ncount: 2", nil, nil, []string{"more than one"}},
		{"not YAML", "count: [", nil, nil, []string{"job.yaml", "line"}},
		{"a folder", "", nil, []string{"--config=/"}, []string{"--config"}},
		{"detection failed", "", nil, nil, []string{"Slurm (SLURM_PROCID)", "is broken", "give --big"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s small
			if c.name != "detection failed" {
				c.args = append(c.args, "--big=1")
			}
			_, err := s.resolve(t, c.file, c.env, c.args...)
			if _, ok := errors.AsType[*UsageError](err); !ok {
				t.Fatalf("error %T %v, want a UsageError", err, err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestInvalid(t *testing.T) {
	var s small
	if _, err := s.resolve(t, "rate: 3", []string{"STAR_TOKEN=hunter2"}, "--big=1"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"big":   `--big "1": no`,
		"count": `--count "11" (from torchrun (WORLD_SIZE)): no`,
		"name":  `--name "star" (the default): no`,
		"token": `--token "(secret)" (from STAR_TOKEN): no`,
	} {
		if got := s.set.Invalid(name, errors.New("no")).Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestStrangeVariables(t *testing.T) {
	var s small
	warnings, err := s.resolve(t, "", []string{
		"STAR_JION_TIMEOUT=3s", "STAR_DATA=/d", "STARTED=1", "PATH=/bin",
		"STAR_PS_SERVICE_HOST=10.0.0.1", "STAR_PS_SERVICE_PORT_DATA=7070", "STAR_PORT=tcp://10.0.0.1:7070",
		"STAR_PS_PORT_7070_TCP_ADDR=10.0.0.1", "STAR_PS_PORT_7070_TCP=x", "STAR_PORTAL=1", "STAR_PORTAL=2",
	}, "--big=1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"variable STAR_JION_TIMEOUT is not a setting and is ignored; did you mean STAR_JOIN_TIMEOUT?",
		"variable STAR_PORTAL is not a setting and is ignored",
	}
	if d := cmp.Diff(want, warnings); d != "" {
		t.Error(d)
	}
}

func TestPrint(t *testing.T) {
	var s small
	if _, err := s.resolve(t, "", []string{"STAR_TOKEN=hunter2"}, "--big=7", "--join-timeout=1500ms"); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.set.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"SETTING       VALUE     ORIGIN",
		"token         (secret)  STAR_TOKEN",
		"big           7         --big",
		"join-timeout  1.5s      --join-timeout",
		"shares        -         default",
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %q in\n%s", line, &b)
		}
	}
	j, err := json.Marshal(&s.set)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]struct {
		Value  any
		Origin string
	}
	if err := json.Unmarshal(j, &got); err != nil {
		t.Fatal(err)
	}
	if got["join-timeout"].Value != 1.5 || got["token"].Value != redacted || got["big"].Origin != "--big" {
		t.Errorf("%s", j)
	}
	if strings.Contains(string(j)+b.String(), "hunter2") {
		t.Error("the secret is shown")
	}
}

// A child started with Environ has the same values.
func TestEnvironRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		word := rapid.StringMatching(`[a-z0-9:=/+. -]{0,12}`)
		item := rapid.StringMatching(`[a-z0-9:=/+.-]{1,12}`)
		args := []string{
			"--name=" + word.Draw(rt, "name"),
			"--token=" + word.Draw(rt, "token"),
			"--on=" + rapid.SampledFrom([]string{"true", "false"}).Draw(rt, "on"),
			"--count=" + format(rapid.Int().Draw(rt, "count")),
			"--big=" + format(rapid.Int64().Draw(rt, "big")),
			"--seed=" + format(rapid.Uint64().Draw(rt, "seed")),
			"--rate=" + format(rapid.Float64().Draw(rt, "rate")),
			"--join-timeout=" + format(time.Duration(rapid.Int64().Draw(rt, "wait"))),
			"--shares=" + format(rapid.SliceOf(rapid.Int()).Draw(rt, "shares")),
			"--slow=" + format(rapid.SliceOf(item).Draw(rt, "slow")),
		}
		var parent, child small
		if _, err := parent.resolve(t, "", nil, args...); err != nil {
			rt.Fatal(err)
		}
		if parent.name == "" {
			parent.name = "star" // an empty text cannot be handed on, and no setting needs that
		}
		if _, err := child.resolve(t, "", parent.set.Environ()); err != nil {
			rt.Fatal(err)
		}
		ignore := cmp.Comparer(func(a, b Set) bool { return true })
		if d := cmp.Diff(parent, child, cmp.AllowUnexported(small{}), ignore); d != "" {
			rt.Error(d)
		}
	})
}

func TestEnvironExcept(t *testing.T) {
	var s small
	if _, err := s.resolve(t, "", nil, "--big=7", "--name=x", "--count=5"); err != nil {
		t.Fatal(err)
	}
	if got := s.set.Environ("name"); !cmp.Equal(got, []string{"STAR_COUNT=5", "STAR_BIG=7"}) {
		t.Error(got)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"workers", "servers", "shards", "join-timeout", "dead-after", "lr", "log-level", "log-format"}
	for word, want := range map[string]string{
		"worker": "workers", "wrokers": "workers", "Workers": "workers", "join_timeout": "join-timeout",
		"timeout": "join-timeout", "log": "log-level", "shard": "shards", "l": "", "banana": "", "": "", "xyzzy": "",
	} {
		if got := Nearest(word, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("count: 3\nslow: [a, b]\n")
	f.Add("a: &x [*x]\ncount: *x")
	f.Add("count: &a 1\nbig: *a\n<<: {name: b}")
	f.Add("---\n...\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		var s small
		s.command()
		keys, err := s.set.parseFile("f", []byte(text), nil)
		if err != nil {
			if _, ok := errors.AsType[*UsageError](err); !ok {
				t.Fatalf("%T", err)
			}
			return
		}
		for name, e := range keys {
			if s.set.byName[name] == nil || e.line < 1 {
				t.Fatalf("key %q line %d", name, e.line)
			}
		}
	})
}

// A file of settings that is not there is a missing file, and not a slip on the command line.
func TestConfigMissing(t *testing.T) {
	for _, c := range []struct {
		file string
		exit int
	}{{filepath.Join(t.TempDir(), "nowhere.yaml"), 66}, {t.TempDir(), 2}} {
		var s Set
		x := 0
		Var(&s, &x, "x", 1, "a number")
		_, err := s.Resolve(Sources{Environ: []string{"STAR_CONFIG=" + c.file}})
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != c.exit || !strings.Contains(err.Error(), "STAR_CONFIG: ") {
			t.Errorf("%s: %v, want exit code %d", c.file, err, c.exit)
		}
	}
}
