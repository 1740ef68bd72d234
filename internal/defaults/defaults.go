// Package defaults has the values of unset settings, where flags (internal/settings) and what libraries make of a zero
// Config (member, server) must agree. A default that only a flag has is defined with the flag.
package defaults

import "time"

// Values of unset settings.
const (
	Port    = "7070" // where star-ps listens and workers look for it
	Address = "127.0.0.1:" + Port
	AnyPort = "127.0.0.1:0" // where a worker listens
	Metrics = "7071"        // where star-ps has /metrics and the page of the job

	Job         = "star"
	Out         = "star-out"
	JoinTimeout = time.Minute
	DeadAfter   = 15 * time.Second
	OnFailure   = "shrink"

	Model       = "lenet"
	Dataset     = "digits"
	Batch       = 32
	Epochs      = 10
	Mode        = "ssgd" // star run: auto
	Optimizer   = "dana"
	LR          = 0.02
	Momentum    = 0.9
	Seed        = 1
	Schedule    = "constant"
	UpdateScale = "n"
	OnNaN       = "stop"
	Poison      = "skip"

	Compress   = "none"
	TreeFanIn  = 8
	PacePushes = "auto"
	Bucket     = 25 // MB
	Actuator   = "pace"
	Limit      = "none"
)
