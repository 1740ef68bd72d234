package net

import (
	"context"
	"strings"
	"testing"

	"star/train"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"softmax", "softmax"},
		{"resnet20:width=0.5", "resnet20:width=0.5"},
		{"resnet20: projection=true , width=0.5", "resnet20:projection=true,width=0.5"},
		{"mlp:hidden=10-20-30", "mlp:hidden=10-20-30"},
	} {
		s, err := Parse(c.in)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.in, err)
		} else if got := s.String(); got != c.want {
			t.Errorf("Parse(%q) = %s, want %s", c.in, got, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ in, says string }{
		{"", "there are alexnet"},
		{"resnet21", "resnet20"},
		{"mlp:", "not key=value"},
		{"mlp:hidden", "not key=value"},
		{"mlp:=3", "not key=value"},
		{"mlp:hiden=3", "it has hidden"},
		{"softmax:width=1", "it has none"},
		{"mlp:hidden=0", "between 1 and"},
		{"mlp:hidden=10-x", "such as 256-128"},
		{"mlp:hidden=", "such as 256-128"},
		{"mlp:hidden=3,hidden=4", "given twice"},
		{"resnet20:width=-1", "between"},
		{"resnet20:width=NaN", "between"},
		{"resnet20:width=1e9", "between"},
		{"resnet20:projection=maybe", "true or false"},
		{"alexnet:dropout=1", "between 0 and 0.95"},
	} {
		if _, err := Parse(c.in); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Parse(%q): %v; want an error with %q", c.in, err, c.says)
		}
	}
}

func TestBuildRefusesWhatDoesNotFit(t *testing.T) {
	tokens := train.Input{Shape: []int{8}, Classes: 20, Tokens: true}
	for _, c := range []struct {
		spec Spec
		says string
	}{
		{Spec{Name: "lenet", Input: tokens}, "tokens"},
		{Spec{Name: "softmax", Input: tokens}, "tokens"},
		{Spec{Name: "lenet", Input: flat}, "images"},
		{Spec{Name: "vgg11", Input: mnist}, "at least 32x32"},
		{Spec{Name: "mlp", Input: train.Input{Shape: []int{3}}}, "0 classes"},
		{Spec{Name: "mlp", Input: train.Input{Classes: 3}}, "shape []"},
		{Spec{Name: "mlp", Input: train.Input{Shape: []int{3, 0}, Classes: 3}}, "positive"},
		{Spec{Name: "mlp", Input: flat, Settings: map[string]string{"hidden": "65536-65536-65536"}}, "more than 2147483648 parameters"},
		{Spec{Name: "mlp", Input: flat, Batch: -1}, "batch -1"},
		{Spec{Name: "nothing", Input: flat}, "unknown model"},
		{Spec{Name: "mlp", Input: flat, Settings: map[string]string{"depth": "3"}}, "it has hidden"},
	} {
		if _, err := Build(c.spec); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Build(%v): %v; want an error with %q", c.spec, err, c.says)
		}
	}
}

const mlpHash = "43bf051e75de5278dd10c31787b89a0e"

// The hash is the same for the same model and differs with everything that
// changes the initial parameters, but not with the batch size.
func TestHash(t *testing.T) {
	base := Spec{Name: "mlp", Input: flat, Seed: 1}
	// Two builds of the program must agree about it.
	if got, err := Hash(base); got != mlpHash || err != nil {
		t.Errorf("hash %s, %v; want %s", got, err, mlpHash)
	}
	hash := func(s Spec) string {
		h, err := Hash(s)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	same := base
	same.Batch = 64
	same.Settings = map[string]string{"hidden": "256-128"} // the default
	if hash(base) != hash(same) {
		t.Error("the batch size or a default that is written out changes the hash")
	}
	seen := map[string]string{hash(base): "base"}
	for name, f := range map[string]func(*Spec){
		"name":    func(s *Spec) { s.Name = "softmax" },
		"setting": func(s *Spec) { s.Settings = map[string]string{"hidden": "256"} },
		"seed":    func(s *Spec) { s.Seed = 2 },
		"input":   func(s *Spec) { s.Input.Shape = []int{3, 4} },
		"classes": func(s *Spec) { s.Input.Classes = 6 },
	} {
		s := base
		f(&s)
		h := hash(s)
		if was, ok := seen[h]; ok {
			t.Errorf("%s and %s have the same hash", was, name)
		}
		if len(h) != 32 {
			t.Errorf("hash %q is not 32 digits", h)
		}
		seen[h] = name
	}
}

// Parameter counts by hand, or from the papers.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want int
	}{
		{Spec{Name: "softmax", Input: mnist}, 7850},
		{Spec{Name: "mlp", Input: mnist}, 784*256 + 256 + 256*128 + 128 + 1290},
		// LeCun et al.: 60k
		{Spec{Name: "lenet", Input: mnist}, 61706},
		// He et al., table 6: 0.27M
		{Spec{Name: "resnet20", Input: cifar}, 269722},
		{Spec{Name: "resnet32", Input: cifar}, 464154},                                                    // 0.46M
		{Spec{Name: "resnet56", Input: cifar}, 853018},                                                    // 0.85M
		{Spec{Name: "resnet20", Input: cifar, Settings: map[string]string{"projection": "true"}}, 272474}, // torch
		{Spec{Name: "vgg11", Input: cifar, Settings: map[string]string{"bn": "false"}}, 9225610},
		{Spec{Name: "mobilenetv2", Input: cifar}, 2236682}, // Sandler et al. without the shortcuts' convolutions
	} {
		m, err := declare(c.spec, false)
		if err != nil {
			t.Fatal(err)
		}
		last := m.layout[len(m.layout)-1]
		if got := last.Offset + last.Len(); got != c.want {
			t.Errorf("%v has %d parameters, want %d", c.spec, got, c.want)
		}
	}
}

func TestAbout(t *testing.T) {
	for _, name := range Names() {
		if About(name) == "" {
			t.Errorf("About(%q) is empty", name)
		}
	}
	if About("nothing") != "" {
		t.Error("About of an unknown model is not empty")
	}
	d, err := Describe(Spec{Name: "lenet", Input: mnist})
	if want := "lenet:width=1, 61706 parameters in 10 tensors, features [1 28 28], 10 classes"; d != want || err != nil {
		t.Errorf("Describe: %q, %v; want %q", d, err, want)
	}
}

// What is wrong with a batch is said before any layer sees it.
func TestBatchErrors(t *testing.T) {
	tokens := train.Input{Shape: []int{2}, Classes: 5, Tokens: true}
	for _, c := range []struct {
		model string
		in    train.Input
		b     train.Batch
		says  string
	}{
		{"mlp", flat, train.Batch{X: make([]float32, 12), Y: []int32{5}, Samples: 1}, "label 0 of the batch is 5; must be from 0 to 4"},
		{"mlp", flat, train.Batch{X: make([]float32, 11), Y: []int32{0}, Samples: 1}, "has 11 features and 0 tokens; wants 12 features"},
		{"mlp", flat, train.Batch{X: make([]float32, 12), Samples: 1}, "has 0 labels; wants 1"},
		{"mlp", flat, train.Batch{}, "batch of 0 samples"},
		{"lstm:hidden=3,embed=3", tokens, train.Batch{Tokens: []int32{0, -1}, Y: []int32{0, 0}, Samples: 1}, "token 1 of the batch is -1; must be from 0 to 4"},
		{"lstm:hidden=3,embed=3", tokens, train.Batch{Tokens: []int32{5, 1}, Y: []int32{0, 0}, Samples: 1}, "token 0 of the batch is 5"},
	} {
		spec, err := Parse(c.model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input = c.in
		m, err := Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Grad(context.Background(), make([]float32, len(m.Params())), c.b); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want an error with %q", c.model, err, c.says)
		}
	}
}
