package inventory

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"star/cluster/placement"
)

// What is printed is read as what was found.
func TestFoundYAML(t *testing.T) {
	f := Found{Name: "a: # b", CPU: 2.5, Memory: 1 << 36, Net: 1.25e9, Interface: "eth0", Notes: []string{"x"},
		GPUs: []FoundGPU{{UUID: "GPU-1", Name: "H100\n- x", Memory: 85e9}, {UUID: "MIG-2", Name: "A100", Slices: 3, Of: 7, Memory: 20e9}, {UUID: "GPU-3"}}}
	hosts, err := ParseHosts("f", []byte(f.YAML()))
	inf := math.Inf(1)
	want := []Host{{Host: placement.Host{Name: f.Name, Capacity: placement.Resources{CPU: 2.5, NetIn: 1.25e9, NetOut: 1.25e9, Memory: 1 << 36}, GPUs: []float64{1, 3. / 7, 1}, GPUMemory: []float64{85e9, 20e9, inf}}, Devices: []string{"GPU-1", "MIG-2", "GPU-3"}}}
	if err != nil || !cmp.Equal(hosts, want) {
		t.Errorf("%v\n%s\n%s", err, f.YAML(), cmp.Diff(want, hosts))
	}
	ds, err := f.Devices()
	var h Host
	h.SetGPUs(ds)
	if err != nil || !cmp.Equal(h.Host.GPUs, want[0].GPUs) || !cmp.Equal(h.GPUMemory, want[0].GPUMemory) || !cmp.Equal(h.Devices, want[0].Devices) {
		t.Errorf("%v %v %+v", err, ds, h)
	}
	for _, bad := range []FoundGPU{{Memory: math.NaN()}, {Memory: -1}, {Memory: 1e300}} {
		if ds, err := (&Found{GPUs: []FoundGPU{bad}}).Devices(); err == nil {
			t.Errorf("%+v passes as %v", bad, ds)
		}
	}
}

// A process sees its own GPU alone.
func TestSee(t *testing.T) {
	for _, c := range []struct {
		gpus, visible string
		gpu           int
		want          string
	}{
		{"2", "", 1, "1"},
		{"2", "5, 3", 1, "3"},
		{"2", "5", 1, "1"}, // there are more than are shown
		{"2", "", 2, ""},
		{"2", "", -1, ""},
		{"[1, 3g.20gb]", "", 0, ""},
		{"[{size: 1, device: 4}, {size: 3g.20gb, device: MIG-a}]", "7,8", 1, "MIG-a"},
		{"[{size: 1, device: 4}, {size: 1, device: 2}]", "7,8", 0, "4"},
		{"[{size: 1/2, device: 4}, {size: 1/2, device: 4}]", "", 1, "4"},
	} {
		hosts, err := ParseHosts("f", []byte("hosts:\n  - {name: a, cpu: 4, gpus: "+c.gpus+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if c.want != "" {
			want = []string{"CUDA_VISIBLE_DEVICES=" + c.want, "CUDA_DEVICE_ORDER=PCI_BUS_ID"}
		}
		if got := hosts[0].See(c.gpu, c.visible); !cmp.Equal(got, want) {
			t.Errorf("GPU %d of %s, where %q are to be seen: %v, want %v", c.gpu, c.gpus, c.visible, got, want)
		}
	}
	if _, err := ParseHosts("f", []byte("hosts:\n  - {name: a, cpu: 4, gpus: [{size: 1, device: 4}, 1]}\n")); err == nil || err.Error() != "f:2: host a: gpus: give device, an index or a UUID, for all or for none" {
		t.Error(err)
	}
}

// What a driver says of a slice is a part of a GPU, and never more than one.
func TestDeviceOfSlice(t *testing.T) {
	for _, c := range []struct {
		g    FoundGPU
		want float64
	}{{FoundGPU{}, 1}, {FoundGPU{Slices: 3, Of: 7}, 3. / 7}, {FoundGPU{Slices: 8, Of: 7}, 1}, {FoundGPU{Slices: 3}, 1}} {
		if d := c.g.Device(); d.Part != c.want {
			t.Errorf("%+v is %v of a GPU, want %v", c.g, d.Part, c.want)
		}
	}
}
