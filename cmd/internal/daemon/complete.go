package daemon

import (
	"strings"

	"github.com/spf13/cobra"

	"star/internal/compress"
	"star/modes"
	"star/modes/baseline"
	"star/train/data"
	"star/train/net"
)

// values maps settings that other packages parse to the values that a shell offers. A value that ends with "=" or ":"
// must be continued. Settings with a fixed list of values offer these, others files.
var values = map[string]func() []string{
	"mode": func() []string {
		words := []string{"auto", "tree=", "tree=auto"}
		names, _, _ := strings.Cut(modes.Grammar, ";")
		for mode := range strings.SplitSeq(names, " | ") {
			if name, _, ok := strings.Cut(mode, "="); ok {
				mode = name + "="
			}
			words = append(words, mode)
		}
		return words
	},
	"model": func() (words []string) {
		for _, name := range net.Names() {
			words = append(words, cobra.CompletionWithDesc(name, net.About(name)))
		}
		return words
	},
	"dataset": func() (words []string) {
		for _, f := range data.Formats() {
			word := f.Name
			if !strings.HasPrefix(f.Usage, word+"[") { // it wants a path
				word += ":"
			}
			words = append(words, cobra.CompletionWithDesc(word, f.Summary))
		}
		return words
	},
	"baseline": func() (words []string) {
		for _, e := range baseline.Entries() {
			words = append(words, e.Name)
		}
		return words
	},
	"compress":  func() []string { return append(compress.Names(), compress.Auto) },
	"schedule":  func() []string { return []string{"constant", "step=", "cosine=", "linear=", "warmup="} },
	"predictor": func() []string { return []string{"online", "none"} },
}

// Complete has a shell offer values for the flags of a command.
func Complete(cmd *cobra.Command) {
	for name, words := range values {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		cmd.RegisterFlagCompletionFunc(name, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			var fit []string
			directive := cobra.ShellCompDirectiveDefault // a file, where none fits: mnist:DIR
			for _, w := range words() {
				if strings.HasPrefix(w, typed) {
					fit = append(fit, w)
					if word, _, _ := strings.Cut(w, "\t"); strings.HasSuffix(word, "=") || strings.HasSuffix(word, ":") {
						directive |= cobra.ShellCompDirectiveNoSpace
					}
				}
			}
			return fit, directive
		})
	}
}
