package foreign

// ParseAbout is parseAbout.
var ParseAbout = parseAbout
