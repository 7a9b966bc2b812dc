package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"nightporter/internal/audit"
)

type auditCmd struct {
	Since     string   `placeholder:"WHEN" help:"Calls of the last 24h or 7d, or since a date or time."`
	Until     string   `placeholder:"WHEN" help:"Calls before a date or time, or before 24h or 7d ago."`
	RunID     string   `name:"run" placeholder:"ID" help:"Calls of this run."`
	Client    string   `placeholder:"PATTERN" help:"Calls of clients with such a name. * stands for any text."`
	Server    string   `placeholder:"PATTERN" help:"Calls to servers with such a name."`
	Tool      string   `placeholder:"PATTERN" help:"Calls of tools with such a name, as their servers call them."`
	Outcome   []string `xor:"outcome" placeholder:"OUTCOME" help:"Calls that ended so: ok, tool_error, rpc_error, refused, timeout, cancelled, server_died, start_failed, input_required. May be repeated."`
	Failed    bool     `xor:"outcome" help:"Everything that failed: all but ok and input_required."`
	Arguments string   `placeholder:"TEXT" help:"Calls with exactly these arguments, as the client wrote them."`
	Limit     int      `default:"100" placeholder:"N" help:"Show the newest N; 0 shows all. Default: ${default}."`
	JSON      bool     `name:"json" help:"Print an array of objects."`
}

func (*auditCmd) Help() string {
	return `The newest call comes first. Dates and times are local: 2026-11-30, 2026-11-30T14:00, or with a
zone as in 2026-11-30T14:00:00Z. Arguments are recorded as a digest; docs/audit.md says what else is.

Examples:

	nightporter audit --since 24h
	nightporter audit --failed --server github
	nightporter audit --run 20261130-200753-enaheypvfq --json
	nightporter audit --tool 'delete_*' --since 2026-11-01 --limit 0
	nightporter audit --tool find --arguments '{"query":"open orders"}'`
}

// auditedCall is an entry as it is printed.
type auditedCall struct {
	audit.Entry
	DurationMS     float64 `json:"duration_ms"`
	ApprovalWaitMS float64 `json:"approval_wait_ms,omitempty"`
}

func (c *auditCmd) Run(a *app) error {
	filter, err := c.filter(a, time.Now())
	if err != nil {
		return err
	}
	ctx, _, release := signals(context.Background())
	defer release()
	entries := audit.Query(ctx, a.dirs.Audit(), filter)
	if c.Limit == 0 {
		return c.print(a, entries)
	}
	more := false
	err = c.print(a, func(yield func(audit.Entry, error) bool) {
		n := 0
		for e, err := range entries {
			if n++; err == nil && n > c.Limit {
				more = true
				return
			}
			if !yield(e, err) {
				return
			}
		}
	})
	if more && err == nil {
		a.say("there are more; --limit 0 shows all")
	}
	return err
}

// filter is what the flags say, at a time.
func (c *auditCmd) filter(a *app, now time.Time) (f audit.Filter, err error) {
	f = audit.Filter{Run: c.RunID, Client: c.Client, Server: c.Server, Tool: c.Tool}
	if f.Since, err = when("--since", c.Since, now); err != nil {
		return f, err
	}
	if f.Until, err = when("--until", c.Until, now); err != nil {
		return f, err
	}
	for flag, pattern := range map[string]string{"--client": c.Client, "--server": c.Server, "--tool": c.Tool} {
		if _, err := path.Match(strings.ReplaceAll(pattern, `\`, "/"), ""); err != nil {
			return f, usage("[ begins a choice of characters, as in [a-z]*; [[] is the character itself", "%s %q is not a pattern", flag, pattern)
		}
	}
	for _, o := range c.Outcome {
		if !slices.Contains(audit.Outcomes, audit.Outcome(o)) {
			var known []string
			for _, o := range audit.Outcomes {
				known = append(known, string(o))
			}
			return f, usage(nearest("outcomes", o, known), "there is no outcome %q", o)
		}
		f.Outcomes = append(f.Outcomes, audit.Outcome(o))
	}
	if c.Failed {
		f.Outcomes = slices.DeleteFunc(slices.Clone(audit.Outcomes), func(o audit.Outcome) bool { return !o.Failed() })
	}
	if c.Limit < 0 {
		return f, usage("--limit 0 shows all", "--limit cannot be negative")
	}
	if c.Limit > 0 {
		f.Limit = c.Limit + 1 // one more, to know whether there are more
	}
	if c.Arguments != "" {
		f.ArgumentsDigest, err = audit.Digest(a.dirs.Audit(), []byte(c.Arguments))
		if errors.Is(err, fs.ErrNotExist) { // nothing was recorded with arguments
			f.ArgumentsDigest, err = "none", nil
		}
	}
	return f, err
}

// when reads a time: a length of time before now, or a date or time of the local zone unless it names one. The zero time
// when text is empty.
func when(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, ok := length(text); ok {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateTime} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usage("for example: 24h, 7d, 2026-11-30, 2026-11-30T14:00", "%s %q is not a time", flag, text)
	}
	return t, nil
}

// length reads a length of time, in days too.
func length(text string) (time.Duration, bool) {
	const day = 24 * time.Hour
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16) // 179 years
		return time.Duration(n) * day, err == nil
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}

func (c *auditCmd) print(a *app, entries iter.Seq2[audit.Entry, error]) error {
	if c.JSON {
		return printAuditJSON(a.stdout, entries)
	}
	t, n := newTable(a.stdout, "TIME", "WHO", "SERVER", "TOOL", "OUTCOME", "TOOK", "BYTES", "DETAIL"), 0
	for e, err := range entries {
		if err != nil {
			return err
		}
		n++
		who, tool, took, detail := e.Client, e.Tool, e.Duration.Round(time.Millisecond).String(), e.Detail
		if e.Run != "" {
			who = "run " + e.Run
		}
		if tool == "" {
			tool = e.Exposed
		}
		if e.Outcome == audit.Lost {
			detail = fmt.Sprintf("%d calls were not recorded: %s", e.Lost, e.Detail)
		}
		if e.Approval != "" {
			detail = strings.TrimSuffix(fmt.Sprintf("%s after %v: %s", e.Approval, e.ApprovalWaited.Round(time.Millisecond), detail), ": ")
		}
		t.row(e.Time.Local().Format("2006-01-02 15:04:05.000"), orDash(shortened(who)), orDash(shortened(e.Server)), orDash(shortened(tool)),
			string(e.Outcome), took, number(e.ResultBytes), orDash(shortened(oneLine(detail))))
	}
	if n == 0 {
		a.say("no such calls are recorded")
		return nil
	}
	return t.flush()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// printAuditJSON writes an array, each element as it comes: a record has up to a million.
func printAuditJSON(w io.Writer, entries iter.Seq2[audit.Entry, error]) error {
	separator := "["
	for e, err := range entries {
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, separator); err != nil {
			return err
		}
		separator = ","
		if err := writeJSON(w, auditedCall{e, milliseconds(e.Duration), milliseconds(e.ApprovalWaited)}); err != nil {
			return err
		}
	}
	if separator == "[" {
		separator = "[]"
	} else {
		separator = "]"
	}
	_, err := io.WriteString(w, separator+"\n")
	return err
}
