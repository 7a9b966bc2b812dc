package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"nightporter/client"
	"nightporter/internal/hub/store"
)

// The codes of problems, with their HTTP statuses. They are stable.
var statuses = map[string]int{
	"invalid":              http.StatusBadRequest,
	"unauthorized":         http.StatusUnauthorized,
	"forbidden":            http.StatusForbidden,
	"not_found":            http.StatusNotFound,
	"method_not_allowed":   http.StatusMethodNotAllowed,
	"conflict":             http.StatusConflict,
	"idempotency_mismatch": http.StatusConflict,
	"lease_lost":           http.StatusConflict,
	"over":                 http.StatusConflict,
	"revoked":              http.StatusUnauthorized,
	"too_large":            http.StatusRequestEntityTooLarge,
	"media_type":           http.StatusUnsupportedMediaType,
	"rate_limited":         http.StatusTooManyRequests,
	"unavailable":          http.StatusServiceUnavailable,
	"internal":             http.StatusInternalServerError,
}

func problemf(code, format string, args ...any) *client.Problem {
	status := statuses[code]
	return &client.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...), Code: code}
}

// problemOf makes an error of the store one that leaves the process: what is none of the known kinds is not shown.
func (h *Hub) problemOf(err error) *client.Problem {
	var p *client.Problem
	if errors.As(err, &p) {
		return p
	}
	for _, known := range []struct {
		err  error
		code string
	}{
		{store.ErrNotFound, "not_found"},
		{store.ErrIdempotency, "idempotency_mismatch"},
		{store.ErrLeaseLost, "lease_lost"},
		{store.ErrRevoked, "revoked"},
		{store.ErrInvite, "unauthorized"},
		{store.ErrNoProfile, "invalid"},
		{store.ErrOver, "over"},
		{store.ErrConflict, "conflict"},
	} {
		if errors.Is(err, known.err) {
			return problemf(known.code, "%v", err)
		}
	}
	h.o.Log.Error("a request failed", "err", err)
	return problemf("unavailable", "the hub could not do this now; try again, with the same idempotency key where there is one")
}

func writeProblem(w http.ResponseWriter, p *client.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // who has gone need not know
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(true)
	_ = e.Encode(v) // likewise
}
