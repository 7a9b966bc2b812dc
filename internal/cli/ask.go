package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"nightporter/client"
	"nightporter/internal/run"
)

type askCmd struct {
	hubFlags
	Conversation string `placeholder:"KEY" help:"Continue this conversation, or begin it."`
	Profile      string `placeholder:"NAME" help:"How it is answered. Default: as the conversation was before, else the profile default."`
	Author       string `placeholder:"NAME" help:"Who asks, for people."`
	Interrupt    bool   `help:"Stop the run of the conversation that is going on."`
	Wait         bool   `help:"Wait for the reply and print it. Without it the run's id is printed."`
	JSON         bool   `name:"json" help:"Print the message, or with --wait the run, as one object."`
	Text         string `arg:"" help:"The message; - reads it from standard input."`
}

func (*askCmd) Help() string {
	return `Exit codes with --wait: those of nightporter run.

Examples:

	nightporter ask --wait "what is new?"
	nightporter ask --conversation ticket-17 --profile support "the customer says it is still broken"`
}

func (c *askCmd) Run(a *app) error {
	hub, err := c.client(a)
	if err != nil {
		return err
	}
	text := c.Text
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(a.stdin, maxPrompt+1))
		if err != nil {
			return fmt.Errorf("read the message: %w", err)
		}
		if len(data) > maxPrompt {
			return usage("", "the message is longer than %d MiB", maxPrompt>>20)
		}
		text = string(data)
	}
	ctx, _, release := signals(context.Background())
	defer release()
	m, err := hub.Send(ctx, client.NewMessage{
		Conversation: c.Conversation, Profile: c.Profile, Author: c.Author, Text: text, Interrupt: c.Interrupt,
	}, client.Idempotent(run.NewID()))
	if err != nil {
		return hubProblem(err)
	}
	if !c.Wait {
		if c.JSON {
			return writeJSON(a.stdout, m)
		}
		_, err := fmt.Fprintln(a.stdout, m.Run.ID)
		return err
	}
	last := ""
	err = hub.RunEvents(ctx, m.Run.ID, 0, func(e client.Event) error {
		var said struct{ Activity string }
		if json.Unmarshal(e.Data, &said) == nil && said.Activity != "" && said.Activity != last && width(a.stderr) > 0 {
			last = said.Activity
			a.say("%s", last)
		}
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			a.say("the run goes on at the hub: %s", m.Run.ID)
			return ended(run.ExitStopped)
		}
		return hubProblem(err)
	}
	r, err := hub.Run(ctx, m.Run.ID)
	if err != nil {
		return hubProblem(err)
	}
	if c.JSON {
		if err := writeJSON(a.stdout, r); err != nil {
			return err
		}
	} else if r.Reply != nil {
		reply := *r.Reply
		if width(a.stdout) > 0 {
			reply = printable(reply)
		}
		if _, err := fmt.Fprintln(a.stdout, reply); err != nil {
			return fmt.Errorf("write the reply: %w", err)
		}
	} else {
		a.say("%s", strings.TrimSpace(r.ErrorMessage))
	}
	return ended(exitOf(r.Status))
}

// exitOf is the exit code for an outcome's status, as nightporter run has it.
func exitOf(status string) int {
	switch run.Status(status) {
	case run.StatusOK:
		return run.ExitOK
	case run.StatusRefused:
		return run.ExitRefused
	case run.StatusStopped:
		return run.ExitStopped
	}
	return run.ExitFailed
}

// hubProblem is a refusal of the hub as an error with its exit code: what is wrong with a request is wrong usage.
func hubProblem(err error) error {
	var p *client.Problem
	if errors.As(err, &p) && (p.Code == "invalid" || p.Code == "too_large") {
		return usage("", "%s", p.Detail)
	}
	return err
}
