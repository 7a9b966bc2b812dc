package console

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"nightporter/client"
)

// spans are how far back one may look, in days.
var spans = []int{7, 30, 90}

func (c *Console) trends(q *request) error {
	days, _ := strconv.Atoi(q.r.URL.Query().Get("days"))
	if !slices.Contains(spans, days) {
		days = 30
	}
	profile := q.r.URL.Query().Get("profile")
	got, err := c.store.Trends(q.ctx(), days)
	if err != nil {
		return err
	}
	byDay := map[string]client.Trend{}
	byProfile := map[string]client.Trend{}
	last := time.Now().UTC() // the database's day may be the next one already
	for _, t := range got {
		if day, err := time.Parse(time.DateOnly, t.Day); err == nil && day.After(last) {
			last = day
		}
		byProfile[t.Profile] = sum(byProfile[t.Profile], t)
		if profile == "" || t.Profile == profile {
			byDay[t.Day] = sum(byDay[t.Day], t)
		}
	}
	var list, profiles []client.Trend
	var total client.Trend
	for i := days - 1; i >= 0; i-- {
		day := last.AddDate(0, 0, -i).Format(time.DateOnly)
		t := byDay[day]
		t.Day = day
		list = append(list, t)
		total = sum(total, t)
	}
	for name, t := range byProfile {
		t.Profile = name
		profiles = append(profiles, t)
	}
	slices.SortFunc(profiles, func(a, b client.Trend) int { return int(b.Runs-a.Runs)*2 + compare(a.Profile, b.Profile) })
	bad := func(t client.Trend) float64 { return float64(t.Failed + t.Refused + t.Stopped) }
	count := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	c.show(q, http.StatusOK, "trends", view{Title: "Trends", Nav: "/trends", Data: map[string]any{
		"Days": days, "Spans": spans, "Profile": profile, "Profiles": profiles, "List": slices.Backward(list), "Total": total, "Bad": int64(bad(total)),
		"Charts": []chart{
			bars("Runs", "done each day", list, func(t client.Trend) float64 { return float64(t.Runs) }, count),
			bars("Not ok", "failed, refused or stopped each day", list, bad, count),
			bars("Spend", "US dollars each day", list, func(t client.Trend) float64 { return t.CostUSD }, func(v float64) string { return fmt.Sprintf("$%.2f", v) }),
		},
	}})
	return nil
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func sum(a, b client.Trend) client.Trend {
	a.Runs += b.Runs
	a.OK += b.OK
	a.Failed += b.Failed
	a.Refused += b.Refused
	a.Stopped += b.Stopped
	a.CostUSD += b.CostUSD
	a.InputTokens += b.InputTokens
	a.OutputTokens += b.OutputTokens
	a.DurationMS += b.DurationMS
	return a
}

// chart is a drawing with its words; the table on the page has all numbers of it.
type chart struct {
	Name, What, Words, Most, From, To string
	Bars                              []bar
}

// bar is one day, in a box of 600 by 100.
type bar struct {
	X, Y, W, H string
	Says       string
}

func bars(name, what string, days []client.Trend, of func(client.Trend) float64, words func(float64) string) chart {
	var most, total float64
	top := ""
	for _, t := range days {
		total += of(t)
		if of(t) > most {
			most, top = of(t), t.Day
		}
	}
	c := chart{Name: name, What: what, Most: words(most), From: days[0].Day, To: days[len(days)-1].Day}
	c.Words = fmt.Sprintf("%s, %s to %s: %s in all", name, c.From, c.To, words(total))
	if most == 0 {
		c.Words = fmt.Sprintf("%s, %s to %s: none", name, c.From, c.To)
		return c
	}
	c.Words += fmt.Sprintf(", most on %s: %s", top, words(most))
	step := 600 / float64(len(days))
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	for i, t := range days {
		if v := of(t); v > 0 {
			h := max(1.5, 98*v/most)
			c.Bars = append(c.Bars, bar{f(float64(i)*step + step*0.12), f(100 - h), f(step * 0.76), f(h), t.Day + ": " + words(v)})
		}
	}
	return c
}
