package data_test

import (
	"testing"

	"star/train/data"
)

// Data sets of one kind and size have one digest each, and always the same one.
func TestDigest(t *testing.T) {
	seen := map[string]string{}
	for _, spec := range []string{
		"digits:n=600,test=10,seed=1", "digits:n=600,test=10,seed=2", "digits:n=100,test=10,seed=1", "shapes:n=600,test=10", "babble:n=4000,test=0.1", "babble:n=4000,test=0.1,seed=2",
	} {
		var first string
		for range 2 {
			train, _, err := data.Open(spec, data.Options{})
			if err != nil {
				t.Fatal(err)
			}
			d, err := data.Digest(train)
			if err != nil {
				t.Fatal(err)
			}
			if first != "" && d != first {
				t.Errorf("%s: %s, then %s", spec, first, d)
			}
			first = d
		}
		if other, ok := seen[first]; ok {
			t.Errorf("%s and %s have the digest %s", spec, other, first)
		}
		seen[first] = spec
	}
}
