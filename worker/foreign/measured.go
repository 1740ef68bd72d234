package foreign

import "star/train"

// Measured is what the last gradient took, as the program says (train.Measured).
func (m *Model) Measured() train.Measurement {
	u := m.usage
	return train.Measurement{Load: u.Load, CPU: u.CPU, Faults: u.Faults, Preempted: u.Preempted}
}
