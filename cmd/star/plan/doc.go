// Package plan has the commands of star for forecasts and places: star plan, place, inventory, limits, sim, replay,
// trace.
package plan
