//go:build !linux || !cgo || nonvml

package gpu

// openNVML fails: go-nvml needs cgo.
func openNVML(string) (prober, error) {
	return nil, &FinalError{"this program was built without NVML, which needs Linux and cgo"}
}

// listNVML fails like openNVML.
func listNVML() ([]Device, error) {
	return nil, &FinalError{"this program was built without NVML, which needs Linux and cgo"}
}

// healthNVML fails like openNVML.
func healthNVML() ([]Health, error) {
	return nil, &FinalError{"this program was built without NVML, which needs Linux and cgo"}
}
