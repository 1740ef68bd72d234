package node

import (
	"star/cmd/internal/inject"
	"star/cmd/internal/settings"
	"star/train/net"
)

// Check finds what is wrong with the texts among the settings that can be known
// without reading data: for star run, which would otherwise learn it from its
// children.
func Check(job *settings.Job) error {
	s := &server{job: job}
	if err := s.prepare(); err != nil {
		return err
	}
	if _, err := net.Parse(job.Model); err != nil {
		return job.Invalid("model", err)
	}
	slows, trace, err := handicaps(job)
	if err != nil {
		return err
	}
	if _, err := inject.New(inject.Config{Workers: job.Workers, Slows: slows, Trace: trace, By: inject.By(job.StragglerBy)}); err != nil {
		return job.Invalid("slow", err)
	}
	return nil
}
