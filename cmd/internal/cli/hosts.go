package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"star/cluster/inventory"
)

// MoveWait is the least time that star ctl waits for a shard to move. The coordinator gives up earlier, unless the
// shard is large.
const MoveWait = 5 * time.Minute

// askTimeout is the time in which a host must list its GPUs. It is longer than what its driver is given.
const askTimeout = 40 * time.Second

// DetectGPUs lists the GPUs of the hosts with gpus: auto, by star inventory on each of them at the same time.
func DetectGPUs(ctx context.Context, hosts []inventory.Host) error {
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
