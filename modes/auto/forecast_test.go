package auto

import (
	"time"

	"star/modes/price"
)

// Forecast is what the Controller expects now, with an aligned history.
func (c *Controller) Forecast(at time.Duration) (f price.Forecast, h price.History, ok bool) {
	if f, h, ok = c.look(at); ok && !c.obs.young() {
		align(h, c.obs.begins(h))
	}
	return f, h, ok
}
