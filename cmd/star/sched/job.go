package sched

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"star/internal/settings"
	"star/job"
	"star/sched/live"
)

// errJob marks a file that is no job of star sched submit.
var errJob = errors.New("no job")

// jobFile is a job as its file has it.
type jobFile struct {
	live.Spec `yaml:",inline"`
	Settings  map[string]setting `yaml:"settings"`
	Deadline  string             `yaml:"deadline"`
}

// setting is the value of a setting: a text, a number, or a list.
type setting string

// UnmarshalYAML takes what star's --config takes.
func (s *setting) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		var list []string
		if err := n.Decode(&list); err != nil {
			return err
		}
		*s = setting(strings.Join(list, ","))
		return nil
	}
	return n.Decode((*string)(s))
}

// scheduled are the settings of a job that the service makes.
var scheduled = []string{"workers", "min-workers", "max-workers", "servers", "shards", "rank", "coordinator", "coordinators", "token", "job", "out", "checkpoint", "resume", "samples", "epochs", "steps",
	"listen", "advertise", "json", "http", "log-format", "hosts", "demands", "host-id", "restarts", "worker-restarts", "revoke", "replicas", "gossip", "gossip-join"}

// notOfType matches the YAML package's error for a value that does not have its field's type.
var notOfType = regexp.MustCompile("cannot unmarshal !!([a-z]+)(?: (`[^`]*`))? into ([^ ;]+)")

// wantedTypes are types of fields of a job's file, in words.
var wantedTypes = map[string]string{
	fmt.Sprintf("%T", jobFile{}): "the keys of a job, such as name: lenet", fmt.Sprintf("%T", map[string]setting{}): "settings, such as {model: lenet}",
	"[]string": "a list, such as [python3, train.py]", "map[int]float64": "samples/s by number of workers, such as {1: 1000, 2: 1900}",
	"int": "a whole number", "int64": "a whole number below 2^63", "float64": "a number", "string": "a text",
	fmt.Sprintf("%T", setting("")): "a text, a number or a list",
}

// yamlSays is the YAML package's error for a job's file, without the names of our program's types.
func yamlSays(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var all *yaml.TypeError
	if errors.As(err, &all) {
		text = strings.Join(all.Errors, "; ")
	}
	text = strings.ReplaceAll(text, fmt.Sprintf(" in type %T", jobFile{}), ": want name, settings, command, samples, workers, min-workers, max-workers, rates or deadline")
	return notOfType.ReplaceAllStringFunc(text, func(said string) string {
		m := notOfType.FindStringSubmatch(said)
		is := cmp.Or(m[2], map[string]string{"seq": "a list", "map": "keys with values"}[m[1]], m[1])
		return fmt.Sprintf("want %s, not %s", cmp.Or(wantedTypes[m[3]], m[3]), is)
	})
}

// variables are settings as the environment has them, where a file has them by their names.
var variables = regexp.MustCompile(`(variable )?\b` + settings.Variable("") + `[A-Z0-9_]+`)

// wholeNumbers are the keys of a job's file that are counts.
var wholeNumbers = []string{"samples", "workers", "min-workers", "max-workers"}

// fractions returns an error for a count in a job's file that is not an integer: the YAML package would truncate it.
// Other errors are found later.
func fractions(text []byte) error {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) == 0 {
		return nil
	}
	whole := func(n *yaml.Node, what string) error {
		var v float64
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!float" && n.Decode(&v) == nil && v != math.Trunc(v) {
			return fmt.Errorf("line %d: %s: want a whole number, not %s", n.Line, what, n.Value)
		}
		return nil
	}
	top := doc.Content[0]
	for i := 0; top.Kind == yaml.MappingNode && i+1 < len(top.Content); i += 2 {
		key, v := top.Content[i], top.Content[i+1]
		for v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		if slices.Contains(wholeNumbers, key.Value) {
			if err := whole(v, key.Value); err != nil {
				return err
			}
		}
		for k := 0; key.Value == "rates" && v.Kind == yaml.MappingNode && k < len(v.Content); k += 2 {
			if err := whole(v.Content[k], "rates: workers"); err != nil {
				return err
			}
		}
	}
	return nil
}

// readJob reads the file of a job; - is standard input. What is wrong is named with file and line, where the line is
// known.
func readJob(file string) (spec live.Spec, err error) {
	bad := func(err error) error { return job.FileError(fmt.Errorf("%s: %w: %w", file, errJob, err), errJob) }
	var text []byte
	if file == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return spec, job.FileError(err, errJob)
	} else if err != nil { // for example a folder
		return spec, bad(err)
	}
	var f jobFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := fractions(text); err != nil {
		return spec, bad(err)
	}
	if err := d.Decode(&f); errors.Is(err, io.EOF) {
		return spec, bad(errors.New("it is empty: want name, settings, samples, max-workers"))
	} else if err != nil {
		return spec, bad(errors.New(yamlSays(err)))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return spec, bad(errors.New("more than one YAML document; keep one"))
	}
	spec = f.Spec
	if f.Deadline != "" {
		t, err := time.ParseDuration(f.Deadline)
		if err != nil || t <= 0 {
			return spec, bad(fmt.Errorf("deadline %q: want a duration from submission, such as 2h", f.Deadline))
		}
		spec.Deadline = t.Seconds()
	}
	if file != "-" && len(spec.Command) > 0 && strings.Contains(spec.Command[0], "/") { // the service may run elsewhere
		if spec.Command[0], err = filepath.Abs(spec.Command[0]); err != nil {
			return spec, err
		}
	}
	var environment []string
	spec.Settings = map[string]string{}
	for written, v := range f.Settings {
		// as it is in the end: settings reach processes as variables
		name := strings.ToLower(strings.ReplaceAll(written, "_", "-"))
		if slices.Contains(scheduled, name) {
			return spec, bad(fmt.Errorf("settings: %s is the service's: the file's own keys are samples, workers, min-workers, max-workers", written))
		}
		if _, twice := spec.Settings[name]; twice {
			return spec, bad(fmt.Errorf("settings: %s occurs twice, written in two ways", name))
		}
		spec.Settings[name] = string(v)
		environment = append(environment, settings.Variable(name)+"="+string(v))
	}
	j := new(settings.Job)
	j.Bind(&cobra.Command{Use: "star sched submit"}, settings.ForRun)
	warnings, err := j.Load(environment)
	if err == nil && len(warnings) > 0 {
		err = errors.New(strings.ReplaceAll(warnings[0], " and is ignored", ""))
	}
	if err != nil {
		return spec, bad(fmt.Errorf("settings: %s", variables.ReplaceAllStringFunc(err.Error(), func(v string) string {
			return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(v, "variable "), settings.Variable("")), "_", "-"))
		})))
	}
	return spec, nil
}
