package foreign

import "star/train"

// Meanwhile has f called in each step, while the program computes: this process is awake then, and has nothing to do (train.Measured).
func (m *Model) Meanwhile(f func()) { m.meanwhile = f }

// Measured is what the last gradient took, as the program says (train.Measured).
func (m *Model) Measured() train.Measurement {
	u := m.usage
	return train.Measurement{Load: u.Load, CPU: u.CPU, Faults: u.Faults, Preempted: u.Preempted}
}
