package checkpoint

import (
	"slices"
	"strings"
)

// What wrappers of PyTorch put before the names of a model's tensors.
const (
	compiled = "_orig_mod." // torch.compile, also of modules within a model
	parallel = "module."    // DataParallel and DistributedDataParallel, before all names
)

// Plain is the names of a model's tensors, all of them, without what wrappers of PyTorch add, each in its place.
func Plain(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		name = strings.TrimPrefix(name, compiled)
		out[i] = strings.ReplaceAll(name, "."+compiled, ".")
	}
	wrapped := func(name string) bool { return strings.HasPrefix(name, parallel) }
	if !slices.ContainsFunc(out, func(name string) bool { return !wrapped(name) }) {
		for i := range out {
			out[i] = strings.TrimPrefix(out[i], parallel)
		}
	}
	return out
}

// PlainLayout is both layouts with names that are [Plain].
func PlainLayout(layout, buffers []TensorSpec) (plainLayout, plainBuffers []TensorSpec) {
	all := slices.Concat(layout, buffers)
	for i, name := range Plain(namesOf(all)) {
		all[i].Name = name
	}
	return all[:len(layout):len(layout)], all[len(layout):]
}

func namesOf(tensors []TensorSpec) []string {
	names := make([]string, len(tensors))
	for i, t := range tensors {
		names[i] = t.Name
	}
	return names
}

// finder finds tensors of a file by the names of a layout: the same name, or else the only one that is the same
// when both are [Plain].
func finder(h *Header, layout []TensorSpec) func(name string) (Tensor, bool) {
	names := make([]string, len(h.Tensors))
	for i, t := range h.Tensors {
		names[i] = t.Name
	}
	byPlain := map[string][]Tensor{}
	for i, name := range Plain(names) {
		byPlain[name] = append(byPlain[name], h.Tensors[i])
	}
	plain := map[string]string{}
	for i, name := range Plain(namesOf(layout)) {
		plain[layout[i].Name] = name
	}
	return func(name string) (Tensor, bool) {
		if t, ok := h.Find(name); ok {
			return t, true
		}
		if ts := byPlain[plain[name]]; len(ts) == 1 {
			return ts[0], true
		}
		return Tensor{}, false
	}
}
