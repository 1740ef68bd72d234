package runlog

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star"
)

// agree holds what parseQuick makes of a line against what encoding/json makes of it.
func agree(b []byte) (quick bool, diff string) {
	got, t, ok := parseQuick(b)
	if !ok {
		return false, ""
	}
	if !json.Valid(b) {
		return true, "no JSON"
	}
	var h struct {
		Type string
		T    float64
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return true, err.Error()
	}
	if h.Type != got.kind() || h.T != float64(t) {
		return true, cmp.Diff(h.T, float64(t)) + h.Type
	}
	var want Entry
	var err error
	if h.Type == "record" {
		want, err = parseRecord(b)
	} else {
		shape := shapes[h.Type]
		want, err = shape.read(b, func(string, star.Worker) error { return nil })
	}
	if err != nil {
		return true, err.Error()
	}
	return true, cmp.Diff(want, got, cmpopts.EquateNaNs(), cmp.Comparer(func(a, b Number) bool { return a == b || a.IsZero() && b.IsZero() }))
}

// The lines that a job writes are read the quick way, to what encoding/json reads.
func TestQuick(t *testing.T) {
	quick := map[string]int{}
	for _, name := range []string{"testdata/ssgd.jsonl", "testdata/ring.jsonl", "testdata/queue.jsonl", "testdata/lines.jsonl"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			line = bytes.TrimSpace(line)
			ok, diff := agree(line)
			if diff != "" {
				t.Errorf("%s: %s\n%s", name, diff, line)
			}
			for _, kind := range []string{"record", "fire", "noise"} {
				if hot := bytes.HasPrefix(line, []byte(`{"type":"`+kind+`"`)); hot && !ok {
					t.Errorf("%s: not read the quick way: %s", name, line)
				} else if hot {
					quick[kind]++
				}
			}
		}
	}
	if len(quick) != 3 {
		t.Errorf("lines read: %v", quick)
	}
}

// A number that is read the quickest way is the one that strconv reads; others are left to it.
func TestPlainFloat(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	texts := []string{"0", "-0", "0.5", "00", "01", "-01.5", "1.", ".5", "-", "", "1.2.3", "1e5", "1.5E-3", "123456789012345", "1234567890123456", "0.000000000000001", "0.0000000000000001", "9.99999999999999",
		"9007199254740991", "9007199254740992", "90071992547409.91e2", "0.000000000000000000001", "1e22", "1e23", "1E-22", "1e-23", "1.5e+022", "1e", "1e+", "1e5.", "123456789012345678901", "18446744073709551617"}
	for i := range 2000 {
		texts = append(texts, strconv.FormatFloat(rng.ExpFloat64(), 'f', rng.IntN(18), 64), strconv.FormatFloat(rng.NormFloat64()*math.Exp(40*rng.NormFloat64()), "eg"[i%2], rng.IntN(18), 64), strconv.FormatInt(rng.Int64N(1<<50)-1<<49, 10), (time.Duration(rng.Int64N(1e13)).String()))
	}
	taken := 0
	for _, s := range texts {
		x, n := plainFloat([]byte(s + ","))
		if n == 0 {
			continue
		}
		taken++
		want, err := strconv.ParseFloat(s[:n], 64)
		if err != nil || math.Float64bits(x) != math.Float64bits(want) || !json.Valid([]byte(s[:n])) || n < len(s) && s[n] != 'm' && s[n] != 'h' && s[n] != 's' {
			t.Errorf("%q: %v of %d bytes, want %v (%v)", s, x, n, want, err)
		}
	}
	if taken < len(texts)/2 {
		t.Errorf("%d of %d are read that way", taken, len(texts))
	}
}

// Whatever the quick way takes is what encoding/json makes of it.
func FuzzQuick(f *testing.F) {
	for _, s := range []string{
		`{"type":"record","t":1.5,"worker":1,"step":0,"basis":0,"at":1,"load":0,"compute":0.1,"injected":0.01,"push":1e-5,"wait":0,"pull":0,"transit":0,"start":7,"samples":8,"more":[9,1],"loss":null,"norm2":1.5E+3,"cpu":0,"net_in":-0,"net_out":1,"telemetry":{"compute_cpu":1.01,"link_rate":8.1e+09}}`,
		`{"type":"fire","t":1,"seq":1,"version":1,"workers":[0,2],"staleness":[0,1],"reports":[],"dropped":[3],"pieces":[1,2],"more":null,"samples":16,"round":4}`,
		`{"type":"noise","t":1,"version":1,"grad2":-1.5,"var":null,"mixed":true,"scale":01,"drift":1.,"strength":1e}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, diff := agree(b); diff != "" {
			t.Fatalf("%s\n%s", diff, b)
		}
	})
}
