package codex

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"nightporter/internal/agent"
	"nightporter/internal/lines"
	"nightporter/internal/proc"
)

// expected is what a recording is to be read as, in both versions.
type expected struct {
	name    string
	code    string // of the error; empty when it replied
	reply   string
	salvage string
	denials string // joined by spaces
	resume  string // the session that was asked for: none, "same" as came back or was named dead, or "other"
	dead    bool   // the resume was rejected
	none    bool   // no session is left
}

// recordings are runs of the real programs. The calls in them went to servers named log, web, gw and one.
var recordings = []expected{
	{name: "01-exec-kill-sighup-in-call", code: agent.CodeNoResult},
	{name: "01-exec-kill-sigint-in-call", code: agent.CodeNoResult},
	{name: "01-exec-kill-sigint-in-model", code: agent.CodeNoResult, salvage: "first part"},
	{name: "01-exec-kill-sigkill-in-call", code: agent.CodeNoResult},
	{name: "01-exec-kill-sigterm-in-call", code: agent.CodeNoResult},
	{name: "01-exec-mcp-approve-toolcfg", reply: "done"},
	{name: "01-exec-mcp-danger-nobypass", reply: "done"},
	{name: "01-exec-mcp-flatname", reply: "done"},
	{name: "01-exec-mcp-iserror", reply: "done"},
	{name: "01-exec-mcp-ok-bypass", reply: "done"},
	{name: "01-exec-mcp-readonlyhint-default", reply: "done"},
	{name: "01-exec-mcp-refused-default", reply: "done", denials: "mcp__log__echo"},
	{name: "01-exec-mcp-refused-wsw", reply: "done", denials: "mcp__log__echo"},
	{name: "01-exec-mcp-rpcerror", reply: "done"},
	{name: "01-exec-mcp-server-dies-in-call", reply: "done"},
	{name: "01-exec-mcp-unknown-tool", reply: "done"},
	{name: "01-exec-model-400", code: agent.CodeModelAPI},
	{name: "01-exec-model-401", code: agent.CodeAuth},
	{name: "01-exec-model-429", code: agent.CodeModelAPI},
	{name: "01-exec-model-500", code: agent.CodeModelAPI},
	{name: "01-exec-model-cut-stream", code: agent.CodeModelAPI, salvage: "partial"},
	{name: "01-exec-model-failed-event", code: agent.CodeModelAPI},
	{name: "01-exec-no-env-key", code: agent.CodeAuth},
	{name: "01-exec-no-skip-git", code: agent.CodeNoResult, none: true},
	{name: "01-exec-plain", reply: "Hello there."},
	{name: "01-exec-resume-ephemeral", code: agent.CodeResumeRejected, resume: "same", dead: true, none: true},
	{name: "01-exec-resume-first", reply: "answer 0"},
	{name: "01-exec-resume-flags-before", reply: "answer 2", resume: "same"},
	{name: "01-exec-resume-garbage", code: agent.CodeSessionMismatch, resume: "other", none: true},
	{name: "01-exec-resume-last", reply: "answer 3"},
	{name: "01-exec-resume-last-empty", reply: "answer 8"},
	{name: "01-exec-resume-ok", reply: "answer 1", resume: "same"},
	{name: "01-exec-resume-othercwd", reply: "answer 5"},
	{name: "01-exec-resume-stdin", reply: "answer 4"},
	{name: "01-exec-resume-unknown-name", code: agent.CodeSessionMismatch, resume: "other", none: true},
	{name: "01-exec-resume-unknown-nojson", code: agent.CodeResumeRejected, resume: "same", dead: true, none: true},
	{name: "01-exec-resume-unknown-uuid", code: agent.CodeResumeRejected, resume: "same", dead: true, none: true},
	{name: "01-exec-resume-unknown-v4", code: agent.CodeResumeRejected, resume: "same", dead: true, none: true},
	{name: "01-exec-two-prompts", code: agent.CodeNoResult, none: true},
	{name: "02-plugin-exec-featoff", reply: "ok"},
	{name: "02-plugin-exec-ignore-user-config", reply: "ok"},
	{name: "02-plugin-exec-none", reply: "ok"},
	{name: "02-plugin-exec-policy", reply: "ok"},
	{name: "02-plugin-exec-withcmd", reply: "ok"},
	{name: "02-trust-bypass", reply: "ok"},
	{name: "02-trust-bypass-c-untrusted", reply: "ok"},
	{name: "02-trust-bypass-disable-proj", code: agent.CodeNoResult, none: true},
	{name: "02-trust-bypass-disable-proj-cmd", reply: "ok"},
	{name: "02-trust-bypass-ephemeral", reply: "ok"},
	{name: "02-trust-bypass-explicit-untrusted", reply: "ok"},
	{name: "02-trust-bypass-ignoreuc", reply: "ok"},
	{name: "02-trust-c-danger", reply: "ok"},
	{name: "02-trust-danger", reply: "ok"},
	{name: "02-trust-default", reply: "ok"},
	{name: "02-trust-ro", reply: "ok"},
	{name: "02-trust-wsw", reply: "ok"},
	{name: "03-startup-default-timeout-required", code: agent.CodeBoundary, none: true},
	{name: "03-startup-die-required", code: agent.CodeBoundary, none: true},
	{name: "03-startup-http-401-required", code: agent.CodeBoundary, none: true},
	{name: "03-startup-http-refused-required", code: agent.CodeBoundary, none: true},
	{name: "03-startup-listtimeout-2-required", code: agent.CodeBoundary, none: true},
	{name: "03-startup-nocommand-required", code: agent.CodeBoundary, none: true},
	{name: "03-startup-required-disabled", reply: "ok"},
	{name: "03-startup-required-waits-5", reply: "ok"},
	{name: "03-startup-timeout-2-required", code: agent.CodeBoundary, none: true},
	{name: "05-sandbox-http", reply: "ok"},
	{name: "10-recipe-run", reply: "done"},
	{name: "10-recipe-run-bypass", reply: "done"},
}

// recording is one run.
type recording struct {
	stdout, stderr string
	exit           proc.Exit
}

var (
	fileHead  = regexp.MustCompile(`(?m)^-- (\S+)/([a-z]+) --\n`)
	threadID  = regexp.MustCompile(`"thread_id":"([^"]+)"`)
	askedFor  = regexp.MustCompile(`for thread id (\S+)`)
	otherUUID = "019a0000-0000-7000-8000-000000000000"
)

// read returns a recording's runs by version.
func read(t testing.TB, name string) map[string]recording {
	t.Helper()
	runs := map[string]recording{}
	for file, data := range archived(t, filepath.Join("recordings", name+".txtar")) {
		version, kind := path.Split(file)
		version = strings.TrimSuffix(version, "/")
		run := runs[version]
		switch kind {
		case "stdout":
			run.stdout = data
		case "stderr":
			run.stderr = data
		case "exit":
			code, err := strconv.Atoi(strings.TrimSpace(data))
			if err != nil {
				t.Fatal(err)
			}
			if run.exit.Code = code; code < 0 {
				run.exit = proc.Exit{Code: -1, Signal: "signal " + strconv.Itoa(-code)}
			}
		}
		runs[version] = run
	}
	return runs
}

// replay gives a dialogue what a run printed, up to an abort, as its output is read when it comes in these pieces.
func (r recording) replay(t testing.TB, d agent.Dialogue, pieces io.Reader) agent.Result {
	t.Helper()
	const most = 4 << 20 // package run's
	d.Start()
	for in := lines.NewReader(pieces, most); ; {
		line, dropped, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || dropped {
			t.Fatalf("a line was dropped: %v, %v", dropped, err)
		}
		if slices.Contains(d.Line(line), agent.Action(agent.Abort{})) {
			break
		}
	}
	return d.End(r.exit, []byte(r.stderr))
}

// chunks reads a text in random pieces.
type chunks struct {
	text   string
	random *rand.Rand
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.text == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1+c.random.IntN(300))], c.text)
	c.text = c.text[n:]
	return n, nil
}

func TestRecordingsAreReadAsWhatTheyWere(t *testing.T) {
	for _, test := range recordings {
		for version, run := range read(t, test.name) {
			t.Run(test.name+"/"+version, func(t *testing.T) {
				thread := ""
				if m := threadID.FindStringSubmatch(run.stdout); m != nil {
					thread = m[1]
				}
				q := agent.Request{Prompt: "x"}
				switch m := askedFor.FindStringSubmatch(run.stderr); {
				case test.resume == "other":
					q.Resume = otherUUID
				case test.resume == "same" && m != nil:
					q.Resume = m[1]
				case test.resume == "same":
					q.Resume = thread
				}
				replay := func(pieces io.Reader) agent.Result {
					return run.replay(t, newDialogue(q, agent.Proof{Servers: []string{"log", "web", "gw", "one"}}, nil), pieces)
				}
				got := replay(strings.NewReader(run.stdout))
				seed := rand.Uint64()
				for how, pieces := range map[string]io.Reader{
					"byte by byte":                    iotest.OneByteReader(strings.NewReader(run.stdout)),
					fmt.Sprint("in chunks of ", seed): &chunks{run.stdout, rand.New(rand.NewPCG(seed, 0))},
					"without its last newline":        strings.NewReader(strings.TrimSuffix(run.stdout, "\n")),
				} {
					if other := replay(pieces); !reflect.DeepEqual(other, got) {
						t.Errorf("%s it is %+v, whole %+v", how, other, got)
					}
				}
				code := ""
				if got.Err != nil {
					code = got.Err.Code
				}
				if code != test.code || got.Reply != test.reply || got.ResumeRejected != test.dead {
					t.Errorf("code %q, reply %q, rejected %v, error %v; want %q, %q, %v", code, got.Reply, got.ResumeRejected, got.Err, test.code, test.reply, test.dead)
				}
				if denials := strings.Join(got.Denials, " "); denials != test.denials {
					t.Errorf("denials %q, want %q", denials, test.denials)
				}
				if test.code != "" && got.Salvage != test.salvage {
					t.Errorf("salvage %q, want %q", got.Salvage, test.salvage)
				}
				if want := thread; got.SessionID != want && !test.none || test.none && got.SessionID != "" {
					t.Errorf("session %q, want %q (none: %v)", got.SessionID, want, test.none)
				}
				if got.Skipped > 0 {
					t.Errorf("%d lines were not understood", got.Skipped)
				}
			})
		}
	}
}

func TestEveryRecordingIsInTheTable(t *testing.T) {
	files, err := os.ReadDir(filepath.Join("testdata", "recordings"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".txtar")
		if !slices.ContainsFunc(recordings, func(e expected) bool { return e.name == name }) {
			t.Errorf("%s is not in the table", name)
		}
	}
}
