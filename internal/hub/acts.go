package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

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

// SignIn finds the key of a person who shows it in a request, with the same bound on tries as everywhere.
func (h *Hub) SignIn(r *http.Request, secret string) (client.Key, error) {
	if !h.tries.allowed(r) {
		return client.Key{}, problemf("rate_limited", "too many keys that are none came from this address; try again in a minute")
	}
	key, err := h.store.KeyByHash(r.Context(), hashed(secret))
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrRevoked) {
		h.tries.fail(r)
	}
	return key, err
}

// MayRead is nil when a key may read a conversation. For others it does not exist.
func (h *Hub) MayRead(ctx context.Context, key client.Key, conversation string) error {
	return h.mayRead(&call{ctx: ctx, key: key}, conversation)
}

// Send accepts a message of a key. The same idempotency key with the same digest is answered as the first time.
func (h *Hub) Send(ctx context.Context, key client.Key, m client.NewMessage, idempotency, digest string) (client.Message, error) {
	if err := h.checkMessage(&call{ctx: ctx, key: key}, &m); err != nil {
		return client.Message{}, err
	}
	sent, _, err := h.store.AddMessage(ctx, store.Sender{Key: key.ID, Idempotency: idempotency, Digest: digest}, m)
	return sent, err
}
