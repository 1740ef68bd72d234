package node

import (
	"reflect"
	"strings"
	"testing"

	"star/cmd/internal/settings"
	"star/transport"
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

// What members tell each other of riders and memos comes out as it went in.
func TestWhatMembersTell(t *testing.T) {
	for _, text := range []string{"", "a", "12345678", `{"term":3}`} {
		if got := string(unpackBytes(packBytes([]byte(text)))[:len(text)]); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	want := []transport.Tally{
		{Worker: 1, Generation: 5, Version: 8, Carried: []transport.Gradient{{Worker: 2, Step: 96, Weight: .25}}, Dropped: []transport.Gradient{{Worker: 3, Step: 4}}},
		{Worker: 1, Generation: 5, Version: 9},
	}
	if got := unpackTallies(packTallies(want), 1); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v became %+v", want, got)
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
