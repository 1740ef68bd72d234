// Package settings combines flags, environment variables, a file and the variables of
// a launcher into one set of values, with the origin of each value.
//
// A job is started by people, by files and by other programs, and when it does something unexpected
// the first question is where a setting came from. So a setting is declared once, under one name,
// and is then a flag, a variable and a key:
//
//	--join-timeout 30s    STAR_JOIN_TIMEOUT=30s    join-timeout: 30s
//
// The first of these that has a value wins: flag, variable, key of the file
// given by --config, launcher (see [Detect]), default. --print-config shows
// every value with its origin.
//
// [Set] is the engine, for any command; [Job] is the settings of a training
// job, shared by star run, star-ps and star-worker, so that one file serves all
// three.
//
// Limits:
//   - A variable that is set but empty counts as not set, because that is how
//     job templates leave things out.
//   - An unknown flag or key is an error. An unknown STAR_ variable is only a
//     warning: clusters add variables by themselves (Kubernetes makes
//     STAR_PS_SERVICE_HOST out of a service called star-ps).
//   - Some settings have other defaults in star run than in the daemons.
package settings
