package job_test

import (
	"errors"
	"fmt"
	"os"

	"star/job"
)

// A program fills in what its job does not have by default. Errors name the setting, as star-ps and star-worker call
// it, and have the exit code of these programs.
func Example() {
	j := job.Job{Workers: 4, Network: job.Network{Coordinator: "first-host:7070"}}
	j.Defaults()
	fmt.Println(j.Name, j.Arch, j.Coordinator, j.Batch, j.Optimizer, j.JoinTimeout)
	fmt.Println(j.Origin("workers"), "/", j.Origin("batch"))

	err := j.Invalid("batch", errors.New("want 1 or more"))
	fmt.Println(err, job.ExitCode(err))
	// Output:
	// star ps first-host:7070 32 dana 1m0s
	// the configuration / default
	// --batch: want 1 or more 2
}

// The exit code of a process says what kind of error ended it.
func ExampleExitCode() {
	_, missing := os.Open("/no/such/checkpoint")
	for _, err := range []error{
		nil,
		errors.New("of the caller's own"),
		job.FileError(missing, nil),
		&job.LostError{Err: errors.New("shard 1 at 10.0.0.2:7070")},
		&job.DisagreeError{Err: errors.New("another model")},
		&job.SignalError{Signal: os.Interrupt},
	} {
		fmt.Println(job.ExitCode(err), err)
	}
	// Output:
	// 0 <nil>
	// 1 of the caller's own
	// 66 open /no/such/checkpoint: no such file or directory
	// 69 lost: shard 1 at 10.0.0.2:7070
	// 78 another model
	// 130 ended by a signal: interrupt
}
