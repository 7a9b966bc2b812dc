package cli

import (
	"context"
	"time"

	"nightporter/internal/approval"
	"nightporter/internal/approval/hook"
	"nightporter/internal/audit"
	"nightporter/internal/config"
	"nightporter/internal/secret"
)

// approver returns who is asked about calls that want a person's approval, as the configuration says when it is called; nil: nobody.
func (a *app) approver(now func() *config.Config) func() approval.Func {
	desk := hook.NewDesk(a.env)
	return func() approval.Func {
		c := &now().Approver
		switch {
		case !c.Asks():
			return nil
		case c.Problem != nil:
			return func(context.Context, approval.Question) approval.Answer {
				return approval.Answer{By: "nightporter", Reason: "nobody could be asked: " + c.Problem.Error()}
			}
		}
		return func(ctx context.Context, q approval.Question) approval.Answer {
			return desk.Ask(ctx, hook.Hook{Argv: c.Argv, Dir: c.Dir, Timeout: c.Timeout}, q)
		}
	}
}

// runApprover is who is asked in a run; nil: nobody. What becomes of calls of servers' tools the gateway records; answers about the agent's own
// tools are recorded here.
func (a *app) runApprover(cfg *config.Config, masker *secret.Masker) approval.Func {
	ask := a.approver(func() *config.Config { return cfg })()
	if ask == nil {
		return nil
	}
	return func(ctx context.Context, q approval.Question) approval.Answer {
		began := time.Now()
		answer := ask(ctx, q)
		if q.Server != "" {
			return answer
		}
		e := audit.Entry{
			Time: began, Client: q.Client, Run: q.Run, Tool: q.Tool, Arguments: q.Arguments, Outcome: audit.Refused, Detail: answer.Reason,
			Duration: answer.Waited, Authority: q.Authority, Approval: answer.String(), ApprovalWaited: answer.Waited,
		}
		switch {
		case answer.Approved:
			e.Outcome = audit.OK
		case ctx.Err() != nil:
			e.Outcome = audit.Cancelled
		}
		log, end := a.auditLog(masker)
		defer end()
		log.Record(e)
		return answer
	}
}
