package daemon

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/resource/gpu"
	"star/internal/settings"
	"star/job/process"
)

// samplerName is the command that a worker starts of its own program.
const samplerName = process.SamplerName

// samplerCommand is how a worker reads its GPU: this program in a process of its own.
func samplerCommand() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{self, samplerName}
}

// Devices are the GPUs and MIG slices that processes on this host could use; none without a GPU.
func Devices(ctx context.Context) ([]gpu.Device, error) {
	return gpu.List(ctx, gpu.Config{Sampler: samplerCommand()})
}

// GPUHealth is the health of the GPUs of this host; empty without a GPU.
func GPUHealth(ctx context.Context) ([]gpu.Health, error) {
	return gpu.Examine(ctx, gpu.Config{Sampler: samplerCommand()})
}

// Sampler prints the driver's state of a GPU, a JSON line per period, until its standard input ends. Workers start it
// as a process, so that a driver that crashes or hangs does not affect the worker.
func Sampler() *cobra.Command {
	var device string
	var every time.Duration
	var list, health bool
	cmd := &cobra.Command{
		Use:    samplerName,
		Short:  "Print the state of a GPU as JSON lines",
		Long:   "Reads one GPU through NVML and prints a JSON line each period, until its standard input ends. Workers\nstart it beside them.",
		Hidden: true,
		Args:   settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < time.Millisecond {
				return &settings.UsageError{Msg: fmt.Sprintf("--every %v: must be at least 1ms", every)}
			}
			runtime.GOMAXPROCS(2) // one of them may be in the driver
			if list {
				return gpu.PrintDevices(cmd.OutOrStdout())
			}
			if health {
				return gpu.PrintHealth(cmd.OutOrStdout())
			}
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			ctx, end := context.WithCancel(ctx)
			defer end()
			go func() {
				io.Copy(io.Discard, cmd.InOrStdin())
				end()
			}()
			return gpu.Sample(ctx, cmd.OutOrStdout(), device, every)
		},
	}
	cmd.Flags().StringVar(&device, "device", "0", "index or UUID of the GPU, or UUID of a MIG slice")
	cmd.Flags().BoolVar(&list, "list", false, "print the GPUs and MIG slices of this host, and end")
	cmd.Flags().BoolVar(&health, "health", false, "print the health of the GPUs of this host, and end")
	cmd.Flags().DurationVar(&every, "every", time.Second, "time between two lines")
	return cmd
}
