package transport

import (
	"strings"
	"testing"

	"star/transport/wire"
)

func TestPass(t *testing.T) {
	key, other := NewKey(), NewKey()
	if len(key) < 26 || key == other { // 130 bits in base 32
		t.Fatalf("keys %q and %q", key, other)
	}
	attempt := Attempt{Number: 3<<32 | 7, Step: 41}
	good := Pass(key, wire.RoleWorker, 2, attempt)
	if got, ok := CheckPass(key, wire.RoleWorker, 2, good); !ok || got != attempt {
		t.Errorf("its own pass: %v, %v", got, ok)
	}
	if strings.Contains(good, key) {
		t.Error("the pass has the key in it")
	}
	mac := good[strings.LastIndexByte(good, '.')+1:]
	if len(mac) != 32 {
		t.Errorf("a MAC of %d hexadecimal digits, want 32", len(mac))
	}
	for name, bad := range map[string]string{
		"none":            "",
		"no MAC":          "12884901895.41.",
		"dots":            "..",
		"a higher life":   "12884901896.41." + mac,
		"another step":    "12884901895.40." + mac,
		"no number":       "x.41." + mac,
		"too long":        "99999999999999999999.41." + mac,
		"a MAC too short": good[:len(good)-1],
		"a MAC too long":  good + "0",
		"another key":     Pass(other, wire.RoleWorker, 2, attempt),
		"another rank":    Pass(key, wire.RoleWorker, 1, attempt),
		"another role":    Pass(key, wire.RoleServer, 2, attempt),
	} {
		if _, ok := CheckPass(key, wire.RoleWorker, 2, bad); ok {
			t.Errorf("%s: %q is good", name, bad)
		}
	}
	if got, ok := CheckPass("KJ3WQZ2MLCVHO5TYRB4XN6GDFA", wire.RoleWorker, 3, "12884901889.42.1d980a1062e50928a87651c84023413b"); !ok || got.Step != 42 {
		t.Error("what Python's hmac makes of docs/protocol.md is not good")
	}
	if p := Pass("", wire.RoleWorker, 2, attempt); p != "" {
		t.Errorf("without a key: %q", p)
	}
	if _, ok := CheckPass("", wire.RoleWorker, 2, "whatever"); !ok {
		t.Error("without a key a pass is refused")
	}
}
