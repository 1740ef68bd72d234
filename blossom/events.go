package blossom

// What the second number of an event says, beside a vertex.
const (
	reach int32 = -1 // the vertex a, outside of the tree, is reached
	empty int32 = -2 // the inner blossom a has no dual left
)

// event is something that happens when the distance is key.
type event struct {
	key  int64
	a, b int32
}

// events is a heap, smallest key first.
type events []event

// push adds an event, unless it is not before bound.
func (h *events) push(key int64, a, b int32, bound int64) {
	if key >= bound {
		return
	}
	list := append(*h, event{})
	i := len(list) - 1
	for i > 0 {
		up := (i - 1) / 2
		if list[up].key <= key {
			break
		}
		list[i] = list[up]
		i = up
	}
	list[i] = event{key, a, b}
	*h = list
}

// pop takes out the first event, if it is before bound.
func (h *events) pop(bound int64) (event, bool) {
	list := *h
	if len(list) == 0 || list[0].key >= bound {
		return event{}, false
	}
	first, last := list[0], list[len(list)-1]
	list = list[:len(list)-1]
	*h = list
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(list) {
			if len(list) > 0 {
				list[i] = last
			}
			break
		}
		if down+1 < len(list) && list[down+1].key < list[down].key {
			down++
		}
		if list[down].key >= last.key {
			list[i] = last
			break
		}
		list[i] = list[down]
		i = down
	}
	return first, true
}
