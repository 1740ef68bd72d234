// Package observe has the commands of star for running and recorded jobs: star top, explain, watch, view, report,
// export.
package observe
