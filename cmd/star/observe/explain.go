package observe

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"star/bench"
	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/observe/explain"
	"star/runlog"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{topCommand(), explainCommand(), compareCommand(), watchCommand(), viewCommand(), reportCommand(), exportCommand(), agentCommand()}
}

func explainCommand() *cobra.Command {
	s := new(settings.Set)
	var asJSON bool
	var picture string
	settings.Var(s, &picture, "plot", "", "file for a picture of the run: .svg, .pdf or .png")
	settings.Var(s, &asJSON, "json", false, "each time that a worker was slow as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "explain RUNLOG",
		Short: "Explain a run: which workers were slow, when, why, and what was done",
		Long: `Reads the run log of a job, also of one that was killed or still runs, and tells which workers were slow, from which iteration to which,
why, what was done about it, and what that brought.

  star explain star-out              the folder of a job
  star explain star-out/run.jsonl --plot run.svg
  star explain old.jsonl.gz --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: "star explain needs one run log, or the folder of a job"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var format string
			if picture != "" {
				var err error
				if format, err = bench.PlotFormat(picture); err != nil {
					return s.Invalid("plot", err)
				}
			}
			story, err := readStory(args[0])
			if err != nil {
				return err
			}
			if picture != "" {
				canvas, err := story.Picture(format)
				if err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}
				if err := bench.WritePlot(picture, canvas); err != nil {
					return err
				}
			}
			if asJSON {
				if lacks := story.Lacks(); lacks != "" {
					cli.Notice(args[0], lacks)
				}
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(story.Entries())
			}
			return story.Text(cmd.OutOrStdout(), view())
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// readStory reads the run log at path, or of the job in that folder.
func readStory(path string) (*explain.Story, error) {
	f, err := cli.OpenRun(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := explain.New()
	read, err := runlog.Read(f, f.Name(), t.Add)
	if err != nil {
		return nil, err
	}
	return t.Story(read), nil
}

// view is what standard output can show.
func view() (v explain.View) {
	fd := int(os.Stdout.Fd())
	if !term.IsTerminal(fd) {
		return v
	}
	if w, _, err := term.GetSize(fd); err == nil && w >= 40 {
		v.Width = w
	}
	v.Colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return v
}
