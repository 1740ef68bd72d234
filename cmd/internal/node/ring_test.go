package node

import (
	"strings"
	"testing"

	"star/cmd/internal/settings"
)

// A transport that is forced is a part of the rule that members and coordinator compare, and so are checksums; what is chosen by itself is not.
func TestForcedTransportIsAgreedOn(t *testing.T) {
	job := &settings.Job{Transport: "auto", Algorithm: "auto", Checksum: "auto"}
	free := ruleText(job)
	job.Checksum = "on"
	if forced := ruleText(job); forced != free+" allreduce-checksum=on" {
		t.Errorf("the rule is %q, with checksums %q", free, forced)
	}
	job.Checksum = "auto"
	job.Transport = "unix"
	if forced := ruleText(job); strings.Contains(free, "transport") || forced != free+" allreduce-transport=unix" {
		t.Errorf("the rule is %q, forced %q", free, forced)
	}
}

// Shared memory cannot be had with TLS, and whoever asks for both is told so at once.
func TestForcedTransportAndTLS(t *testing.T) {
	for kind, no := range map[string]bool{"shm": true, "unix": true, "tcp": false, "auto": false} {
		if err := checkTransport(kind, true); (err != nil) != no {
			t.Errorf("%s with TLS: %v", kind, err)
		}
		if err := checkTransport(kind, false); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
