// Package cli has what commands of several groups of star share: settings, run logs, credentials, pages, checkpoints.
package cli
