package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nightporter/internal/run"
)

// maxPrompt bounds what is read as a prompt: more than any agent takes (10 MB, facts/claude.md 1.9), so that
// the agent's own limit is what a person hears of.
const maxPrompt = 16 << 20

type runCmd struct {
	target
	Output string `enum:"text,json,stream-json" default:"text" placeholder:"FORMAT" help:"text: the reply. json: one object, the outcome. stream-json: one event on each line, the outcome last. Default: text."`
	Prompt string `arg:"" optional:"" help:"The prompt; - reads it from standard input, which is also what happens without one."`
}

func (*runCmd) Help() string {
	return `The agent answers one prompt, with the tool servers that are granted and no others.
Its reply goes to standard output, everything else to standard error.

Exit codes: 0 a reply, 1 it failed, 2 wrong usage or configuration, 3 its boundary could not be
proven and no model was asked, 4 stopped before the end, 5 its program is missing or too old.

Examples:

	nightporter run --agent claude "what does this project do?"
	git diff | nightporter run --agent codex --server github --conversation review-7
	nightporter run --exec "codex exec -m gpt-5.2" --output json - < question.txt
	nightporter run --exec "cat" --unproven hello`
}

func (c *runCmd) Run(a *app) error {
	spec, err := c.spec(context.Background(), a)
	if err != nil {
		return err
	}
	if spec.Request.Prompt, err = c.prompt(a); err != nil {
		return err
	}
	ctx, kill, release := signals(context.Background())
	defer release()
	spec.Kill = kill

	if c.Output == "stream-json" {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		lines := newStream(a.stdout, func(err error) { stop(fmt.Errorf("nobody reads its events: %w", err)) })
		spec.Events = each(spec.Events, lines.event)
		outcome := run.Do(ctx, spec)
		release() // nothing of the run is left: a signal may end the wait for whoever reads
		if err := lines.close(); err != nil {
			return fmt.Errorf("write the events: %w", err)
		}
		return ended(outcome.ExitCode())
	}
	shown := newProgress(a)
	spec.Events = each(spec.Events, shown.event)
	outcome := run.Do(ctx, spec)
	release() // as above
	shown.close()
	if c.Output == "json" {
		if err := writeJSON(a.stdout, outcome); err != nil {
			return fmt.Errorf("write the outcome: %w", err)
		}
		return ended(outcome.ExitCode())
	}
	return c.tell(a, spec, outcome)
}

// prompt is the argument, or what standard input holds.
func (c *runCmd) prompt(a *app) (string, error) {
	const example = `for example: nightporter run --agent claude "what is new?"`
	prompt := c.Prompt
	switch {
	case prompt == "" && width(a.stdin) > 0:
		return "", usage(example, "there is no prompt")
	case prompt == "" || prompt == "-":
		data, err := io.ReadAll(io.LimitReader(a.stdin, maxPrompt+1))
		if err != nil {
			return "", fmt.Errorf("read the prompt: %w", err)
		}
		if len(data) > maxPrompt {
			return "", usage("put what is long into a file of the working directory", "the prompt is longer than %d MiB", maxPrompt>>20)
		}
		prompt = string(data)
	}
	if strings.TrimSpace(prompt) == "" {
		return "", usage(example, "the prompt is empty")
	}
	return prompt, nil
}

// tell writes an outcome for a person.
func (c *runCmd) tell(a *app, spec run.Spec, o run.Outcome) error {
	if len(o.Denials) > 0 {
		a.say("refused to the agent: %s", strings.Join(o.Denials, ", "))
	}
	for _, note := range o.Boundary.Notes {
		// What a proof does not cover is told by prove, and not again with every reply.
		if !o.Boundary.Proven || !slices.Contains(o.Proof.Notes, note) {
			a.say("note: %s", note)
		}
	}
	if o.Reply != nil {
		reply := *o.Reply
		if width(a.stdout) > 0 {
			reply = printable(reply)
		}
		if _, err := fmt.Fprintln(a.stdout, reply); err != nil {
			return fmt.Errorf("write the reply: %w", err)
		}
		return ended(o.ExitCode())
	}
	if o.Salvage != nil {
		fmt.Fprintf(a.stderr, "%s\n%s\n", a.paint(a.stderr, dim, name+": the agent last wrote:"), printable(*o.Salvage))
	}
	a.say("%s", o.Error.Message)
	if path := filepath.Join(spec.Transcripts, o.Run+run.TranscriptSuffix); exists(path) {
		a.say("hint: what the agent printed is in %s", path)
	}
	return ended(o.ExitCode())
}

// writeJSON writes v as one line.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
