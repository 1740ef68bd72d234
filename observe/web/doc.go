// Package web is the page of a job: what happened and happens, from its run log, in a browser.
//
// A [State] processes the lines of a log, a [Live] follows a log that grows, and [Live.Handler] serves the page:
// read-only, with everything embedded, without requests to other hosts. The page gets the whole state each time that it
// has changed, at most twice a second, so a browser that was away needs no missed updates. [Report] writes
// the same page as one file.
//
// [LiveSchedules] and [ReportSchedules] are the same for a schedule: the jobs in the places of a
// cluster over time, from [Schedules].
//
// Texts of a log come from anywhere. They are sent as JSON and shown as text, and the page's
// Content-Security-Policy runs no script but its own.
//
// static/ has uPlot 1.6.32 (MIT, static/uplot.LICENSE), the files of its npm package as they are.
package web
