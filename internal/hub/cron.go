package hub

import (
	"time"

	"github.com/adhocore/gronx"

	"nightporter/client"
)

// schedulesEvery is how often schedules are looked at. They are by the minute.
const schedulesEvery = 5 * time.Second

// schedules sends the messages of schedules that are due.
func (h *Hub) schedules() {
	tick := time.NewTicker(schedulesEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			return
		}
		_, err := h.store.FireSchedules(h.ctx, next, func(v client.Schedule, err error) {
			h.o.Log.Warn("a schedule's message could not be sent", "schedule", v.Name, "err", err)
			_ = h.store.Audit(h.ctx, "hub", "schedule.failed", v.Name, err.Error()) // it is in the log as well
		})
		if err != nil && h.ctx.Err() == nil {
			h.o.Log.Warn("schedules cannot be looked at", "err", err)
		}
	}
}

// next is when a schedule is due after a time; nil: never.
func next(v client.Schedule, after time.Time) *time.Time {
	if v.Cron == "" || v.Paused {
		return nil
	}
	zone, err := time.LoadLocation(v.Zone)
	if err != nil {
		return nil
	}
	at, err := gronx.NextTickAfter(v.Cron, after.In(zone), false)
	if err != nil {
		return nil
	}
	at = at.UTC()
	return &at
}

// checkSchedule fills in when a schedule is due first.
func checkSchedule(v *client.Schedule, now time.Time) error {
	switch {
	case (v.Cron == "") == (v.At == nil):
		return problemf("invalid", "a schedule has either cron or at")
	case v.Zone != "" && v.Cron == "":
		return problemf("invalid", "zone is for cron; at has its own")
	}
	if _, err := time.LoadLocation(v.Zone); err != nil {
		return problemf("invalid", "there is no time zone %q; zones are called as in Europe/Berlin", v.Zone)
	}
	if v.Cron != "" && !gronx.New().IsValid(v.Cron) {
		return problemf("invalid", "%q is no cron expression of five fields, such as 0 9 * * 1-5", v.Cron)
	}
	v.Next = v.At
	if v.Cron != "" {
		v.Next = next(*v, now)
	}
	if v.Paused {
		v.Next = nil
	}
	return nil
}
