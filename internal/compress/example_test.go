package compress_test

import (
	"fmt"

	"star/internal/compress"
)

// A worker sends the largest tenth of each gradient and keeps the rest for later.
func ExampleFeedback() {
	codec, err := compress.New("topk=0.1", compress.Slice{}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	send := compress.NewFeedback(codec, 10)
	gradient := []float32{9, 1, 1, 1, 1, 1, 1, 1, 6, 1}
	received := make([]float32, 10)
	var message []byte
	for range 3 {
		message = send.Encode(message[:0], gradient)
		if err := codec.Decode(received, message); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(received, len(message), "bytes")
	}
	// Output:
	// [9 0 0 0 0 0 0 0 0 0] 9 bytes
	// [0 0 0 0 0 0 0 0 12 0] 9 bytes
	// [18 0 0 0 0 0 0 0 0 0] 9 bytes
}

// The same codec on two links, with speeds as measured on one processor.
func ExampleChoose() {
	candidates := []compress.Candidate{{Codec: compress.FP16, Encode: 8e9, Decode: 8e9}}
	const values = 25e6
	for _, bps := range []float64{125e6, 12.5e9} {
		fmt.Println(compress.Choose(compress.Link{Bps: bps}, values, candidates).Why)
	}
	// Output:
	// fp16: 25000000 values at 125 MB/s take 425 ms in place of 800 ms
	// none: 25000000 values at 1.25e+04 MB/s take 8 ms; fp16 would take 29 ms, which is not 20 % less
}
