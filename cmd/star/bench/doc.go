// Package bench has the commands of star for measurements of the parts of STAR: star bench, match.
package bench
