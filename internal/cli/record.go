package cli

import (
	"context"
	"strings"
	"time"

	"nightporter/internal/audit"
	"nightporter/internal/mcp/gateway"
	"nightporter/internal/mcp/runtime"
	"nightporter/internal/secret"
)

// auditLog opens the record of tool calls; nothing is made before the first call. masker may be nil. The caller calls end.
func (a *app) auditLog(masker *secret.Masker) (log *audit.Log, end func()) {
	log = audit.New(a.dirs.Audit(), audit.Options{Masker: masker, Log: a.log()})
	return log, func() {
		ctx, done := context.WithTimeout(context.Background(), endPatience)
		defer done()
		if err := log.Close(ctx); err != nil {
			a.say("warning: the audit record is not complete: %v", err)
		}
	}
}

// recorder returns what records the calls of a gateway's clients; run is empty where they are none of a run.
func recorder(log *audit.Log, run string) func(gateway.Call) {
	return func(c gateway.Call) {
		e := audit.Entry{
			Time: c.Time, Client: c.Client, Run: run, Server: c.Server, Tool: c.Tool, Exposed: c.Exposed, Arguments: c.Arguments,
			ResultBytes: int64(c.ResultBytes), Outcome: audit.Outcome(c.Outcome), Detail: c.Detail, Duration: c.Duration,
			Authority: c.Authority, Generation: c.Generation, Revision: c.Revision,
		}
		if c.Approval != nil {
			e.Approval, e.ApprovalWaited = c.Approval.String(), c.Approval.Waited
		}
		log.Record(e)
	}
}

// recordAnswer records a call that a command made itself.
func recordAnswer(log *audit.Log, began time.Time, arguments []byte, answer runtime.Answer, err error) {
	outcome, detail := gateway.Judge(answer, err)
	log.Record(audit.Entry{
		Time: began, Client: name, Server: answer.Authority.Server, Tool: answer.Authority.Tool, Arguments: arguments,
		ResultBytes: int64(len(answer.Result)), Outcome: audit.Outcome(outcome), Detail: strings.TrimSpace(detail), Duration: time.Since(began),
		Authority: answer.Authority.Digest(), Generation: answer.Authority.Generation, Revision: answer.Authority.Revision,
	})
}
