package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cmd/internal/daemon"
	"star/internal/settings"
)

func inventoryCommand() *cobra.Command {
	s := new(settings.Set)
	var name, link string
	var asJSON bool
	settings.Var(s, &name, "name", "", "what the host is called; empty: its own name")
	settings.Var(s, &link, "interface", "", "network interface whose speed counts; empty: that of the default route")
	settings.Var(s, &asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "Say what this host has, as an entry for a file of hosts",
		Long: `Prints the entry of this host for the file of star place and star run --hosts: processors and memory, as far as
the control group may use them, the speed of the link, and the GPUs with their memory, MIG slices one by one, those of
CUDA_VISIBLE_DEVICES where that is set.

  star inventory >> cluster.yaml
  ssh gpu7 star inventory --name gpu7`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if done, err := resolved(cmd, s); done || err != nil {
				return err
			}
			f := inventory.Detect(link)
			if name != "" {
				f.Name = name
			}
			gpus, err := daemon.Devices(cmd.Context())
			if err != nil {
				f.Notes = append(f.Notes, "the GPUs could not be listed: "+strings.Join(strings.Fields(err.Error()), " "))
			}
			f.GPUs = []inventory.FoundGPU{}
			for _, g := range gpus {
				f.GPUs = append(f.GPUs, inventory.FoundGPU{UUID: g.UUID, Name: g.Name, Slices: g.Slices, Of: g.Of, Memory: g.Memory})
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(f)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), f.YAML())
			return err
		},
	}
	s.Bind(cmd)
	return cmd
}

// askTimeout is how long a host may take to say what it has: longer than its driver may.
const askTimeout = 40 * time.Second

// detectGPUs asks the hosts with gpus: auto, all at once, which they have.
func detectGPUs(ctx context.Context, hosts []inventory.Host) error {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	errs := make([]error, len(hosts))
	var all sync.WaitGroup
	for i := range hosts {
		if h := &hosts[i]; h.Detect {
			all.Go(func() { errs[i] = askHost(ctx, h, self) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// askHost runs star inventory on a host.
func askHost(ctx context.Context, h *inventory.Host, self string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if h.Program != "" {
		self = h.Program
	}
	words := append(append([]string{}, h.Launch...), self, "inventory", "--json")
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var f inventory.Found
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("no answer in %v", askTimeout)
	case err != nil && errs.Len() > 0:
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	case err == nil:
		err = json.Unmarshal(out.Bytes(), &f)
	}
	var ds []inventory.Device
	if err == nil {
		ds, err = f.Devices()
	}
	if err != nil {
		return fmt.Errorf("host %s: gpus: auto: %s: %w; list its GPUs in the file", h.Name, strings.Join(words, " "), err)
	}
	for _, n := range f.Notes {
		if strings.HasPrefix(n, "the GPUs could not be listed") {
			return fmt.Errorf("host %s: gpus: auto: %s; list them in the file", h.Name, n)
		}
	}
	h.SetGPUs(ds)
	return nil
}
