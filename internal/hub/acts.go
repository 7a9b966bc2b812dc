package hub

import (
	"context"
	"fmt"

	"nightporter/client"
)

// contextOf is context.Context, for tables of methods.
type contextOf = context.Context

// What people do by the API and by the console alike. by is who does it, such as "key ann".

// Cancel ends a run, or has its host stop it.
func (h *Hub) Cancel(ctx context.Context, by, run, why string) error {
	if err := h.store.Cancel(ctx, run, why); err != nil {
		return fmt.Errorf("run %s: %w", run, err)
	}
	return h.store.Audit(ctx, by, "run.cancel", run, why)
}

// Answer decides an approval, or answers a question.
func (h *Hub) Answer(ctx context.Context, by, id string, a client.Answer) (client.Approval, error) {
	decided, err := h.store.Answer(ctx, id, a, by)
	if err != nil {
		return decided, err
	}
	return decided, h.store.Audit(ctx, by, "approval.answer", id, string(decided.State))
}

// RevokeHost makes a host's key good for nothing, and takes its runs back.
func (h *Hub) RevokeHost(ctx context.Context, by, idOrName string) error {
	name, err := h.store.RevokeHost(ctx, idOrName)
	if err != nil {
		return err
	}
	return h.store.Audit(ctx, by, "host.revoke", name, "")
}

// RetryDelivery tries a dead delivery again.
func (h *Hub) RetryDelivery(ctx context.Context, by, id string) error {
	if err := h.store.RetryDelivery(ctx, id); err != nil {
		return err
	}
	return h.store.Audit(ctx, by, "delivery.retry", id, "")
}
