package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"nightporter/internal/audit"
	"nightporter/internal/dirs"
	"nightporter/internal/run"
)

// auditCommand runs nightporter audit in a home.
func auditCommand(home string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main(append([]string{"audit"}, args...), []string{"NIGHTPORTER_HOME=" + home}, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// recorded is a home with some calls, the first an hour ago and each later one a minute after the one before.
func recorded(t *testing.T, entries ...audit.Entry) (home string) {
	t.Helper()
	home = t.TempDir()
	l := audit.New(dirs.Find(func(string) string { return home }).Audit(), audit.Options{})
	for i, e := range entries {
		e.Time = time.Now().Add(time.Duration(i)*time.Minute - time.Hour)
		l.Record(e)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestAuditPrintsATable(t *testing.T) {
	home := recorded(t,
		audit.Entry{Client: "codex\x1b[2J", Server: "crm", Tool: "find", Outcome: audit.OK, Duration: 1234567 * time.Microsecond, ResultBytes: 17},
		audit.Entry{Run: "r1", Exposed: "nosuch", Outcome: audit.Refused, Detail: "there is\nno such tool"},
		audit.Entry{Outcome: audit.Lost, Lost: 7, Detail: "disk full"},
	)
	code, stdout, stderr := auditCommand(home)
	lines := strings.Split(stdout, "\n")
	if code != run.ExitOK || stderr != "" || len(lines) != 5 {
		t.Fatalf("exit %d, stderr %q, stdout %s", code, stderr, stdout)
	}
	for i, want := range []string{
		"WHO SERVER TOOL OUTCOME TOOK BYTES DETAIL",
		"- - - lost 0s - 7 calls were not recorded: disk full",
		"run r1 - nosuch refused 0s - there is no such tool",
		"codex[2J crm find ok 1.235s 17 -",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); !strings.HasSuffix(got, " "+want) {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
		if column := strings.Index(lines[i], map[bool]string{true: "OUTCOME", false: strings.Fields(want)[3]}[i == 0]); i > 0 && column < 0 {
			t.Errorf("line %d has no outcome", i)
		}
	}
}

func TestAuditPrintsAnArray(t *testing.T) {
	home := recorded(t,
		audit.Entry{Client: "codex", Server: "crm", Tool: "find", Outcome: audit.OK, Duration: 1500 * time.Microsecond, Arguments: []byte(`{"q":"<ä>"}`)},
		audit.Entry{Client: "claude", Server: "crm", Tool: "find", Outcome: audit.Timeout},
	)
	code, stdout, stderr := auditCommand(home, "--json")
	var got []map[string]any
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != run.ExitOK || stderr != "" || len(got) != 2 {
		t.Fatalf("exit %d, %v, stderr %q, stdout %s", code, err, stderr, stdout)
	}
	if c := got[1]; c["client"] != "codex" || c["outcome"] != "ok" || c["duration_ms"] != 1.5 || c["arguments_bytes"] != 12.0 || c["arguments"] != nil || c["arguments_digest"] == "" {
		t.Errorf("got %v", c)
	}
	if at, err := time.Parse(time.RFC3339, got[0]["time"].(string)); err != nil || at.Location() != time.UTC {
		t.Errorf("%v, %v", at, err)
	}
	if _, stdout, _ := auditCommand(home, "--json", "--run", "none"); stdout != "[]\n" {
		t.Errorf("nothing is %q", stdout)
	}
}

func TestAuditFlagsChoose(t *testing.T) {
	home := recorded(t, // 60, 59, 58, 57 and 56 minutes ago
		audit.Entry{Client: "a", Server: "crm", Tool: "find", Outcome: audit.OK, Arguments: []byte(`{"q":1}`)},
		audit.Entry{Client: "b", Server: "crm", Tool: "delete", Outcome: audit.Refused},
		audit.Entry{Client: "c", Run: "r1", Server: "github", Tool: "find", Outcome: audit.ServerDied, Arguments: []byte(`{"q":2}`)},
		audit.Entry{Client: "d", Server: "github", Tool: "search", Outcome: audit.OK},
		audit.Entry{Client: "e", Server: "mail", Tool: "send", Outcome: audit.InputRequired},
	)
	for args, want := range map[string]string{
		"":                                   "edcba",
		"--since 1d":                         "edcba",
		"--since 58m30s":                     "edc",
		"--until 58m30s":                     "ba",
		"--since 2999-01-01":                 "",
		"--run r1":                           "c",
		"--client [ab]":                      "ba",
		"--server git*":                      "dc",
		"--tool ?i*":                         "ca",
		"--outcome refused":                  "b",
		"--outcome refused --outcome ok":     "dba",
		"--failed":                           "cb",
		`--arguments {"q":2}`:                "c",
		`--arguments {"q":3}`:                "",
		"--limit 2":                          "ed",
		"--limit 5":                          "edcba",
		"--limit 0 --failed --server github": "c",
	} {
		code, stdout, stderr := auditCommand(home, append(strings.Fields(args), "--json")...)
		var calls []struct{ Client string }
		if err := json.Unmarshal([]byte(stdout), &calls); err != nil || code != run.ExitOK {
			t.Fatalf("%s: exit %d, %v: %s", args, code, err, stderr)
		}
		got := ""
		for _, c := range calls {
			got += c.Client
		}
		if got != want || strings.Contains(stderr, "there are more") != (args == "--limit 2") {
			t.Errorf("%s: got %q, want %q; stderr %q", args, got, want, stderr)
		}
	}
}

func TestTimesAreLocalUnlessTheyNameAZone(t *testing.T) {
	zone := time.FixedZone("there", 2*60*60)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, zone)
	for text, want := range map[string]string{
		"24h":                       "2026-11-29T12:00:00+02:00",
		"1h30m":                     "2026-11-30T10:30:00+02:00",
		"7d":                        "2026-11-23T12:00:00+02:00",
		"0d":                        "2026-11-30T12:00:00+02:00",
		"2026-11-01":                "2026-11-01T00:00:00+02:00",
		"2026-11-01T14:30":          "2026-11-01T14:30:00+02:00",
		"2026-11-01 14:30":          "2026-11-01T14:30:00+02:00",
		"2026-11-01 14:30:59":       "2026-11-01T14:30:59+02:00",
		"2026-11-01T14:30:59.25Z":   "2026-11-01T14:30:59Z",
		"2026-11-01T14:30:00-08:00": "2026-11-01T14:30:00-08:00",
	} {
		if got, err := when("--since", text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"soon", "-1h", "-1d", "99999999d", "2026-13-01", "d", "24"} {
		if got, err := when("--since", text, now); err == nil {
			t.Errorf("%s: got %v", text, got)
		}
	}
}

func FuzzWhen(f *testing.F) {
	for _, seed := range []string{"24h", "7d", "2026-11-30", "2026-11-30T14:00:00Z", "1e9d", "9999999h"} {
		f.Add(seed)
	}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := when("--since", text, now); err != nil && !got.IsZero() {
			t.Errorf("%q: %v with %v", text, got, err)
		} else if _, ago := length(text); ago && got.After(now) {
			t.Errorf("%q is in the future: %v", text, got)
		}
	})
}
