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
	read() (Line, error) // what is not supported is absent; an error ends the sampler
	close()
}

// Sample prints a JSON line of the GPU's state to w now and every period, until ctx is done:
// it is the body of the process that Start starts. It reads device, an index or a UUID
// (or the only beginning of one), through NVML. When it cannot go on, its last line says why; the error
// is the same, a *FinalError if it is no use to try again.
//
// A call into NVML that does not come back does not come back: nothing in this process
// can end it. Whoever starts it watches it.
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
			return err // nobody reads any more
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
