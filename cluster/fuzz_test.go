package cluster

import "testing"

// FuzzParseTag parses what a member of the gossip may say of itself.
func FuzzParseTag(f *testing.F) {
	f.Add([]byte(`{"role":"serve"}`))
	f.Add([]byte(`{"role":"serve","addr":"127.0.0.1:7072","since":"2026-01-01T00:00:00Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if tag, ok := parseTag(b); ok && tag.Role != "serve" {
			t.Fatalf("%s has the role %q", b, tag.Role)
		}
	})
}
