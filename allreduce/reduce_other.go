//go:build !amd64 || noasm

package allreduce

var fast = false

func foldFast(Type, Op, []byte, []byte) (done int) { return 0 }
func divideFast(Type, []byte, int) (done int)      { return 0 }
func copyPast(dst, src []byte)                     { copy(dst, src) }
