package data

import (
	"strings"
	"testing"
)

// Specifications of the same data are of one kind, whatever the path and the order, and however much of it is a
// default.
func TestKind(t *testing.T) {
	for _, c := range []struct{ a, b string }{
		{"digits", "digits:seed=1,test=2000,n=12000"},
		{"mnist:/a", "mnist:/b/c"},
		{"npz:/a.npz,test=0.1", "npz:b.npz"},
		{"cifar100:x", "cifar100:y,labels=fine"},
		{"csv:a.csv,norm=standard,header=auto", "csv:a.csv,test=0.1"},
		{"babble:window=64", "babble:n=200000"},
	} {
		a, err := Kind(c.a)
		b, more := Kind(c.b)
		if a != b || err != nil || more != nil {
			t.Errorf("%s is %q (%v), %s is %q (%v)", c.a, a, err, c.b, b, more)
		}
	}
	if a, _ := Kind("digits:n=400"); a != "digits:n=400,seed=1,test=2000" {
		t.Error(a)
	}
	for _, bad := range []string{"", "digit", "digits:m=3"} {
		if k, err := Kind(bad); err == nil {
			t.Errorf("%q is %q", bad, k)
		}
	}
	// Every option has a default that Usage names.
	for _, f := range Formats() {
		if k, err := Kind(f.Name); err != nil || strings.Count(k, "=") != len(f.Options) || strings.Contains(k+",", "=,") {
			t.Errorf("%s: %q, %v", f.Name, k, err)
		}
	}
}
