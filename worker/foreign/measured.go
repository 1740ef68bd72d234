package foreign

import "star/train"

// Measured returns the program's measurements of the last gradient (train.Measured).
func (m *Model) Measured() train.Measurement {
	u := m.usage
	return train.Measurement{Load: u.Load, CPU: u.CPU, Faults: u.Faults, Preempted: u.Preempted, Processes: u.Processes}
}
