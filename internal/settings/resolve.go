package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"star/internal/exitcode"
)

// Flags that every bound command has besides its settings.
const (
	configFlag = "config"
	printFlag  = "print-config"
)

// maxFile is more than any file of settings needs.
const maxFile = 1 << 20 // bytes

// UsageError is a mistake of the person or program that started us: a bad flag,
// variable, key or value. Its exit code is 2.
type UsageError struct{ Msg string }

func (e *UsageError) Error() string { return e.Msg }

// ExitCode is 2.
func (e *UsageError) ExitCode() int { return exitcode.Usage }

// missingError is a file of settings that is not there.
type missingError struct{ error }

func (e *missingError) Unwrap() error { return e.error }

// ExitCode is the exit code for a missing file.
func (e *missingError) ExitCode() int { return exitcode.Missing }

// Found is a value that a launcher left behind, see [Detect]. A non-nil Err is the reason why it could not be
// parsed; that matters only if it is not set elsewhere.
type Found struct {
	Value  string
	Origin Origin
	Err    error
}

// Sources is where Resolve looks, besides the flags.
type Sources struct {
	// Environ is NAME=value, as of os.Environ.
	Environ []string

	// Detected holds values by name of setting.
	Detected map[string]Found

	// Foreign are variables that begin with STAR_ but are not settings of this
	// command and deserve no warning.
	Foreign []string

	// Others are keys, not settings of this command, that may be in a file that STAR_CONFIG names: variables of
	// a shell is for all its commands. In one that --config names they are mistakes.
	Others []string
}

// flagState is what Bind declared on the command.
type flagState struct {
	config string
	print  bool
	given  map[string][]string // flags in the order they were given
}

// Bind declares a flag for every setting on the command, and --config and
// --print-config. From then on a bad flag of the command is a UsageError with
// the flag that was probably meant. Call it once, after the last Var.
func (s *Set) Bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	s.flags.given = make(map[string][]string)
	for _, it := range s.items {
		help := it.help
		if len(it.choices) > 0 {
			help += " (" + strings.Join(named(it.choices), ", ") + ")"
		}
		f := fs.VarPF(&recorder{s: s, it: it}, it.name, "", help)
		if it.kind == "bool" {
			f.NoOptDefVal = "true"
		}
		if len(it.choices) > 0 {
			// it fails for flags that are not there
			cmd.RegisterFlagCompletionFunc(it.name, cobra.FixedCompletions(it.choices, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	fs.StringVar(&s.flags.config, configFlag, "", "file of settings, YAML (also STAR_CONFIG)")
	fs.BoolVar(&s.flags.print, printFlag, false, "print every setting with its origin, and exit")
	cmd.SetFlagErrorFunc(FlagError)
}

// recorder stores the text of a flag. It is parsed in Resolve, with
// everything else.
type recorder struct {
	s  *Set
	it *item
}

func (r *recorder) String() string {
	if r.it == nil { // pflag looks at a zero value
		return ""
	}
	if r.it.secret {
		return ""
	}
	return r.it.def()
}

func (r *recorder) Type() string { return r.it.kind }

func (r *recorder) Set(text string) error {
	r.s.flags.given[r.it.name] = append(r.s.flags.given[r.it.name], text)
	return nil
}

// FlagError turns pflag's error into a UsageError, with the flag that was
// probably meant. Bind installs it; commands without settings can use it with
// SetFlagErrorFunc.
func FlagError(cmd *cobra.Command, err error) error {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return &UsageError{fmt.Sprintf("%s: %v", cmd.CommandPath(), err)}
	}
	name := unknown.GetSpecifiedName()
	help := "help"
	if cmd.Flags().Lookup(helpAllFlag) != nil {
		help = helpAllFlag
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		// -workers instead of --workers is the usual slip.
		for _, n := range names {
			if word, _, _ := strings.Cut(short, "="); word == n {
				return &UsageError{fmt.Sprintf("%s: unknown flag -%s; did you mean --%s?", cmd.CommandPath(), n, short)}
			}
		}
		return &UsageError{fmt.Sprintf("%s: unknown flag -%s%s --%s lists them", cmd.CommandPath(), short,
			cmp.Or(meant(short, names, "--"), ";"), help)}
	}
	return &UsageError{fmt.Sprintf("%s: unknown flag --%s%s --%s lists them", cmd.CommandPath(), name,
		cmp.Or(meant(name, names, "--"), ";"), help)}
}

// NoArgs is for cobra.Command.Args: a stray word is a UsageError, which names the command that was meant where
// there are some.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if len(names) > 0 {
		return &UsageError{fmt.Sprintf("%s: unknown command %s%s --help lists them", cmd.CommandPath(), quote(args[0]),
			cmp.Or(meant(args[0], names, ""), ";"))}
	}
	return &UsageError{fmt.Sprintf("%s: unexpected argument %s; settings are flags, --help lists them",
		cmd.CommandPath(), quote(args[0]))}
}

// Resolve gives every setting its value. The warnings name variables that look like settings but are
// not. After an error the values must not be used.
func (s *Set) Resolve(src Sources) (warnings []string, err error) {
	for _, it := range s.items {
		it.reset()
		it.origin = Default
	}
	env := environ(src.Environ)

	file, fileFrom, others := s.flags.config, "--"+configFlag, []string(nil)
	if file == "" {
		file, fileFrom, others = env[Variable(configFlag)], Variable(configFlag), src.Others
	}
	var keys map[string]entry
	if file != "" {
		b, err := readLimited(file)
		if err != nil {
			err = fmt.Errorf("%s: %w", fileFrom, err)
			if errors.Is(err, fs.ErrNotExist) {
				return nil, &missingError{err}
			}
			return nil, &UsageError{err.Error()}
		}
		if keys, err = s.parseFile(file, b, others); err != nil {
			return nil, err
		}
	}

	for _, it := range s.items {
		// A value that is overridden is not even parsed: a file that many hosts share
		// may hold what only some of them can use.
		if texts, ok := s.flags.given[it.name]; ok {
			err = s.apply(it, texts, Origin("--"+it.name))
		} else if text := env[Variable(it.name)]; text != "" {
			err = s.apply(it, []string{text}, Origin(Variable(it.name)))
		} else if e, ok := keys[it.name]; ok {
			err = s.apply(it, e.texts, Origin(fmt.Sprintf("%s:%d", file, e.line)))
		} else if f, ok := src.Detected[it.name]; ok {
			if f.Err != nil {
				return nil, &UsageError{fmt.Sprintf("%s: %v; give --%s", f.Origin, f.Err, it.name)}
			}
			err = s.apply(it, []string{f.Value}, f.Origin)
		}
		if err != nil {
			return nil, err
		}
	}
	return append(s.Bared(), s.strange(src.Environ, src.Foreign)...), nil
}

// Bared warns of secrets on the command line, where every user of the host reads them (ps).
func (s *Set) Bared() (warnings []string) {
	for _, it := range s.items {
		if it.secret && it.origin == Origin("--"+it.name) && it.text() != "" {
			warnings = append(warnings, fmt.Sprintf("every user of this host can read the secret on the command line (--%s): give it as %s, or in a file that only you can read (--%s)",
				it.name, Variable(it.name), configFlag))
		}
	}
	return warnings
}

// LogsJSON reports whether a command that has been run logs JSON on purpose, not because it logs into a file. After an
// error of its settings it goes by those of them that were read.
func LogsJSON(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("log-format")
	if f == nil { // one that takes its settings from the environment only, and runs another one
		return cmd.Hidden && os.Getenv(Variable("log-format")) == "json"
	}
	r, ok := f.Value.(*recorder)
	if !ok {
		return false
	}
	if texts := r.s.flags.given[r.it.name]; len(texts) > 0 {
		return texts[len(texts)-1] == "json"
	}
	if text := os.Getenv(Variable(r.it.name)); text != "" {
		return text == "json"
	}
	return r.it.text() == "json"
}

// PrintWanted reports whether --print-config was given.
func (s *Set) PrintWanted() bool { return s.flags.print }

// entry is one key of the file.
type entry struct {
	texts []string
	line  int
}

// parseFile reads a YAML mapping of settings, and passes others over. Errors begin with file:line.
func (s *Set) parseFile(file string, b []byte, others []string) (map[string]entry, error) {
	fail := func(line int, format string, a ...any) error {
		return &UsageError{fmt.Sprintf("%s:%d: %s", file, line, fmt.Sprintf(format, a...))}
	}
	dec := yaml.NewDecoder(strings.NewReader(string(b)))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // empty, or only comments
	} else if err != nil {
		return nil, &UsageError{fmt.Sprintf("%s: %v", file, err)} // the text has the line
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &UsageError{fmt.Sprintf("%s: more than one YAML document; keep one", file)}
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fail(root.Line, "want lines of the form `setting: value`")
	}
	keys := make(map[string]entry)
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if s.byName[k.Value] == nil && slices.Contains(others, k.Value) {
			continue
		}
		if s.byName[k.Value] == nil || k.Kind != yaml.ScalarNode {
			return nil, fail(k.Line, "unknown key %s%s", quote(k.Value), meant(k.Value, s.Names(), ""))
		}
		if old, ok := keys[k.Value]; ok {
			return nil, fail(k.Line, "%s is already set in line %d", k.Value, old.line)
		}
		texts, err := s.byName[k.Value].texts(v)
		if err != nil {
			return nil, fail(v.Line, "%s: %v", k.Value, err)
		}
		keys[k.Value] = entry{texts, k.Line}
	}
	return keys, nil
}

// texts takes the value of a key apart. It follows no alias that leads to
// anything but a scalar, so a small file stays small.
func (it *item) texts(v *yaml.Node) ([]string, error) {
	scalar := func(n *yaml.Node) (string, error) {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return "", fmt.Errorf("want one %s", it.kind)
		}
		return n.Value, nil
	}
	if v.Kind != yaml.SequenceNode {
		text, err := scalar(v)
		return []string{text}, err
	}
	if !it.list {
		return nil, fmt.Errorf("want one %s, found a list", it.kind)
	}
	texts := make([]string, 0, len(v.Content))
	for _, n := range v.Content {
		text, err := scalar(n)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// Variable is the name of a setting in the environment: STAR_JOIN_TIMEOUT.
func Variable(name string) string {
	return "STAR_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// environ is a lookup by name. As in a shell, the last of two equal names counts.
func environ(list []string) map[string]string {
	env := make(map[string]string, len(list))
	for _, kv := range list {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	return env
}

// strange names the variables that begin with STAR_ and mean nothing.
func (s *Set) strange(list, foreign []string) (warnings []string) {
	known := map[string]bool{
		Variable(configFlag): true,
		"STAR_DATA":          true, // where the tests look for data sets
		"STAR_AGENT":         true, // where this program is, for a command of star run
		"STAR_LINK_FD":       true, // the link between such a program and its agent
		"STAR_LAUNCH":        true, // the same for a process that takes a worker's place: worker/configure
		"STAR_OFF":           true, // for programs: there is no job
	}
	variables := make([]string, 0, len(s.items))
	for _, it := range s.items {
		known[Variable(it.name)] = true
		variables = append(variables, Variable(it.name))
	}
	for _, name := range foreign {
		known[name] = true
	}
	for _, kv := range list {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "STAR_") || known[name] || kubernetesService(name) {
			continue
		}
		known[name] = true // once
		warnings = append(warnings, fmt.Sprintf("variable %s is not a setting and is ignored%s", name,
			meant(name, variables, "")))
	}
	return warnings
}

// kubernetesService recognises the variables that Kubernetes adds for every
// service of the namespace (Kubernetes documentation, "Service", section
// "Environment variables"): X_SERVICE_HOST, X_SERVICE_PORT, X_SERVICE_PORT_name,
// X_PORT and X_PORT_7070_TCP with _PROTO, _PORT or _ADDR.
func kubernetesService(name string) bool {
	if strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") {
		return true
	}
	i := strings.LastIndex(name, "_PORT")
	for i > 0 {
		rest := name[i+len("_PORT"):]
		if rest == "" {
			return true
		}
		parts := strings.Split(rest, "_") // "", "7070", "TCP", perhaps "ADDR"
		if len(parts) >= 3 && parts[1] != "" && strings.Trim(parts[1], "0123456789") == "" &&
			(parts[2] == "TCP" || parts[2] == "UDP" || parts[2] == "SCTP") {
			return true
		}
		i = strings.LastIndex(name[:i], "_PORT")
	}
	return false
}

func readLimited(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes: not a file of settings", file, maxFile)
	}
	return b, nil
}
