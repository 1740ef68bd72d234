package foreign

// ParseAbout is parseAbout.
var ParseAbout = parseAbout

// Told is what the program said of the last gradient.
func (m *Model) Told() Usage { return m.usage }

// Memory is what is shared with the program.
func (m *Model) Memory() []byte { return m.memory }
