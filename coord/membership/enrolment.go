package membership

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"star/coord/session"
	"star/internal/dtype"
	"star/transport/wire"
)

// ParseEnrolment reads the payload of a worker's Hello h and checks it against h. The layout of the first worker is
// used by all servers, the writer of checkpoints and the codecs, so it is checked here, once. The error is the reason
// for the worker's rejection, with exit code 78.
func ParseEnrolment(h wire.Hello, payload []byte) (session.Enrolment, error) {
	var e session.Enrolment
	if err := json.Unmarshal(payload, &e); err != nil {
		return session.Enrolment{}, fmt.Errorf("the enrolment of the worker is not valid JSON: %w", err)
	}
	if e.Samples < 0 || e.Tests < 0 {
		return session.Enrolment{}, fmt.Errorf("the enrolment of the worker counts %d samples and %d tests", e.Samples, e.Tests)
	}
	if e.Batch < 0 || !(e.Epochs >= 0) || math.IsInf(e.Epochs, 0) {
		return session.Enrolment{}, fmt.Errorf("the enrolment of the worker has batches of %d samples and %v epochs", e.Batch, e.Epochs)
	}
	if err := follow(e.Layout, h.Params); err != nil {
		return session.Enrolment{}, fmt.Errorf("the layout of %d parameters: %w", h.Params, err)
	}
	for _, t := range e.Layout {
		if t.DType != "" && t.DType != dtype.F32 {
			return session.Enrolment{}, fmt.Errorf("parameter %.100q is %.20q: parameters are F32", t.Name, t.DType)
		}
	}
	if err := follow(e.Buffers, h.Buffers); err != nil {
		return session.Enrolment{}, fmt.Errorf("the layout of %d buffers: %w", h.Buffers, err)
	}
	return e, nil
}

// otherData describes how the data of two members differ, or returns "". Unknown digests are not compared: a program in
// another language may have none.
func otherData(e, first *session.Enrolment) string {
	switch {
	case e.Samples != first.Samples || e.Data != first.Data:
		return fmt.Sprintf("%.100s with %d samples, not %.100s with %d", e.Data, e.Samples, first.Data, first.Samples)
	case e.Digest != first.Digest && e.Digest != "" && first.Digest != "":
		return fmt.Sprintf("%.100s with %d samples and the digest %.32s, not %.32s: other contents with the same name and size", e.Data, e.Samples, e.Digest, first.Digest)
	}
	return ""
}

// follow returns an error unless the tensors follow one another without gaps in n words, as package dtype defines it.
// An empty list is valid: then the parameters have no names.
func follow(tensors []session.Tensor, n int64) error {
	at := int64(0)
	for _, t := range tensors {
		size := int64(1)
		for _, k := range t.Shape {
			if k < 0 || k > 0 && size > math.MaxInt64/int64(k) {
				return fmt.Errorf("tensor %.100q cannot have the shape %v", t.Name, t.Shape[:min(len(t.Shape), 8)])
			}
			size *= int64(k)
		}
		if dtype.Size(t.DType) == 0 {
			return fmt.Errorf("tensor %.100q has elements of the unknown type %.20q", t.Name, t.DType)
		}
		if at = int64(dtype.Begin(t.DType, int(at))); size > math.MaxInt64/16 || int64(t.Offset) != at || int64(dtype.Words(t.DType, int(size))) > n-at {
			return fmt.Errorf("tensor %.100q of %d elements is at %d, expected it at %d", t.Name, size, t.Offset, at)
		}
		at += int64(dtype.Words(t.DType, int(size)))
	}
	if len(tensors) > 0 && at != n {
		return fmt.Errorf("its tensors have %d words of 4 bytes", at)
	}
	return nil
}

// otherTensor describes the first tensor of e that differs from first's; empty if none does.
func otherTensor(e, first *session.Enrolment) string {
	return cmp.Or(otherOf(e.Layout, first.Layout), otherOf(e.Buffers, first.Buffers))
}

// otherOf describes the first tensor of mine that differs from theirs; empty if none does.
func otherOf(mine, theirs []session.Tensor) string {
	for i := range max(len(mine), len(theirs)) {
		switch {
		case i >= len(mine):
			return fmt.Sprintf("; the job has %s %v, this worker does not", theirs[i].Name, theirs[i].Shape)
		case i >= len(theirs):
			return fmt.Sprintf("; this worker has %s %v, the job does not", mine[i].Name, mine[i].Shape)
		case mine[i].Name == theirs[i].Name && cmp.Or(mine[i].DType, dtype.F32) != cmp.Or(theirs[i].DType, dtype.F32):
			return fmt.Sprintf("; %s is %s, in the job %s", mine[i].Name, cmp.Or(mine[i].DType, dtype.F32), cmp.Or(theirs[i].DType, dtype.F32))
		case mine[i].Name != theirs[i].Name || !slices.Equal(mine[i].Shape, theirs[i].Shape):
			return fmt.Sprintf("; the first difference is %s %v, in the job's %s %v", mine[i].Name, mine[i].Shape, theirs[i].Name, theirs[i].Shape)
		}
	}
	return ""
}
