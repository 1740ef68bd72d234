package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// prober reads one GPU.
type prober interface {
	read() (Line, error) // unsupported metrics are absent; an error ends the sampler
	close()
}

// Sample prints a JSON line of the GPU's state to w now and every period, until ctx is done: it is the body of the
// process that Start starts. It reads device, an index or a UUID (or a unique prefix of one), through NVML. When it
// cannot continue, its last line has the reason; the error is the same, a *FinalError if a retry does not help.
//
// A call into NVML may hang, and this process cannot end it: the parent process has to watch this one.
func Sample(ctx context.Context, w io.Writer, device string, every time.Duration) error {
	return sample(ctx, w, every, func() (prober, error) { return openNVML(device) })
}

func sample(ctx context.Context, w io.Writer, every time.Duration, open func() (prober, error)) error {
	enc := json.NewEncoder(w)
	fail := func(err error) error {
		_, final := errors.AsType[*FinalError](err)
		return errors.Join(err, enc.Encode(Line{Error: err.Error(), Final: final}))
	}
	p, err := open()
	if err != nil {
		return fail(err)
	}
	defer p.close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		l, err := p.read()
		if err != nil {
			return fail(err)
		}
		if err := enc.Encode(l); err != nil {
			return err // the reader is gone
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
