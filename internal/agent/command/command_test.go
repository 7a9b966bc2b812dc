package command

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"nightporter/internal/agent"
	"nightporter/internal/proc"
	"nightporter/internal/secret"
)

func prepare(t *testing.T, change func(*agent.Request)) (*agent.Launch, error) {
	t.Helper()
	r := agent.Request{Argv: []string{"answer", "-x"}, Program: "/opt/answer", Env: []string{"A=1"}, Prompt: "why?", Unproven: true}
	if change != nil {
		change(&r)
	}
	return Adapter{}.Prepare(t.Context(), r)
}

func TestACommandRunsOnlyWhenTheOperatorAcceptsThatNothingIsProven(t *testing.T) {
	_, err := prepare(t, func(r *agent.Request) { r.Unproven = false })
	var unproven *agent.Unproven
	if !errors.As(err, &unproven) || !strings.Contains(err.Error(), "--unproven") {
		t.Fatalf("got %v; want Unproven that names --unproven", err)
	}
	launch, err := prepare(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if launch.Proof == nil || launch.Proof.Proven || len(launch.Proof.Notes) == 0 {
		t.Errorf("proof is %+v; want one that says it is none", launch.Proof)
	}
	if got := launch.Argv; !slices.Equal(got, []string{"/opt/answer", "-x"}) {
		t.Errorf("argv %q", got)
	}
}

func TestTheGatewayIsToldInTheEnvironmentAndNotInTheArguments(t *testing.T) {
	operator := make([]string, 1, 8)
	operator[0] = "A=1"
	launch, err := prepare(t, func(r *agent.Request) {
		r.Env = operator
		r.Gateway = &agent.Gateway{URL: "http://127.0.0.1:1/run", Token: secret.New("token-0123")}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"A=1", "NIGHTPORTER_MCP_URL=http://127.0.0.1:1/run", "NIGHTPORTER_MCP_TOKEN=token-0123"}
	if !slices.Equal(launch.Env, want) {
		t.Errorf("environment %q, want %q", launch.Env, want)
	}
	if strings.Contains(strings.Join(launch.Argv, " "), "token") || operator[:2][1] != "" {
		t.Errorf("the token went astray: %q, %q", launch.Argv, operator[:2])
	}
}

func TestThePromptIsWrittenAndInputIsClosed(t *testing.T) {
	launch, err := prepare(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	actions := launch.Dialogue.Start()
	if len(actions) != 2 {
		t.Fatalf("actions %v", actions)
	}
	if w, ok := actions[0].(agent.Write); !ok || string(w.Data) != "why?" {
		t.Errorf("first action %v; want the prompt as it was written", actions[0])
	}
	if _, ok := actions[1].(agent.CloseInput); !ok {
		t.Errorf("second action %v; want CloseInput", actions[1])
	}
}

func TestHowAnEndIsJudged(t *testing.T) {
	long := strings.Repeat("x", MaxReply/4)
	for _, test := range []struct {
		name   string
		lines  []string
		exit   proc.Exit
		stderr string
		before func(*dialogue)

		reply, code, says, salvage string
	}{
		{name: "text is the reply, trimmed", lines: []string{"", "a\r", "  b ", ""}, reply: "a\r\n  b", salvage: "a\r\n  b"},
		{name: "invalid UTF-8 is replaced", lines: []string{"a\xffb"}, reply: "a\uFFFDb", salvage: "a\uFFFDb"},
		{
			name: "a failure quotes what was said", lines: []string{"half"}, exit: proc.Exit{Code: 3}, stderr: "one\ntwo\nfatal: no key\n",
			code: agent.CodeAgentError, says: "exit status 3; it last said: two fatal: no key", salvage: "half",
		},
		{name: "a signal is a failure", exit: proc.Exit{Code: -1, Signal: "killed"}, code: agent.CodeAgentError, says: "killed"},
		{name: "nothing is no reply", lines: []string{" ", ""}, code: agent.CodeEmptyReply, says: "printed nothing; it said nothing"},
		{name: "a flood is no reply", lines: []string{long, long, long, long, "the end"}, code: agent.CodeResultTooLong, says: "1048576", salvage: "the end"},
		{
			name: "a line over the cap is no reply", before: func(d *dialogue) { d.Dropped([]byte("head")) },
			code: agent.CodeResultTooLong, salvage: "head",
		},
		{name: "stopped is no reply", lines: []string{"half"}, before: func(d *dialogue) { d.Stop() }, code: agent.CodeNoResult, salvage: "half"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := &dialogue{name: "answer"}
			for _, line := range test.lines {
				d.Line([]byte(line))
			}
			if test.before != nil {
				test.before(d)
			}
			got := d.End(test.exit, []byte(test.stderr))
			if got.Reply != test.reply || !strings.HasSuffix(got.Salvage, test.salvage) {
				t.Errorf("reply %.60q salvage %.60q; want %.60q and %.60q", got.Reply, got.Salvage, test.reply, test.salvage)
			}
			code, message := "", ""
			if got.Err != nil {
				code, message = got.Err.Code, got.Err.Message
			}
			if code != test.code || !strings.Contains(message, test.says) {
				t.Errorf("error %q %q; want %q that says %q", code, message, test.code, test.says)
			}
		})
	}
}

func TestActivityIsToldWhenItChanges(t *testing.T) {
	d := &dialogue{}
	told := 0
	for _, line := range []string{"a", "a", "\x00\r", "b"} {
		told += len(d.Line([]byte(line)))
	}
	if told != 2 {
		t.Errorf("told %d activities, want 2", told)
	}
}

func FuzzDialogue(f *testing.F) {
	f.Add([]byte("a\nb"), 0)
	f.Add([]byte("\xff\x00\r\n"), 1)
	f.Fuzz(func(t *testing.T, output []byte, code int) {
		d := &dialogue{name: "x"}
		d.Start()
		for line := range bytes.Lines(output) {
			d.Line(line)
		}
		r := d.End(proc.Exit{Code: code}, output)
		if (r.Err == nil) == (r.Reply == "") || !utf8.ValidString(r.Reply) || !utf8.ValidString(r.Salvage) {
			t.Fatalf("reply %q, error %v", r.Reply, r.Err)
		}
	})
}
