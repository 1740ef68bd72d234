package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"
)

func meet(t *testing.T, cfg GossipConfig) *Gossip {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cfg.Bind = "127.0.0.1:0"
	g, err := Meet(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// A caller that knows any member finds a service, and a second service under the same name learns of the first,
// whichever of them joins the other.
func TestGossip(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	at := time.Unix(1795219200, 0)
	first := meet(t, GossipConfig{Cluster: "rack1", Key: key, Place: Place{Addr: "10.0.0.2:7072", Since: at, ID: "a"}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := Find(ctx, GossipConfig{Cluster: "rack1", Bind: "127.0.0.1:0", Key: key, Seeds: []string{first.Addr()}})
	if err != nil || p.Addr != "10.0.0.2:7072" || p.ID != "a" || !p.Since.Equal(at) {
		t.Fatalf("found %+v, %v", p, err)
	}

	second := meet(t, GossipConfig{Cluster: "rack1", Key: key, Place: Place{Addr: "10.0.0.3:7072", Since: at.Add(time.Second), ID: "b"}, Seeds: []string{first.Addr()}})
	if ps := second.Places(); len(ps) != 1 || ps[0].ID != "a" {
		t.Errorf("the second one sees %+v", ps)
	}
	select {
	case r := <-second.Rivals():
		if r.ID != "a" || r.Addr != "10.0.0.2:7072" {
			t.Errorf("the rival is %+v", r)
		}
	case <-ctx.Done():
		t.Error("the second one never learned of the first")
	}
	select {
	case r := <-first.Rivals():
		t.Errorf("the first one takes %+v for older", r)
	default:
	}
}

// The error of a member that has another key, or names another cluster, says what to look at.
func TestGossipOfStrangers(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 16)
	first := meet(t, GossipConfig{Cluster: "rack1", Key: key, Place: Place{Addr: "10.0.0.2:7072", Since: time.Unix(1, 0), ID: "a"}})
	for name, cfg := range map[string]GossipConfig{
		"another key":     {Cluster: "rack1", Key: bytes.Repeat([]byte{8}, 16)},
		"no key":          {Cluster: "rack1"},
		"another cluster": {Cluster: "rack2", Key: key},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		cfg.Bind, cfg.Seeds = "127.0.0.1:0", []string{first.Addr()}
		_, err := Find(ctx, cfg)
		cancel()
		var seed *SeedError
		if !errors.As(err, &seed) || !strings.Contains(err.Error(), cfg.Cluster) || seed.ExitCode() != 69 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadKey(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n", ""},
		{base64.StdEncoding.EncodeToString(make([]byte, 16)), ""},
		{base64.StdEncoding.EncodeToString(make([]byte, 20)), "20 bytes, want 16, 24 or 32"},
		{"secret!", "want one line of base64"},
		{"", "0 bytes"},
	} {
		_, err := ReadKey(strings.NewReader(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

// What a member says of itself is not trusted.
func TestTag(t *testing.T) {
	for _, text := range []string{
		"", "{}", "[]", `{"role":"look","addr":"a:1","id":"x"}`, `{"role":"serve","addr":"nowhere","id":"x"}`, `{"role":"serve","addr":"a:1"}`,
		`{"role":"serve","addr":"a:1","id":"x","since":"yesterday"}`, `{"role":"serve","addr":"a:1","id":"` + strings.Repeat("x", 600) + `"}`,
	} {
		if _, ok := parseTag([]byte(text)); ok {
			t.Errorf("%q passes", text)
		}
	}
	if got, ok := parseTag([]byte(`{"role":"serve","addr":"a:1","id":"x","since":"2026-11-22T00:00:00Z"}`)); !ok || got.Addr != "a:1" {
		t.Errorf("%+v, %v", got, ok)
	}
}
