// Package console is how tools talk to a running job: a connection to its coordinator ([Reach]), and what a terminal
// shows of its state ([Table], [Screen]). star run, star top, star ctl and star-chaos share it.
package console
