// Package runlog is the run log of a job, run.jsonl: one type for each of its lines, by which they are written,
// read, checked and documented.
//
// A log is JSON, a line for each entry: first Start with the complete configuration, then what happened, in the
// order in which the coordinator saw it, last Summary. Every line has its type; all but the first and the last
// have t, seconds since the coordinator began. What is not finite is null. Readers pass over types and fields that
// they do not know, so both may be added; none is renamed, and none changes what it means.
//
// A new line is a type in entries.go and an entry in the table kinds; `go test ./runlog -run TestTable -write`
// writes the tables of docs/files.md.
package runlog
